"""Rows and groups left out in turn, in closed form, and the choice of a ridge by it.

The scores of left-out rows in the head of all others are Y - (I - H V)^-1 (Y - F): F their scores
in the head of all rows, H their block of the hat matrix, V their weights, all at the penalty of the
others: as n is their weight, theirs is smaller. For a single row this is e / (1 - h).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from probekit.arrays import Array, Indices, id_keys
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.linear.folds import number_groups
from probekit.linear.ridge import RidgePath, check_ridge, varying_directions
from probekit.linear.stats import SufficientStats, check_training_rows, sums_of_others

BLOCK_ELEMENTS = 1 << 21
CHUNK_ELEMENTS = 1 << 17
SPARE = 1e-9
"""Rows whose leverage is this close to 1 decide their own score: leaving them out has no answer."""
SAMPLE_ROWS = 50_000
SAMPLE_STREAM = 31


@dataclass(frozen=True, eq=False)
class RidgeSearch:
    """A ridge and how it was chosen: "manual", "leave-one-out", "leave-groups-out" or "gcv".

    ridges, errors: what it was chosen from; both empty where it was set by hand.
    """

    value: float
    method: str
    ridges: Array
    errors: Array

    @classmethod
    def best(cls, method: str, ridges: Array, errors: Array) -> RidgeSearch:
        """The ridge of the least error; of equals, the first."""
        return cls(float(ridges[int(np.argmin(errors))]), method, ridges, errors)

    @property
    def at_grid_edge(self) -> bool:
        return len(self.ridges) > 1 and self.value in (self.ridges[0], self.ridges[-1])


def search_ridge(
    path: RidgePath,
    embeddings: EmbeddingSet,
    ridge: float | str = "auto",
    *,
    groups: ArrayLike | None = None,
) -> RidgeSearch:
    """A ridge for the path of these embeddings.

    ridge: "auto" or "auto:loo", the least squared error on rows left out in turn; "auto:gcv", the
        least generalized cross-validation error, from the sums alone; or a number.
    groups: rows of one group are left out together; by default copies (equal ids) are.
    """
    if ridge == "auto:gcv":
        ridges = path.grid()
        return RidgeSearch.best("gcv", ridges, path.gcv_errors(ridges))
    if ridge not in ("auto", "auto:loo"):
        return RidgeSearch(check_ridge(ridge), "manual", np.zeros(0), np.zeros(0))
    ridges = path.grid()
    method = "leave-one-out" if groups is None else "leave-groups-out"
    errors = left_out_errors(path, embeddings, ridges, groups=groups)
    return RidgeSearch.best(method, ridges, errors)


def left_out_sample(
    path: RidgePath, embeddings: EmbeddingSet, ridge: float, *, groups: ArrayLike | None = None
) -> tuple[Indices, Array]:
    """Rows, of many SAMPLE_ROWS, and their scores in the head of the rows of all other groups.

    groups: one value per row; by default copies (equal ids) are a group.
    """
    parts = _sample(group_rows(embeddings, groups))
    pieces = list(leave_groups_out(path, embeddings, parts, np.array([check_ridge(ridge)])))
    rows = np.concatenate([numbers.ravel() for numbers, _ in pieces])
    scores = np.concatenate([values.reshape(-1, values.shape[-1]) for _, values in pieces])
    order = np.argsort(rows)
    return rows[order], scores[order]


def left_out_errors(
    path: RidgePath, embeddings: EmbeddingSet, ridges: Array, *, groups: ArrayLike | None = None
) -> Array:
    """The mean squared error of left-out rows at every ridge, (len(ridges),).

    Of many rows SAMPLE_ROWS are left out in turn; each error is exact.
    """
    for ridge in ridges:
        check_ridge(float(ridge))
    parts = _sample(group_rows(embeddings, groups))
    embeddings = replace(embeddings, columns={})
    weights = embeddings.row_weights
    alone = [part for part in parts if len(part) == 1 and weights[part[0]] == 1]
    together = [part for part in parts if len(part) > 1 or weights[part[0]] != 1]
    errors = np.zeros(len(ridges))
    if alone:
        errors += _single_errors(path, embeddings, np.concatenate(alone), ridges)
    for rows, scores in leave_groups_out(path, embeddings, together, ridges):
        targets = embeddings.take(rows.ravel()).target_matrix.reshape(*rows.shape, -1)
        errors += np.einsum("gm,rgmk->r", weights[rows], np.square(scores - targets))
    total = float(weights[np.concatenate(parts)].sum())
    return errors / (total * embeddings.outputs)


def group_rows(embeddings: EmbeddingSet, groups: ArrayLike | None) -> list[Indices]:
    """The row numbers of every group, in the order of the groups' first rows."""
    check_training_rows(embeddings)
    values = id_keys(embeddings.ids) if groups is None else groups
    number = number_groups(values, len(embeddings))
    order = np.argsort(number, kind="stable")
    return np.split(order, np.cumsum(np.bincount(number))[:-1])


