"""The backend of whole networks as they are: conventional federated training, beside the linearized one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.models.conventional_problem import ConventionalProblem
from probekit.models.heads import ConventionalHead
from probekit.models.jvp import NETWORK, JvpBackend, WholeNetwork, network_at, stored_network
from probekit.values import EmbeddingSet, Json, Partition


class ConventionalBackend:
    """Networks trained as they are."""

    trainer = "fedavg"
    serving = "torch"
    options = (*JvpBackend.options, "loss")
    ridge: float | None = 0.0

    def prepare(self, embeddings: EmbeddingSet, partition: Partition, options: Any, **more: Any) -> ConventionalProblem:
        """The network where training begins: pretrained, or as it is made where the start is to be random."""
        random = not options.pretrain_epochs or getattr(options, "init", None) == "random"
        how = WholeNetwork.of(options, random=random)
        found = network_at(embeddings, partition, how, **more)
        named = (how.centre, embeddings.class_names, embeddings.spec.digest, *how.base)
        return ConventionalProblem(found, *named, options.loss)

    def of(self, head: ConventionalHead, stored: Mapping[str, Any] | None = None) -> ConventionalProblem:
        """The problem of a network."""
        recipe: Any = head.recipe
        base = (recipe.get("pretraining"), recipe.get("weights"))
        return ConventionalProblem(head.network, head.centre, head.classes, head.spec_digest, *base, head.loss)

    def from_plain(self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ConventionalProblem:
        """The problem that was sent."""
        found = stored_network(plain["network"], arrays)
        named = (plain["centre"], tuple(plain["classes"]), plain["spec"])
        return ConventionalProblem(found, *named, criterion=plain["loss"])

    def save(self, head: ConventionalHead) -> tuple[dict[str, Json], dict[str, NDArray[Any]]]:
        """What a folder holds of a head besides what all heads have."""
        config, arrays = JvpBackend().save(head)
        return {**config, "loss": head.loss}, arrays

    def load(self, config: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> ConventionalHead:
        """The head in a folder."""
        params = np.ascontiguousarray(arrays["params"], np.float64)
        weights = {name.removeprefix(NETWORK): value for name, value in arrays.items() if name.startswith(NETWORK)}
        fields = {name: config[name] for name in ("ridge", "view", "spec_digest", "recipe", "centre", "loss")}
        found = stored_network(config["network"], weights)
        return ConventionalHead(params, tuple(config["classes"]), network=found, **fields)
