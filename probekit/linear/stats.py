"""Sufficient statistics of rows for ridge regression: sums that add up over clients.

With z = [x 1] and row weights v they are the Gram sum v z z^T, the moment sum v z y^T and
sum v y^2. Few rows keep the triangular factor R of sqrt(v) [Z Y] = Q R instead, which is no larger
than the rows: then the Gram is R_z^T R_z and the moment R_z^T R_y. A root is the rows up to a
rotation, so it protects nobody's privacy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices, unit_rows
from probekit.embeddings import BLOCK, SHOWN_ROWS, UNLABELED, EmbeddingSet, Rows, non_finite_rows
from probekit.errors import InputError
from probekit.records import record
from probekit.rows import LazyRows, as_slice

STACK_ROWS = 2048
WEIGHT_TOLERANCE = 1e-9
BLOCK_BYTES = 1 << 24

Sums = tuple[Array, Array, Array]
"""Gram, moment and target squares."""


@record("stats")
@dataclass(frozen=True, eq=False)
class SufficientStats:
    """Sums over `count` rows of `weight` in all, p `columns` with the intercept's.

    They are Gram (p, p), moment (p, k) and target squares (k,), or their joint `root` (m, p + k).
    """

    count: int
    weight: float
    columns: int
    gram_sum: Array | None = None
    moment_sum: Array | None = None
    target_squares_sum: Array | None = None
    root: Array | None = None

    def __post_init__(self) -> None:
        if self.root is not None:
            fits = self.gram_sum is None and self.root.ndim == 2 and self.targets > 0
        else:
            p = self.columns
            shapes = [np.shape(array) for array in self._sums]
            fits = shapes == [(p, p), (p, *shapes[2]), shapes[2]] and len(shapes[2]) == 1
        if not fits or min(self.count, self.columns) < 1 or self.weight <= 0:
            raise InputError(
                f"Statistics of {self.count} rows and {self.columns} columns were expected; found "
                "other shapes. Summarize the rows again."
            )
        if self.root is None:
            ones = self.gram[-1, -1]
        else:
            ones = self.root[:, self.columns - 1] @ self.root[:, self.columns - 1]
        if not abs(ones - self.weight) <= WEIGHT_TOLERANCE * self.weight:
            raise InputError(
                f"The Gram must end with the rows' weight, {self.weight:g}; found {ones:g}. "
                "Summarize the rows again."
            )

    @classmethod
    def from_rows(cls, embeddings: EmbeddingSet) -> Self:
        """The statistics of these rows: a root where it is less than a quarter of the Gram."""
        check_training_rows(embeddings)
        columns = embeddings.width + 1
        count = len(embeddings)
        if is_few(count, columns):
            return cls(count, embeddings.weight, columns, root=_root_of(embeddings))
        sums = _zeros(columns, embeddings.outputs)
        start = 0
        for block in embeddings.blocks(block_rows(embeddings.width)):
            _add(sums, _block_sums(block, start))
            start += len(block)
        return cls(count, embeddings.weight, columns, *sums)

    @property
    def _sums(self) -> Sums:
        """A root keeps its own size: 10,000 of them are much less than 10,000 Grams."""
        if self.root is not None:
            return _products(self.root, self.columns)
        return self.gram_sum, self.moment_sum, self.target_squares_sum  # type: ignore[return-value]

    @property
    def gram(self) -> Array:
        """sum v z z^T, (p, p)."""
        return self._sums[0]

    @property
    def moment(self) -> Array:
        """sum v z y^T, (p, k)."""
        return self._sums[1]

    @property
    def target_squares(self) -> Array:
        """sum v y^2, (k,)."""
        if self.root is not None:
            return np.asarray(np.square(self.root[:, self.columns :]).sum(axis=0))
        return self._sums[2]

    @property
    def targets(self) -> int:
        """k, the columns of the targets."""
        if self.root is not None:
            return int(self.root.shape[1]) - self.columns
        return int(self.moment.shape[1])

    def __add__(self, other: Self) -> SufficientStats:
        return sum_stats([self, other])


def block_rows(width: int) -> int:
    """How many rows are multiplied at once: few enough that rounding does not grow with the set."""
    return max(64, min(BLOCK, BLOCK_BYTES // (8 * width)))


def is_few(rows: int, columns: int) -> bool:
    """Whether so many rows keep a root: it is less than a quarter of the Gram.

    A root's rounding grows with the square of its rows, and certificates with it.
    """
    return 4 * rows < columns


def sum_stats(parts: Iterable[SufficientStats]) -> SufficientStats:
    """The sum of statistics; the same parts in the same order give the same bits.

    Roots wait until a stack of them is worth a product.
    """
    count = 0
    weight = 0.0
    roots: list[Array] = []
    stacked = 0
    for part in parts:
        if not count:
            columns = part.columns
            sums = _zeros(columns, part.targets)
        if part.columns != columns or part.targets != sums[1].shape[1]:
            raise InputError(
                f"Statistics of {columns} columns and {sums[1].shape[1]} targets were expected; "
                f"found {part.columns} and {part.targets}. Summarize all clients for one model."
            )
        count += part.count
        weight += part.weight
        if part.root is None:
            _add(sums, part._sums)
            continue
        if stacked + len(part.root) > STACK_ROWS:
            _add_roots(sums, roots)
            roots = []
            stacked = 0
        roots.append(part.root)
        stacked += len(part.root)
    if not count:
        raise InputError("A sum needs statistics; found no client. Retain at least one.")
    _add_roots(sums, roots)
    return SufficientStats(count, weight, columns, *sums)


def _zeros(columns: int, targets: int) -> Sums:
    return np.zeros((columns, columns)), np.zeros((columns, targets)), np.zeros(targets)


def _add(sums: Sums, parts: Sums) -> None:
    for total, part in zip(sums, parts, strict=True):
        total += part


def _add_roots(sums: Sums, roots: list[Array]) -> None:
    if roots:
        _add(sums, _products(np.vstack(roots), len(sums[0])))


def sums_of_others(parts: Sequence[SufficientStats]) -> list[SufficientStats]:
    """For each part the sum of all others; added anew, as subtracting would cancel digits."""
    if len(parts) < 2:
        raise InputError(f"Leaving parts out needs two or more; found {len(parts)}.")
    before = list(accumulate(parts[:-1], SufficientStats.__add__))
    after = list(accumulate(parts[:0:-1], SufficientStats.__add__))[::-1]
    middle = [first + last for first, last in zip(before, after[1:], strict=False)]
    return [after[0], *middle, before[-1]]


def check_training_rows(embeddings: EmbeddingSet) -> None:
    """Refuse sets without rows, without labels, or with rows that have none."""
    if not len(embeddings):
        raise InputError(f"Training needs rows; {embeddings.source or 'this set'} has none.")
    if embeddings.labels is None and embeddings.targets is None:
        raise InputError(f"{embeddings.source} has no labels. Pass labels (--labels FILE).")
    if embeddings.labels is not None:
        unlabeled = np.flatnonzero(embeddings.labels == UNLABELED)
        if len(unlabeled):
            raise InputError(
                f"Training rows need labels; {len(unlabeled)} of {len(embeddings)} have none "
                f"(first: {unlabeled[:SHOWN_ROWS].tolist()}). Use embeddings.labeled()."
            )
    if embeddings.weights is None:
        return
    weights = embeddings.weights
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise InputError(
            f"Weights must be finite, 0 or more and not all 0; found {weights.min():g} to "
            f"{weights.max():g}."
        )


def with_ones(rows: NDArray[Any]) -> Array:
    """[x 1] in float64."""
    Z = np.empty((len(rows), rows.shape[1] + 1))
    Z[:, :-1] = rows
    Z[:, -1] = 1.0
    return Z


class UnitRows(LazyRows):
    """Rows divided by their norms when they are read, in float64; zeros stay zeros."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(len(rows), rows.shape[1], np.dtype(np.float64))
        self.rows = rows

    def gather(self, indices: Indices) -> NDArray[Any]:
        return unit_rows(self.rows[as_slice(indices)])


