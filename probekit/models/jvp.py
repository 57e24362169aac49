"""The backend of whole networks, pretrained on the server's rows and linearized there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import from_numpy, nn

from probekit.datasets.pictures import picture_shape
from probekit.errors import InputError, NotFoundError
from probekit.jacobian.inspection import refuse_unfit
from probekit.jacobian.linearize import tensor_of
from probekit.models.heads import Network, NetworkHead
from probekit.models.network_problem import NetworkProblem
from probekit.models.networks import described, network
from probekit.models.pretraining import PRETRAINING, Pretraining, pretrain
from probekit.models.problem import class_count
from probekit.protocols import Look
from probekit.values import EmbeddingSet, Json, Partition

NETWORK = "network."


@dataclass(frozen=True)
class WholeNetwork:
    """Which network, and how it comes to the weights that it is linearized around.

    `subset`: which parameters are trained across clients: a pattern of names, or the number of last layers; None for
    all. `weights`: a safetensors file with w_p; None: pretrained on the server's rows (`pretraining` None: not at
    all). `centre`: what the ridge pulls to, "wp" or "zero".
    """

    network: str = "mlp"
    subset: str | int | None = None
    centre: str = "wp"
    precision: str = "float64"
    pretraining: Pretraining | None = PRETRAINING
    weights: str | None = None
    seed: int = 0

    @property
    def base(self) -> tuple[dict[str, Json] | None, str | None]:
        """Where its weights come from: how it was pretrained, or which file; neither: they are as it was made."""
        given = None if self.weights is not None or self.pretraining is None else dict(vars(self.pretraining))
        return given, self.weights

    @classmethod
    def of(cls, options: Any, *, random: bool = False) -> Self:
        """As a training's options have it; `random`: not pretrained."""
        subset, seed = options.subset, options.seed
        subset = int(subset) if subset is not None and subset.isdecimal() else subset
        how = (options.pretrain_epochs, options.pretrain_batch, options.pretrain_rate, seed)
        before = None if random else Pretraining(*how)
        what = (options.network, subset, options.centre, options.precision, before, options.network_weights, seed)
        return cls(*what)


WHOLE = WholeNetwork()


class JvpBackend:
    """Networks linearized by JVP."""

    trainer = "cg"
    serving = "torch"
    options = (
        *("network", "split", "subset", "centre", "precision", "network_weights"),
        *("pretrain_epochs", "pretrain_batch", "pretrain_rate"),
    )
    ridge: float | None = 0.01

    def prepare(self, embeddings: EmbeddingSet, partition: Partition, options: Any, **more: Any) -> NetworkProblem:
        """The network at w_p: `known` weights, those of a file, or pretrained now."""
        return network_problem(embeddings, partition, WholeNetwork.of(options), **more)

    def of(self, head: NetworkHead, stored: Mapping[str, Any] | None = None) -> NetworkProblem:
        """The problem of a network's head."""
        recipe: Any = head.recipe
        base = (recipe.get("pretraining"), recipe.get("weights"))
        return NetworkProblem(head.network, head.centre, head.classes, head.spec_digest, *base)

    def from_plain(self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> NetworkProblem:
        """The problem that was sent."""
        network = stored_network(plain["network"], arrays)
        return NetworkProblem(network, plain["centre"], tuple(plain["classes"]), plain["spec"])

    def save(self, head: NetworkHead) -> tuple[dict[str, Json], dict[str, NDArray[Any]]]:
        """What a folder holds of a head besides what all heads have."""
        arrays = {f"{NETWORK}{name}": np.array(value, order="C") for name, value in head.network.weights.items()}
        return {"network": head.network.plain, "centre": head.centre}, arrays

    def load(self, config: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> NetworkHead:
        """The head in a folder."""
        params = np.ascontiguousarray(arrays["params"], np.float64)
        weights = {name.removeprefix(NETWORK): value for name, value in arrays.items() if name.startswith(NETWORK)}
        fields = {name: config[name] for name in ("ridge", "view", "spec_digest", "recipe", "centre")}
        return NetworkHead(
            params, tuple(config["classes"]), network=stored_network(config["network"], weights), **fields
        )


def network_problem(
    embeddings: EmbeddingSet,
    partition: Partition,
    options: WholeNetwork = WHOLE,
    *,
    progress: Look | None = None,
    known: Mapping[str, NDArray[Any]] | None = None,
) -> NetworkProblem:
    """The network at w_p, linearized there; pretrained on the server's rows where its weights are not known."""
    found = network_at(embeddings, partition, options, progress=progress, known=known)
    return NetworkProblem(found, options.centre, embeddings.class_names, embeddings.spec.digest, *options.base)


def network_at(
    embeddings: EmbeddingSet,
    partition: Partition,
    options: WholeNetwork,
    *,
    progress: Look | None = None,
    known: Mapping[str, NDArray[Any]] | None = None,
) -> Network:
    """The network at w_p: weights that are `known` or in a file, pretrained ones, or as it is made."""
    shape = picture_shape(embeddings.spec) or (embeddings.dimension,)
    classes = class_count(embeddings)
    made = network(options.network, shape, classes, seed=options.seed)
    some = np.asarray(embeddings.embeddings[:8]) if len(embeddings) else np.zeros((1, *shape), np.float32)
    refuse_unfit(made, tensor_of(some).reshape(-1, *shape), classes=classes)
    if known is not None:
        made.load_state_dict({name: from_numpy(np.array(value)) for name, value in known.items()})
    elif options.weights is not None:
        _load(made, Path(options.weights))
    elif options.pretraining is not None:
        if not len(partition.server):
            raise InputError(
                "Pretraining needs the server's own rows; it has none. Partition with a server share, or give weights."
            )
        rows = np.asarray(embeddings.embeddings[partition.server], np.float32).reshape(-1, *shape)
        labels = embeddings.labels[partition.server]
        made = pretrain(made, rows, labels, options=options.pretraining, progress=progress)
    return described(made, options.network, shape, classes, subset=options.subset, precision=options.precision)


def stored_network(about: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> Network:
    listed = {name: tuple(about[name]) for name in ("shape", "moving", "canary") if name in about}
    return Network(**{**about, **listed}, weights=weights)


def _load(module: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise NotFoundError(f"There is no file of weights {path}. Give safetensors with the network's own names.")
    try:
        module.load_state_dict({name: from_numpy(np.array(value)) for name, value in load_file(path).items()})
    except (RuntimeError, SafetensorError) as error:
        raise InputError(
            f"The weights in {path} do not fit the network: {str(error).splitlines()[-1].strip()} Give those of the "
            "same architecture."
        ) from error