def _sample(parts: list[Indices]) -> list[Indices]:
    """All groups, or some drawn at random until they have SAMPLE_ROWS rows; in order."""
    order = np.random.default_rng(SAMPLE_STREAM).permutation(len(parts))
    sizes = np.cumsum([len(parts[position]) for position in order])
    count = int(np.searchsorted(sizes, SAMPLE_ROWS)) + 1
    return [parts[position] for position in np.sort(order[:count])]


def leave_groups_out(
    path: RidgePath, embeddings: EmbeddingSet, parts: Sequence[Indices], ridges: Array
) -> Iterator[tuple[Indices, Array]]:
    """Row numbers (g, m) of g groups of m rows, and scores (len(ridges), g, m, k) without them."""
    sizes = np.array([len(part) for part in parts], np.int64)
    columns = len(path.vectors)
    # a hat matrix costs m^3 at every ridge, eigenvectors of the others about 8 d^3 for all of them
    large = (sizes > columns) | (len(ridges) * sizes**3 > 8 * columns**3)
    if large.any():
        refitted = [parts[int(position)] for position in np.flatnonzero(large)]
        yield from _refit(path, embeddings, refitted, ridges)
    for size in np.unique(sizes[~large]):
        equal = np.stack([part for part in parts if len(part) == size])
        outputs = max(size, embeddings.outputs)
        elements = equal.size * (outputs * len(ridges) + 2 * columns)
        for rows in np.array_split(equal, min(len(equal), 1 + elements // BLOCK_ELEMENTS)):
            yield rows, _hat_scores(path, embeddings, rows, ridges)


def _refit(
    path: RidgePath, embeddings: EmbeddingSet, parts: Sequence[Indices], ridges: Array
) -> Iterator[tuple[Indices, Array]]:
    """Groups of more rows than columns: the others' eigenvectors cost less than the hat matrix."""
    in_no_part = np.setdiff1d(np.arange(len(embeddings)), np.concatenate(parts))
    everything = [*parts, in_no_part] if len(in_no_part) else parts
    stats = [SufficientStats.from_rows(embeddings.take(part)) for part in everything]
    for part, retained in zip(parts, sums_of_others(stats), strict=False):
        without = RidgePath.of(retained, path.coordinates.intercept)
        rows = np.asarray(embeddings.rows[part], np.float64)
        params = [without.params(float(ridge)) for ridge in ridges]
        yield part[None], np.stack([rows @ head[:-1] + head[-1] for head in params])[:, None]


def _hat_scores(path: RidgePath, embeddings: EmbeddingSet, rows: Indices, ridges: Array) -> Array:
    """Scores of left-out groups (g, m) by the hat matrix, (len(ridges), g, m, k)."""
    size = rows.shape[1]
    members = embeddings.take(rows.ravel())
    rotated = path.coordinates.columns(members.rows) @ path.vectors
    shape = (*rows.shape, rotated.shape[1])
    targets = members.target_matrix.reshape(*rows.shape, -1)
    weights = members.row_weights.reshape(rows.shape)
    retained = path.weight - weights.sum(axis=1)
    scores = np.empty((len(ridges), *targets.shape))
    for position, ridge in enumerate(ridges):
        shifted = path.values + np.repeat(retained * ridge, size)[:, None]
        filtered = np.divide(rotated, shifted, out=np.zeros_like(rotated), where=shifted > 0)
        fitted = filtered @ path.rotated + path.coordinates.target_mean
        residuals = targets - fitted.reshape(targets.shape)
        hat = filtered.reshape(shape) @ rotated.reshape(shape).transpose(0, 2, 1)
        hat += _intercept_leverage(path)
        if ridge == ridges.min():  # leverages fall as the ridge grows
            roots = np.sqrt(weights)
            scaled = hat * roots[:, :, None] * roots[:, None, :]
            _check_spare(1 - np.linalg.eigvalsh(scaled)[:, -1], rows, float(ridge))
        system = np.eye(size) - hat * weights[:, None, :]
        scores[position] = targets - np.linalg.solve(system, residuals)
    return scores


def _intercept_leverage(path: RidgePath) -> float:
    return 1 / path.weight if path.coordinates.is_free else 0.0


def _check_spare(spare: Array, rows: Indices, ridge: float) -> None:
    """spare: the smallest eigenvalue of I - V^1/2 H V^1/2 of each group."""
    if spare.min() < SPARE:
        row = int(rows[int(np.argmin(spare)), 0])
        raise InputError(
            f"Row {row} and its group cannot be left out at ridge {ridge:g}: no other row varies "
            "in their direction (leverage 1). Pass larger ridges (--ridge)."
        )


def _single_errors(
    path: RidgePath, embeddings: EmbeddingSet, rows: Indices, ridges: Array
) -> Array:
    """The summed squared errors of rows of weight 1, each left out alone, at every ridge."""
    filters = _Filters.of(path, ridges)
    errors = np.zeros(len(ridges))
    elements = len(filters.mixing) * embeddings.outputs + embeddings.width
    length = max(16, BLOCK_ELEMENTS // elements)
    for start in range(0, len(rows), length):
        members = rows[start : start + length]
        block = embeddings.take(members)
        rotated = path.coordinates.columns(block.rows) @ path.vectors
        spare = 1 - (np.square(rotated) @ filters.inverse + _intercept_leverage(path))
        worst = int(np.argmin(spare.min(axis=0)))
        _check_spare(spare[:, worst], members[:, None], float(ridges[worst]))
        offsets = path.coordinates.target_mean - block.target_matrix
        squares = filters.squared_residuals(rotated, offsets)
        errors += (squares / np.square(spare)).sum(axis=0)
    return errors


@dataclass(frozen=True, eq=False)
class _Filters:
    """What ridges do to eigenvectors, s / (s + penalty), as a product of two thin matrices.

    The filters of neighboring ridges are nearly dependent (samples of one smooth family), so that
    their matrix has a numerical rank below the number of ridges, and so many products over the rows
    are enough for all of them.

    inverse: 1 / (s + penalty), (r, ridges).
    basis: (r, k * rank); mixing: (rank, ridges).
    """

    inverse: Array
    basis: Array
    mixing: Array

    @classmethod
    def of(cls, path: RidgePath, ridges: Array) -> _Filters:
        penalties = (path.weight - 1) * ridges
        if not (penalties > 0).all():
            raise InputError(
                f"Leave-one-out needs ridges above 0 and two rows or more; found "
                f"{ridges.min():g} and {path.count} rows."
            )
        varying = varying_directions(path.values)
        values = path.values
        shifted = values[:, None] + penalties
        ratios = np.where(varying[:, None], values[:, None] / shifted, 0.0)
        U, sizes, Vt = np.linalg.svd(ratios, full_matrices=False)
        rank = max(1, int(np.count_nonzero(sizes > 2 * np.finfo(np.float64).eps * sizes[0])))
        unfiltered = path.rotated / np.where(varying, values, np.inf)[:, None]
        basis = unfiltered[:, :, None] * (U[:, :rank] * sizes[:rank])[:, None, :]
        return cls(1 / shifted, basis.reshape(len(values), -1), Vt[:rank])

    def squared_residuals(self, rotated: Array, offsets: Array) -> Array:
        """|scores + offset|^2 of rows in the head of all rows, (rows, ridges)."""
        rank, ridges = self.mixing.shape
        products = (rotated @ self.basis).reshape(*offsets.shape, rank)
        squares = np.empty((len(rotated), ridges))
        length = max(1, CHUNK_ELEMENTS // (offsets.shape[1] * ridges))
        for start in range(0, len(rotated), length):  # so few that residuals stay in a core's cache
            chunk = slice(start, start + length)
            residuals = products[chunk].reshape(-1, rank) @ self.mixing
            residuals += offsets[chunk].reshape(-1, 1)
            residuals = residuals.reshape(-1, offsets.shape[1], ridges)
            squares[chunk] = np.einsum("mkr,mkr->mr", residuals, residuals)
        return squares
