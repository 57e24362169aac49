"""How much each client matters, before any is removed: a bound from gradients, the distance from statistics.

Removing client u moves the minimum by H_-^-1 g_-(w), g_- the gradient of the others' loss at the head. At the
minimum of all, g_- = -(n_u / n_-) grad L_u: a client matters by its rows and by how much it disagrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.unlearning.method import REMEDIES

Params = NDArray[np.float64]


@dataclass(frozen=True)
class Influence:
    """How far removing a client would move the head, Frobenius: at most `bound`, and exactly `distance`.

    `bound` is None where no curvature is known to hold it, `distance` where no statistics are kept.
    """

    client: str
    rows: int
    bound: float | None
    distance: float | None


def influences(trained: Trained) -> tuple[Influence, ...]:
    """Every client's influence on the head, the largest first."""
    if len(trained.counts) < 2:
        raise InputError("Leaving a client out needs at least two; this run has one.")
    if "quadratic" not in trained.problem.traits:
        raise InputError("How much clients matter follows from a ridge loss; this loss is not quadratic.")
    if trained.statistics is None and trained.gradients is None:
        raise InputError(f"To know how much clients matter, keep {REMEDIES['kept', 'gradients']}.")
    several = "targets" in trained.problem.traits  # whose losses have no common gradient
    distances, bounds = _distances(trained), dict.fromkeys(trained.counts) if several else _bounds(trained)
    found = [Influence(name, rows, bounds[name], distances.get(name)) for name, rows in trained.counts.items()]
    return tuple(sorted(found, key=lambda one: -(one.distance or one.bound or 0.0)))


def _distances(trained: Trained) -> dict[str, float]:
    """|w - w without the client|, for all clients from one tree of sums."""
    if trained.statistics is None:
        return {}
    heads = ((name, trained.minimum(others)[0]) for name, others in StatisticsTree.of(trained.statistics).complements())
    return {name: float(np.linalg.norm(head.params - trained.head.params)) for name, head in heads}


def _bounds(trained: Trained) -> dict[str, float | None]:
    """|g_-(w)| / smallest curvature; the ridge is the curvature that is always there, unless the intercept is
    free."""
    problem, gradients = trained.problem, _gradients(trained)
    everybody = sum((trained.counts[name] * one for name, one in gradients.items()), np.zeros(()))
    found: dict[str, float | None] = {}
    for name, own in trained.counts.items():
        rows = trained.rows - own
        ridge = trained.mean_ridge(rows)
        rest = (everybody - own * gradients[name]) / rows + problem.penalty(ridge) * trained.params
        if trained.objective is not None:
            rest = rest + trained.objective / rows
        certain = "plain" in problem.traits and bool((problem.penalty(ridge) > 0).all())
        found[name] = float(np.linalg.norm(rest)) / ridge if certain else None
    return found


def _gradients(trained: Trained) -> Mapping[str, Params]:
    """Each client's mean gradient at the head, without the ridge."""
    if trained.statistics is not None:
        holdings = {name: trained.problem.hold_statistics(one) for name, one in trained.statistics.items()}
        return {name: one.squares().gradient(trained.params) / one.count for name, one in holdings.items()}
    extra = trained.problem.penalty(trained.mean_ridge(trained.rows)) * trained.params
    kept = {} if trained.gradients is None else trained.gradients.aggregate
    return {name: one - extra for name, one in kept.items()}
