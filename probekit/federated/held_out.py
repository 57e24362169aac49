"""C chosen by rows that clients hold out: a fifth, drawn by their ids.

A row is held out or not whoever else there is, and copies of it with it, at all clients. So the
choice without some rows is that of a training that never saw them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, SolverError
from probekit.federated.client import ClientData
from probekit.federated.federation import Federation, total
from probekit.federated.loss import identity, whitener
from probekit.federated.queries import Arrays, Shapes
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Intercept, InverseC, check_C
from probekit.linear.solvers import Lbfgs, Search
from probekit.linear.stats import SufficientStats
from probekit.objective import CrossEntropy, Model, Penalty, RowsObjective
from probekit.progress import Progress, Step, silent
from probekit.records import record

DECADES = tuple(10.0**power for power in range(-3, 5))
PARTS = 5
GAP = 1e-6
"""Of the mean loss to its minimum at each C, where its gradient rounds end."""
ROUNDS = 500
"""A C that needs more is not chosen."""
ALIKE = 0.01
"""Of C's whose losses are within this share of the least, the smallest is chosen.

Its minimum takes the fewest rounds, and bounds on the distance to it are the tightest.
"""


def is_held_out(rows: EmbeddingSet) -> NDArray[np.bool_]:
    return np.asarray(rows.ids[:, -1] % PARTS == 0)


@record("query/fitted-gradients")
@dataclass(frozen=True, eq=False)
class FittedGradients:
    """Values and gradients at several parameters (m, ...), summed over rows not held out.

    fitted: the weight of these rows, which may be 0.
    """

    params: Array

    def answer(self, client: ClientData) -> Arrays:
        values = np.zeros(len(self.params))
        gradients = np.zeros(self.params.shape)
        rows = _weighing(client.rows, ~is_held_out(client.rows))
        if rows.weight:
            objective = RowsObjective.of(client.model, rows)
            for number, params in enumerate(self.params):
                values[number], gradients[number] = objective.value_and_gradient(params)
        return {"values": values, "gradients": gradients, "fitted": np.array([rows.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        count = len(self.params)
        return {"values": (count,), "gradients": (count, *model.shape), "fitted": (1,)}


@record("query/held-out-losses")
@dataclass(frozen=True, eq=False)
class HeldOutLosses:
    """Losses at several parameters (m, ...), summed over held-out rows; their weight may be 0."""

    params: Array

    def answer(self, client: ClientData) -> Arrays:
        values = np.zeros(len(self.params))
        rows = _weighing(client.rows, is_held_out(client.rows))
        if rows.weight:
            objective = RowsObjective.of(client.model, rows)
            values[:] = [objective.value_and_gradient(params)[0] for params in self.params]
        return {"values": values, "held_out": np.array([rows.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"values": (len(self.params),), "held_out": (1,)}


def _weighing(rows: EmbeddingSet, chosen: NDArray[np.bool_]) -> EmbeddingSet:
    """The rows with weight 0 for all others, which copies nothing."""
    return replace(rows, weights=rows.row_weights * chosen)


@record("ridge/held-out")
@dataclass(frozen=True)
class HeldOut:
    """The ridge of the smallest C with nearly the least log loss on rows that clients hold out."""

    Cs: tuple[float, ...] = DECADES

    def __post_init__(self) -> None:
        if not self.Cs:
            raise InputError("C's to choose from are needed; found none. Pass one or more.")
        for C in self.Cs:
            check_C(C)

    def choose(self, stats: SufficientStats, intercept: Intercept) -> float:
        raise InputError(
            "C is chosen by the losses of rows that clients hold out; found statistics, which have "
            "none. Train by lbfgs or fedavg, or pass a number (--c)."
        )

    def losses(
        self, federation: Federation, *, stats: SufficientStats | None, progress: Progress = silent
    ) -> dict[float, float]:
        """The mean loss of the held-out rows at every C whose head the rounds reach.

        stats: the sums of all rows, to precondition by.
        """
        model = federation.model
        if not isinstance(model, LinearModel) or not isinstance(model.loss, CrossEntropy):
            raise InputError(
                f"C is of a logistic head; this is a {type(model).__name__} of "
                f"{type(model.loss).__name__}. Pass a number (--ridge)."
            )
        params = _minima(self.Cs, federation, model, stats, progress)
        if not params:
            raise SolverError(
                f"A minimum within {ROUNDS} rounds was expected for one C of {self.Cs}; found "
                "none. Normalize the rows, or pass a number (--c)."
            )
        sums = total(federation.ask(HeldOutLosses(np.stack(list(params.values())))))
        weight = float(sums.arrays["held_out"][0])
        if not weight:
            raise InputError(
                f"C is chosen by held-out rows; of {federation.rows} rows none was drawn. Pass a "
                "number (--c)."
            )
        means = sums.arrays["values"] / weight
        return {C: float(mean) for C, mean in zip(params, means, strict=True)}

    def best(
        self, federation: Federation, *, stats: SufficientStats | None, progress: Progress = silent
    ) -> float:
        """Of C's that are nearly equally good, the smallest."""
        losses = self.losses(federation, stats=stats, progress=progress)
        least = min(losses.values())
        return min(C for C, loss in losses.items() if loss <= (1 + ALIKE) * least)


def _minima(
    Cs: tuple[float, ...],
    federation: Federation,
    model: LinearModel,
    stats: SufficientStats | None,
    progress: Progress,
) -> dict[float, Array]:
    """The heads of the fitted rows, by C; in every round one question about all that go on."""
    start = model.start()
    first = total(federation.ask(FittedGradients(start[None])))
    weight = float(first.arrays["fitted"][0])
    if not weight:
        raise InputError(
            f"A head needs rows that are not held out; of {federation.rows} all were drawn. Pass a "
            "number (--c)."
        )
    penalties = {C: Penalty(model, InverseC(C).of(weight, model.classes)) for C in Cs}
    searches: dict[float, Search] = {}
    points: dict[float, Array] = {}
    for C, penalty in penalties.items():
        solver = Lbfgs(ROUNDS, math.sqrt(2 * penalty.ridge * GAP))
        inverse = identity if stats is None else whitener(model, stats, penalty.ridge)
        searches[C] = solver.search(start, precondition=inverse)
        points[C] = next(searches[C])
    minima: dict[float, Array] = {}
    sums = first.arrays
    for done in range(1, 2 * ROUNDS):
        for number, C in enumerate(list(points)):
            row = number if len(sums["values"]) > 1 else 0
            value = float(sums["values"][row]) / weight + penalties[C].value(points[C])
            gradient = sums["gradients"][row] / weight + penalties[C].gradient(points[C])
            try:
                points[C] = searches[C].send((value, gradient))
            except StopIteration as end:
                del points[C]
                if end.value.steps < ROUNDS:
                    minima[C] = end.value.value
        if not points:
            break
        progress(Step("choosing C", done, note=f"{len(minima)} of {len(Cs)} fitted"))
        sums = total(federation.ask(FittedGradients(np.stack(list(points.values()))))).arrays
    return {C: minima[C] for C in Cs if C in minima}
