"""Every ridge from one eigendecomposition: parameters, effective dimension, condition, exact leave-one-out.

gram = Q diag(s) Q^T, so value(penalty) = Q diag(1 / (s + penalty)) Q^T moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from probekit.errors import InputError
from probekit.learning import ClientStats
from probekit.linear.ridge import penalty_of, refuse_singular
from probekit.linear.statistics import checked_labels, row_blocks
from probekit.linear.views import ClassWeight, System, View, system_of
from probekit.values import Rows

Array = NDArray[np.float64]
BLOCK_ELEMENTS = 2**21
CLOSE_TO_ONE = 1e-9


@dataclass(frozen=True, eq=False)
class RidgePath:
    """A system in the eigenvectors of its Gram: each ridge costs a scaled product."""

    system: System
    scaling: str
    values: Array
    vectors: Array
    rotated: Array

    def penalties(self, ridges: Array, *, weight: float | None = None) -> Array:
        """What each ridge adds to the Gram's diagonal."""
        total = self.system.weight if weight is None else weight
        return np.array([penalty_of(float(ridge), self.scaling, total) for ridge in np.atleast_1d(ridges)])

    def params(self, ridge: float) -> Array:
        """The head's (d+1, k) parameters at this ridge."""
        penalty = self.penalties(np.array([ridge]))[0]
        if penalty == 0:
            refuse_singular(self.system.gram)
        return self.system.lift(self.vectors @ (self.rotated / (self.values + penalty)[:, None]))

    def effective_dimension(self, ridge: float) -> float:
        """tr G (G + penalty)^-1: how many of the penalised directions the data decide rather than the ridge."""
        penalty = self.penalties(np.array([ridge]))[0]
        kept = self.values[self.values > 0]
        return float((kept / (kept + penalty)).sum())

    def condition(self, ridge: float) -> float:
        """The condition number of the matrix that is solved at this ridge."""
        shifted = self.values + self.penalties(np.array([ridge]))[0]
        return float(shifted.max() / shifted.min()) if shifted.min() > 0 else float("inf")

    def grid(self, count: int = 45) -> Array:
        """Ridges from 1e-8 to 10 times the mean squared norm of the system's rows, evenly spaced in the logarithm."""
        size = float(self.values.sum())
        size = size / self.system.weight if self.scaling == "mean" else size
        if not size > 0:
            raise InputError("A ridge cannot be chosen for embeddings that are all alike. Give one.")
        return np.geomspace(1e-8, 10.0, count) * size


def decompose(
    stats: ClientStats,
    *,
    scaling: str = "mean",
    view: str | View = "none",
    class_weight: ClassWeight = None,
    targets: tuple[float, float] = (0.0, 1.0),
) -> RidgePath:
    """The ridge path of these statistics."""
    system = system_of(stats, view=view, class_weight=class_weight, targets=targets)
    penalty_of(1.0, scaling, system.weight)
    values, vectors = linalg.eigh(system.gram, driver="evd")
    return RidgePath(system, scaling, np.maximum(values, 0.0), vectors, vectors.T @ system.moment)


@dataclass(frozen=True, eq=False)
class Validation:
    """The error of every ridge on rows that were left out: mean squared, and the share of wrong classes if known."""

    scheme: str
    ridges: Array
    squared: Array
    wrong: Array | None = None

    def best(self, by: str = "squared") -> float:
        """The ridge with the smallest error; of equals, the first."""
        errors = {"squared": self.squared, "wrong": self.wrong}.get(by)
        if errors is None:
            raise InputError(f"{self.scheme} has no errors by {by!r} to choose by. Choose by squared error.")
        return float(self.ridges[int(np.argmin(errors))])


