"""What both kinds of training share: the library's method and design of some options, and what comes of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from probekit.errors import InputError
from probekit.federated.choice import Choice
from probekit.federated.fedavg import FedAvg
from probekit.federated.optimiser import Optimiser
from probekit.federated.task import ClosedForm, design_for
from probekit.federated.trained import Trained
from probekit.linear.design import Design
from probekit.linear.grid import step_for
from probekit.runs.options import ROUNDS, TrainOptions
from probekit.values import EmbeddingSet, Json, Partition


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was trained, by which config in the end, and what is known of its system."""

    trained: Trained
    config: dict[str, Json]
    choice: Choice | None = None
    effective_dimension: float | None = None
    condition: float | None = None


def resolved(options: TrainOptions, method: object, trained: Trained) -> dict[str, Json]:
    """The options with everything filled in that they had left open."""
    kept = "statistics" if trained.statistics is not None else "gradients" if trained.gradients else "nothing"
    found: dict[str, Json] = {**options.plain, "clients": len(trained.counts), "ridge": trained.ridge, "keep": kept}
    names = [name for name in options.names(ROUNDS) if name not in ("preset", "optimiser")]
    found |= {name: getattr(method, name, found[name]) for name in names}
    if isinstance(method, FedAvg):
        found |= {"optimiser": method.optimiser.name, "learning_rate": trained.learning_rate}
    return found


@contextmanager
def timed(timings: dict[str, float], what: str) -> Iterator[None]:
    """Note how long this took."""
    began = time.perf_counter()
    yield
    timings[what] = round(time.perf_counter() - began, 4)


def method_of(options: TrainOptions) -> ClosedForm | FedAvg:
    """The library's method with these options; of a network trained by conjugate gradients, an idle one."""
    if options.method != "fedavg":
        weight = options.class_weight
        parsed = weight if weight in (None, "balanced") else _numbers(str(weight))
        return ClosedForm(options.fit_view, parsed, options.normalise_classes)
    base = FedAvg.preset(options.preset) if options.preset else FedAvg()
    names = [name for name in options.names(ROUNDS) if name not in ("optimiser", "preset", "keep_history")]
    given: dict[str, Any] = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.local_steps is not None:
        given["local_epochs"] = None
    if options.local_epochs is not None:
        given["local_steps"] = None
    if options.optimiser is not None:
        given["optimiser"] = Optimiser(options.optimiser)
    if options.ridge is not None:
        given["ridge"] = None  # the preset's own gives way
    return replace(base, seed=options.seed, keep_history=options.keep_history, **given)


def design_of(options: TrainOptions, embeddings: EmbeddingSet, partition: Partition) -> Design:
    """How rows become columns. The step of an exact grid comes from the server's rows: nobody's who may leave."""
    grid = options.grid or 0.0
    if options.arithmetic == "exact" and options.view == "raw" and not grid:
        if not len(partition.server):
            raise InputError(
                "Exact arithmetic on raw rows needs the step of its grid, and the server has no rows to take it from. "
                "Add `server_share=0.1`, `view=l2` (which needs none) or `grid` with a power of two."
            )
        grid = step_for(embeddings.embeddings[partition.server])
    return design_for(
        embeddings,
        view=options.view,
        intercept=options.intercept or ("free" if options.method == "logistic" else "penalised"),
        arithmetic=options.arithmetic,
        per_class=options.class_weight is not None,
        grid=grid,
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f'Class weights are "balanced" or one number per class with commas between; found {text!r}.'
        ) from None
