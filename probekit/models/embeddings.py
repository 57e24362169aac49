"""The backend of heads on embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.statistics import step_for
from probekit.linear.target_client import design_of
from probekit.linear.targets import TargetDesign
from probekit.models.heads import LinearHead
from probekit.models.linear_problem import HeadProblem
from probekit.models.problem import class_count
from probekit.models.target_problem import kind_of, problem_for
from probekit.registry import configured, trainers
from probekit.values import EmbeddingSet, Json, Partition


class EmbeddingsBackend:
    """Heads on embeddings, in NumPy alone."""

    trainer = "closed-form"
    serving = "NumPy and safetensors only"
    options = (
        *("fit_view", "class_weight", "normalise_classes", "scaling", "intercept", "view", "arithmetic", "grid"),
        *("objective_noise",),
    )
    ridge: float | None = None

    def prepare(self, embeddings: EmbeddingSet, partition: Partition, options: Any, **more: Any) -> HeadProblem:
        """The problem with a training's options: row view, intercept, arithmetic, class weights."""
        grid = options.grid or 0.0
        if options.arithmetic == "exact" and options.view == "raw" and not grid:
            if not len(partition.server):
                raise InputError(
                    "Exact arithmetic on raw rows needs the step of its grid, and the server has no rows to take it "
                    "from. Add `server_share=0.1`, `view=l2` (which needs none) or `grid` with a power of two."
                )
            grid = step_for(embeddings.embeddings[partition.server])
        trainer = configured(trainers, options.method or self.trainer)
        intercept = options.intercept or getattr(trainer, "intercept", "penalised")
        seen = (options.view, intercept, options.arithmetic, options.class_weight is not None, grid)
        return problem_for(embeddings, embeddings.dimension, class_count(embeddings), *seen)

    def of(self, head: LinearHead, stored: Mapping[str, Any] | None = None) -> HeadProblem:
        """The problem of a head, with the design that a run kept."""
        recipe, known = dict[str, Any](head.recipe), stored or {}
        seen = (head.dimension, len(head.classes), head.view, recipe.get("intercept", "penalised"))
        usual = replace(TargetDesign(*seen), targets=head.targets) if head.targets else Design(*seen)
        design = design_of(known["design"]) if known.get("design") else usual
        scaled = (stored or recipe).get("view", recipe.get("fit_view", "none"))
        weight = known.get("class_weight", recipe.get("class_weight"))
        kind = _logistic() if recipe.get("head") == "logistic" else kind_of(design)
        normalised = bool(recipe.get("normalise_classes"))
        return kind(design, head.classes, head.spec_digest, scaled, weight, normalised)

    def from_plain(self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> HeadProblem:
        """The problem that was sent."""
        design = design_of(plain["design"])
        kind = _logistic() if plain.get("head") == "logistic" else kind_of(design)
        others = (plain[name] for name in ("spec", "view", "class_weight", "normalise_classes"))
        return kind(design, tuple(plain["classes"]), *others)

    def save(self, head: LinearHead) -> tuple[dict[str, Json], dict[str, NDArray[Any]]]:
        """What a folder holds of a head besides what all heads have."""
        return {"targets": head.targets} if head.targets else {}, {}

    def load(self, config: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> LinearHead:
        """The head in a folder."""
        params = np.ascontiguousarray(arrays["params"], np.float64)
        fields = {name: config[name] for name in ("ridge", "view", "spec_digest", "recipe")}
        return LinearHead(params, tuple(config["classes"]), targets=config.get("targets", ""), **fields)


def _logistic() -> type[HeadProblem]:
    from probekit.models.logistic_problem import LogisticProblem  # which closed forms do without

    return LogisticProblem