def normalized(embeddings: EmbeddingSet, normalize: str) -> EmbeddingSet:
    """The set as a head sees it: rows as they are ("none") or of norm 1 ("l2")."""
    if normalize == "none":
        return embeddings
    if normalize != "l2":
        raise InputError(f"normalize must be 'none' or 'l2'; found {normalize!r}.")
    return replace(embeddings, rows=UnitRows(embeddings.rows))


def _root_of(embeddings: EmbeddingSet) -> Array:
    """The factor R of sqrt(v) [Z Y] = Q R, its diagonal not negative.

    Each class is summed by itself, so that its column has the same bits whatever others there are.
    """
    rows = np.asarray(embeddings.rows)
    scale = np.sqrt(embeddings.row_weights)[:, None]
    Q, R = np.linalg.qr(scale * with_ones(rows))
    if embeddings.labels is None:
        targets = Q.T @ (scale * embeddings.target_matrix)
    else:
        targets = _class_sums(Q, embeddings.labels, scale[:, 0], embeddings.outputs)
    root = np.hstack([R, targets])
    with np.errstate(over="ignore", invalid="ignore"):
        _check_squares(np.vdot(root, root), rows, 0)
    signs = np.where(np.diagonal(root) < 0, -1.0, 1.0)
    return np.asarray(root * signs[:, None])


def _block_sums(block: EmbeddingSet, start: int) -> Sums:
    """Gram, moment and target squares; labels are summed by class, never one-hot."""
    rows = np.asarray(block.rows)
    scale = np.sqrt(block.row_weights)
    Z = with_ones(rows)
    if block.weights is not None:
        Z *= scale[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        gram = Z.T @ Z  # NumPy sees one matrix and does half of the work (SYRK)
    _check_squares(np.trace(gram), rows, start)
    if block.targets is None:
        assert block.labels is not None
        moment = _class_sums(Z, block.labels, scale, block.outputs)
        return gram, moment, moment[-1].copy()
    targets = scale[:, None] * block.targets
    return gram, Z.T @ targets, np.square(targets).sum(axis=0)


def _class_sums(Z: Array, labels: Indices, weights: Array, classes: int) -> Array:
    """The weighted sum of the rows of each class, (p, k)."""
    from scipy.sparse import csr_array

    shape = (len(labels), classes)
    indicator = csr_array((weights, labels, np.arange(len(labels) + 1)), shape=shape)
    return np.asarray(indicator.T @ Z).T


def _check_squares(total: float, rows: NDArray[Any], start: int) -> None:
    """Refuse rows whose sum of squares is not finite: they hold NaN or infinity, or overflow."""
    if np.isfinite(total):
        return
    bad = non_finite_rows(rows)
    if len(bad):
        raise InputError(
            f"Vectors must be finite; {len(bad)} rows hold NaN or infinity (first: "
            f"{(start + bad[:SHOWN_ROWS]).tolist()}). Leave them out (--on-error skip)."
        )
    raise InputError(f"The squares of {len(rows)} rows overflow. Scale the vectors down.")


def _products(root: Array, columns: int) -> Sums:
    Z = np.ascontiguousarray(root[:, :columns])
    Y = root[:, columns:]
    return Z.T @ Z, Z.T @ Y, np.square(Y).sum(axis=0)