def leave_one_out(
    path: RidgePath, rows: Rows, labels: NDArray[Any], *, ridges: Array | None = None
) -> Validation:
    """The exact error of leaving each row out in turn, for every ridge, from one pass over the rows.

    Rows are those the path was made from. A left-out row's error is e_i / (1 - h_i), with e_i its error and h_i its
    leverage x_i^T (gram + penalty)^-1 x_i, plus its share of a free intercept. With the ridge scaled by the mean,
    the head without a row has one row's penalty less; so have e_i and h_i here. Views and class weights are held.
    """
    system = path.system
    labels = checked_labels(labels, len(rows), system.design.classes)
    ridges = path.grid() if ridges is None else np.asarray(ridges, dtype=np.float64)
    filters = _Filters.of(path, ridges)
    weights = system.class_weights[labels]
    squared, wrong = np.zeros(len(ridges)), np.zeros(len(ridges))
    length = max(16, BLOCK_ELEMENTS // ((len(ridges) + filters.rank) * system.moment.shape[1]))
    for numbers, block in row_blocks(rows, system.design, chunk_rows=length):
        own, rotated = weights[numbers], system.columns(block.astype(np.float64, copy=False)) @ path.vectors
        spare = 1 - filters.leverages(rotated, own)
        if spare.min(initial=1.0) < CLOSE_TO_ONE:
            ridge, row = np.unravel_index(np.argmin(spare), spare.shape)
            raise InputError(
                f"Leaving row {numbers[row]} out says nothing at ridge {ridges[ridge]:g}: the head there depends on "
                "that row alone (leverage 1). Try larger ridges."
            )
        errors, misses = _left_out(filters.scores(rotated), labels[numbers], spare, system=system)
        squared += errors @ own
        wrong += misses @ own
    total = system.weight
    return Validation("leave-one-out", ridges, squared / (total * system.moment.shape[1]), wrong / total)


@dataclass(frozen=True, eq=False)
class _Filters:
    """What each ridge does to each eigenvector, s / (s + penalty), as a product of two thin matrices.

    The filters of neighbouring ridges are nearly dependent (they are samples of one smooth family), so their
    matrix has a numerical rank well below the number of ridges and fewer products over the rows are needed.
    """

    inverse: Array
    basis: Array
    mixing: Array
    unfiltered: Array
    bias: float
    offset: Array

    @classmethod
    def of(cls, path: RidgePath, ridges: Array) -> _Filters:
        system, values = path.system, path.values
        # one row less: in mean scaling its share of the penalty goes with it
        penalties = path.penalties(ridges, weight=system.weight - 1)
        if not (penalties > 0).all():
            raise InputError(
                f"Leave-one-out needs ridges above 0 and at least two rows; found {ridges.min():g}."
            )
        kept = values > len(values) * np.finfo(np.float64).eps * values.max(initial=0.0)
        filters = np.where(kept[:, None], values[:, None] / (values[:, None] + penalties), 0.0)
        left, sizes, right = np.linalg.svd(filters, full_matrices=False)
        rank = max(1, int(np.count_nonzero(sizes > 1e-11 * sizes[0])))
        unfiltered = path.rotated / np.where(kept, values, np.inf)[:, None]
        free = system.design.intercept == "free"
        offset = system.mean_target if free else np.zeros(system.moment.shape[1])
        mixing = np.ascontiguousarray((sizes[:rank, None] * right[:rank]).T)
        inverse = 1 / (values[:, None] + penalties)
        return cls(inverse, left[:, :rank], mixing, unfiltered, 1 / system.weight if free else 0.0, offset)

    @property
    def rank(self) -> int:
        return int(self.mixing.shape[1])

    def leverages(self, rotated: Array, weights: Array) -> Array:
        """(ridges, rows)"""
        return ((np.square(rotated) @ self.inverse + self.bias) * weights[:, None]).T

    def scores(self, rotated: Array) -> Array:
        """(ridges, rows, classes)"""
        parts = np.stack([rotated @ (column[:, None] * self.unfiltered) for column in self.basis.T])
        mixed = self.mixing @ parts.reshape(self.rank, -1)
        return mixed.reshape(len(mixed), *parts.shape[1:]) + self.offset


def _left_out(
    scores: Array, labels: NDArray[np.int64], spare: Array, *, system: System
) -> tuple[Array, Array]:
    """Squared error summed over classes and whether the class is wrong, (ridges, rows), each row left out in turn.

    A left-out row's score is (f - h y) / (1 - h): its class is wrong where another's f exceeds its own less h (y
    being `low` for all but its own class).
    """
    low, high = system.targets
    every = np.arange(len(labels))
    own = scores[:, every, labels]
    scores[:, every, labels] = -np.inf
    wrong = scores.max(axis=2) > own - (1 - spare) * (high - low)
    scores[:, every, labels] = own - (high - low)
    if low:
        scores -= low
    return np.einsum("rmk,rmk->rm", scores, scores) / np.square(spare), wrong.astype(np.float64)
