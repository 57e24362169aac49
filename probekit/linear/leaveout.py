"""Exact leave-one-out for every ridge from one pass over the rows, and the choice of a ridge by it.

A left-out row's error is e_i / (1 - h_i): e_i its error in the head of all rows, h_i = x_i^T (gram +
penalty)^-1 x_i its leverage (plus its share of a free intercept).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from probekit.errors import InputError
from probekit.linear.path import Array, RidgePath, Validation
from probekit.linear.statistics import checked_labels, row_blocks
from probekit.linear.system import System
from probekit.values import Rows

BLOCK_ELEMENTS = 2**21
CHOICE_STREAM = 31
LONE = 1e-9
"""A row whose leverage is this close to 1 is fitted by itself alone: leaving it out has no answer."""
DELICATE = 1e-2
"""Rows whose leverage is this close to 1 are always done in float64: their errors are divided by it."""
MARGIN = 1e-5
"""Ridges whose float32 errors are this close (relative) to the best compete again in float64."""


def choose_ridge(
    path: RidgePath,
    rows: Rows,
    labels: NDArray[Any],
    *,
    ridges: Array | None = None,
    most: int | None = None,
    seed: int = 0,
) -> tuple[float, Validation]:
    """The ridge with the smallest leave-one-out squared error, and the errors of all.

    Where there are more than `most` rows, that many are drawn; each one's error is exact, in the head of all others.

    All ridges are tried in float32 (errors to about 1e-7, relative); those that come near the best compete again
    in float64, so that the choice is that of float64.
    """
    ridges = path.grid() if ridges is None else np.asarray(ridges, dtype=np.float64)
    if most is not None and len(rows) > most:
        drawn = np.sort(np.random.default_rng([seed, CHOICE_STREAM]).choice(len(rows), most, replace=False))
        rows, labels = rows[drawn], np.asarray(labels)[drawn]
    return refined_choice(
        ridges, lambda some, dtype: leave_one_out(path, rows, labels, ridges=some, dtype=np.dtype(dtype))
    )


def refined_choice(ridges: Array, errors: Callable[[Array, str], Validation]) -> tuple[float, Validation]:
    """The best of these ridges: all in float32, then those that come near the best in float64."""
    coarse = errors(ridges, "float32")
    near = coarse.squared <= coarse.squared.min() * (1 + MARGIN)
    if np.count_nonzero(near) == 1:
        return coarse.best(), coarse
    fine = errors(ridges[near], "float64")
    squared, wrong = coarse.squared.copy(), None if coarse.wrong is None else coarse.wrong.copy()
    squared[near] = fine.squared
    if wrong is not None:
        wrong[near] = fine.wrong
    return fine.best(), Validation(fine.scheme, ridges, squared, wrong)


def leave_one_out(
    path: RidgePath, rows: Rows, labels: NDArray[Any], *, ridges: Array | None = None, dtype: DTypeLike = np.float64
) -> Validation:
    """The error of leaving each row out in turn, for every ridge. Rows are those the path was made from.

    With the ridge scaled by the mean, the head without a row has one row's share of the penalty less; so have
    e_i and h_i here. Views and class weights stay those of all rows. `dtype` is that of the arithmetic.
    """
    ridges = path.grid() if ridges is None else np.asarray(ridges, dtype=np.float64)
    sums = left_out_sums(path, rows, labels, ridges=ridges, dtype=dtype)
    return validation_of(path, ridges, *sums, weight=float(path.system.class_weights[labels].sum()))


def validation_of(
    path: RidgePath, ridges: Array, squared: Array, wrong: Array, *, weight: float | None = None
) -> Validation:
    """Mean errors from the sums over all rows, or over those of this weight."""
    total = path.system.weight if weight is None else weight
    return Validation("leave-one-out", ridges, squared / (total * path.system.design.classes), wrong / total)


def left_out_sums(
    path: RidgePath, rows: Rows, labels: NDArray[Any], *, ridges: Array, dtype: DTypeLike = np.float64
) -> tuple[Array, Array]:
    """For every ridge the sum over these rows of squared errors, and of wrong classes, when each is left out."""
    system = path.system
    labels = checked_labels(labels, len(rows), system.design.classes)
    weights = system.class_weights[labels]
    squared, wrong = np.zeros(len(ridges)), np.zeros(len(ridges))
    for numbers, scores, spare in filtered_scores(path, rows, weights, ridges=ridges, dtype=dtype):
        errors, misses = _left_out(scores, labels[numbers], spare, system=system)
        squared += weights[numbers] @ errors
        wrong += weights[numbers] @ misses
    return squared, wrong


def filtered_scores(
    path: RidgePath, rows: Rows, weights: Array, *, ridges: Array, dtype: DTypeLike
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], Array]]:
    """Row numbers, scores (rows, classes, ridges) and what each row's leverage lacks to 1, some rows at a time."""
    system = path.system
    chosen = _Filters.of(path, ridges, dtype=dtype)
    exact = chosen if dtype == np.float64 else None
    length = max(16, BLOCK_ELEMENTS // ((len(ridges) + len(chosen.mixing)) * system.design.classes))
    for numbers, block in row_blocks(rows, system.design, chunk_rows=length):
        own, filters = weights[numbers], chosen
        rotated, spare = filters.rotate(block, own)
        if filters is not exact and spare.min() < DELICATE:
            filters = exact = exact or _Filters.of(path, ridges, dtype=np.float64)
            rotated, spare = filters.rotate(block, own)
        if spare.min() < LONE:
            row, ridge = np.unravel_index(np.argmin(spare), spare.shape)
            raise InputError(
                f"Row {numbers[row]} cannot be left out at ridge {ridges[ridge]:g} (leverage 1). Try larger ridges."
            )
        yield numbers, filters.scores(rotated), spare


@dataclass(frozen=True, eq=False)
class _Filters:
    """What each ridge does to each eigenvector, s / (s + penalty), as a product of two thin matrices.

    The filters of neighbouring ridges are nearly dependent (samples of one smooth family), so their matrix
    has a numerical rank below the number of ridges, and that many products over the rows are enough.
    """

    system: System
    bias: float
    vectors: NDArray[Any]
    inverse: NDArray[Any]
    basis: NDArray[Any]
    mixing: NDArray[Any]
    offset: NDArray[Any]

    @classmethod
    def of(cls, path: RidgePath, ridges: Array, *, dtype: DTypeLike) -> _Filters:
        system, values = path.system, path.values
        penalties = path.penalties(ridges, weight=system.weight - 1)
        if not (penalties > 0).all():
            raise InputError(f"Leave-one-out needs ridges above 0 and two rows or more; found {ridges.min():g}.")
        kept = values > len(values) * np.finfo(np.float64).eps * values.max(initial=0.0)
        filters = np.where(kept[:, None], values[:, None] / (values[:, None] + penalties), 0.0)
        left, sizes, right = np.linalg.svd(filters, full_matrices=False)
        rank = max(1, int(np.count_nonzero(sizes > 2 * np.finfo(dtype).eps * sizes[0])))
        unfiltered = path.rotated / np.where(kept, values, np.inf)[:, None]
        basis = unfiltered[:, :, None] * (left[:, :rank] * sizes[:rank])[:, None, :]
        free = system.design.intercept == "free"
        inverse, offset = 1 / (values[:, None] + penalties), system.mean_target * free - system.targets[0]
        arrays = (path.vectors, inverse, basis.reshape(len(values), -1), right[:rank], offset)
        return cls(system, 1 / system.weight if free else 0.0, *(one.astype(dtype) for one in arrays))

    def rotate(self, block: NDArray[Any], weights: Array) -> tuple[NDArray[Any], Array]:
        """Rows in the eigenvectors of the Gram, and what the leverage of each lacks to 1 at each ridge."""
        rotated: NDArray[Any] = self.system.columns(block).astype(self.vectors.dtype, copy=False) @ self.vectors
        return rotated, 1 - (np.square(rotated) @ self.inverse + self.bias) * weights[:, None]

    def scores(self, rotated: NDArray[Any]) -> NDArray[Any]:
        """The head's scores above the lower target, (rows, classes, ridges)."""
        scores: NDArray[Any] = (rotated @ self.basis).reshape(-1, len(self.mixing)) @ self.mixing
        scores = scores.reshape(len(rotated), -1, scores.shape[1])
        scores += self.offset[:, None]
        return scores


def _left_out(scores: NDArray[Any], labels: NDArray[np.int64], spare: Array, *, system: System) -> tuple[Array, Array]:
    """Squared errors summed over classes, whether the class is wrong, of each left-out row: (rows, ridges).

    A left-out row's score is (f - h y) / (1 - h), so its class is wrong where another's f exceeds its own
    less h (high - low). Scores arrive with `low` taken off and are overwritten by errors.
    """
    reach = system.targets[1] - system.targets[0]
    every = np.arange(len(labels))
    own = scores[every, labels]
    scores[every, labels] = -np.inf
    wrong = scores.max(axis=1) > own - (1 - spare) * reach
    scores[every, labels] = own - reach
    squares = np.einsum("mkr,mkr->mr", scores, scores)
    return squares / np.square(spare), wrong.astype(np.float64)
