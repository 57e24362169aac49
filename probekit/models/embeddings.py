"""The backend of heads on embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.statistics import step_for
from probekit.models.heads import LinearHead
from probekit.models.linear_problem import HeadProblem
from probekit.models.logistic_problem import LogisticProblem
from probekit.values import UNLABELLED, EmbeddingSet, Json, Partition


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
        classes = len(embeddings.class_names) or int(embeddings.labels.max(initial=UNLABELLED)) + 1
        free = options.intercept or ("free" if (options.method or "").startswith("logistic") else "penalised")
        design = Design(
            embeddings.dimension,
            classes,
            options.view,
            free,
            options.arithmetic,
            options.class_weight is not None,
            grid,
        )
        return HeadProblem(design, embeddings.class_names, embeddings.spec.digest)

    def of(self, head: LinearHead, stored: Mapping[str, Any] | None = None) -> HeadProblem:
        """The problem of a head, with the design that a run kept."""
        recipe: Any = head.recipe
        design = (stored or {}).get("design") or {
            "dimension": head.dimension,
            "classes": len(head.classes),
            "view": head.view,
            "intercept": recipe.get("intercept", "penalised"),
        }
        kind = LogisticProblem if recipe.get("head") == "logistic" else HeadProblem
        return kind(
            Design(**design),
            head.classes,
            head.spec_digest,
            (stored or recipe).get("view", recipe.get("fit_view", "none")),
            (stored or recipe).get("class_weight", recipe.get("class_weight")),
            bool(recipe.get("normalise_classes")),
        )

    def from_plain(self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> HeadProblem:
        """The problem that was sent."""
        kind = LogisticProblem if plain.get("head") == "logistic" else HeadProblem
        return kind(
            Design(**plain["design"]),
            tuple(plain["classes"]),
            plain["spec"],
            plain["view"],
            plain["class_weight"],
            plain["normalise_classes"],
        )

    def save(self, head: LinearHead) -> tuple[dict[str, Json], dict[str, NDArray[Any]]]:
        """What a folder holds of a head besides what all heads have."""
        return {}, {}

    def load(self, config: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> LinearHead:
        """The head in a folder."""
        params = np.ascontiguousarray(arrays["params"], np.float64)
        fields = {name: config[name] for name in ("ridge", "view", "spec_digest", "recipe")}
        return LinearHead(params, tuple(config["classes"]), **fields)
