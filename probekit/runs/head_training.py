"""The part of `probekit train` that is about heads of embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from probekit.errors import InputError
from probekit.federated.choice import Choice, choose
from probekit.federated.client import Picked, client_statistics
from probekit.federated.fedavg import FedAvg
from probekit.federated.local import train
from probekit.federated.server import client_weights, merge
from probekit.federated.task import ClosedForm
from probekit.federated.trained import Progress, ServerSet, Trained, Watch
from probekit.linear.design import Design
from probekit.linear.logistic import fit_logistic
from probekit.linear.ridge import penalty_of
from probekit.linear.spectrum import condition, effective_dimension
from probekit.linear.views import system_of
from probekit.models.heads import head_of
from probekit.runs.fitting import Fitted, design_of, method_of, resolved, timed
from probekit.runs.options import TrainOptions
from probekit.runs.result import Result
from probekit.values import EmbeddingSet, Json, Partition


@dataclass(frozen=True)
class RidgeChoice(Result):
    """How a ridge was chosen: by which errors, among how many from the lowest to the highest, and with what error."""

    by: str
    candidates: int
    lowest: float
    highest: float
    squared_error: float
    wrong_share: float | None
    at_edge: bool

    @classmethod
    def of(cls, choice: Choice) -> Self:
        """What is worth telling of a choice."""
        found = choice.validation
        best = int(np.argmin(found.squared))
        return cls(
            found.scheme,
            len(found.ridges),
            float(found.ridges[0]),
            float(found.ridges[-1]),
            float(found.squared[best]),
            None if found.wrong is None else float(found.wrong[best]),
            choice.at_edge,
        )


def fit_head(
    options: TrainOptions, embeddings: EmbeddingSet, divided: Partition, timings: dict[str, float], watch: Watch | None
) -> Fitted:
    """A head of the embeddings."""
    design = design_of(options, embeddings, divided)
    method = method_of(options)
    choice = None
    if chooses(options, method):
        with timed(timings, "choose_ridge"):
            fitted = method if isinstance(method, ClosedForm) else ClosedForm()
            how = str(options.ridge or "auto")
            choice = choose(
                embeddings, divided, design=design, how=how, scaling=options.scaling, method=fitted, seed=options.seed
            )
    with timed(timings, "train"):
        progress = watch("rounds") if watch is not None else None
        trained = _fit(options, embeddings, divided, design=design, choice=choice, progress=progress)
    effective, condition = _spectrum(trained, method, choice)
    config: dict[str, Json] = {
        **resolved(options, method, trained),
        "ridge_by": options.ridge if options.ridge is not None else "default",
        "scaling": trained.scaling,
        "intercept": trained.design.intercept,
        "grid": trained.design.grid,
    }
    return Fitted(trained, config, choice, effective, condition)


def chooses(options: TrainOptions, method: ClosedForm | FedAvg) -> bool:
    """Whether a ridge is to be chosen: asked for, or neither given nor the method's own."""
    own = isinstance(method, FedAvg) and method.ridge is not None
    return options.auto or (options.ridge is None and options.method != "logistic" and not own)


def _fit(
    options: TrainOptions,
    embeddings: EmbeddingSet,
    divided: Partition,
    *,
    design: Design,
    choice: Choice | None,
    progress: Callable[[Progress], None] | None,
) -> Trained:
    if options.method == "logistic":
        return _logistic(options, embeddings, divided, design)
    return train(
        embeddings,
        divided,
        ridge=choice or options.number,
        method=method_of(options),
        scaling=options.scaling,
        design=design,
        keep=options.keep,
        objective_noise=options.objective_noise,
        progress=progress,
    )


def _logistic(options: TrainOptions, embeddings: EmbeddingSet, divided: Partition, design: Design) -> Trained:
    """One head of all clients' rows, pooled. Without a ridge it is 1 in sum scaling: scikit-learn's C = 1."""
    held = np.sort(np.concatenate(list(divided.clients.values())))
    scaling = options.scaling if options.ridge is not None else "sum"
    ridge = 1.0 if options.number is None else options.number
    penalty = penalty_of(ridge, scaling, len(held))
    if not penalty > 0:
        raise InputError(f"A logistic head needs a ridge above 0; found {ridge:g}.")
    labels = embeddings.labels[held]
    found = fit_logistic(Picked(embeddings.embeddings, held), labels, design, c=1 / penalty)
    counts = {name: len(rows) for name, rows in divided.clients.items()}
    shares = client_weights(np.array(list(counts.values())))
    server = None
    if len(divided.server):
        server = ServerSet(client_statistics(embeddings, divided.server, design), divided.server)
    named = head_of(found, classes=embeddings.class_names, spec_digest=embeddings.spec.digest)
    weights = dict(zip(counts, shares.tolist(), strict=True))
    return Trained(named, "logistic", design, ridge, scaling, counts, weights, found.solution, server=server)


def _spectrum(
    trained: Trained, method: ClosedForm | FedAvg, choice: Choice | None
) -> tuple[float | None, float | None]:
    """Effective dimension and condition number of the system, where its statistics are at hand."""
    if choice is not None:
        return choice.effective_dimension, choice.condition
    if trained.statistics is None or not isinstance(method, ClosedForm):
        return None, None
    system = system_of(merge(trained.statistics.values()), view=method.view, class_weight=method.class_weight)
    values = np.linalg.eigvalsh(system.gram)
    penalty = penalty_of(trained.ridge, trained.scaling, system.weight)
    found = condition(values, penalty)
    return effective_dimension(values, penalty), found if math.isfinite(found) else None
