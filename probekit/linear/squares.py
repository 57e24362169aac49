"""The sum of squares |offset + J(params) - targets|^2 of an affine model and its curvature, however rows are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.solvers import Inverse, Operator
from probekit.linear.spectrum import largest_eigenvalue, rows_effective_dimension
from probekit.linear.statistics import checked_labels, row_blocks, statistics
from probekit.linear.targets import TargetDesign
from probekit.values import Rows

Array = NDArray[np.float64]
KEPT_BYTES = 1 << 25
"""Rows of at most this size are made ready once, not for every product."""


class Squares(Protocol):
    """|offset + J(params) - targets|^2 as a function of params, however the rows are held."""

    @property
    def count(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def free(self) -> int:
        """How many of the last rows of the parameters are not penalised."""
        return 0

    def value(self, params: Array) -> float: ...
    def gradient(self, params: Array) -> Array:
        """Half the gradient: J^T (offset + J(params) - targets)."""

    def product(self, v: Array) -> Array:
        """J^T J v."""

    def dense(self) -> Array | None:
        """J^T J, or None where it is too large."""
        return None


class CurvedSquares(Squares, Protocol):
    """Squares that know their curvature: how large it is, and how to invert it."""

    @property
    def rank(self) -> int:
        """In how many directions there can be any curvature."""

    def energy(self) -> float:
        """|J|^2, at most."""

    def target_energy(self) -> float:
        """|targets - offset|^2."""

    def largest_curvature(self, ridge: float) -> float:
        """The largest eigenvalue of J^T J / n + ridge."""

    def effective_dimension(self, ridge: float) -> float | None:
        """tr J^T J / n (J^T J / n + ridge)^-1; None where that takes too long."""

    def inverse(self, ridge: float) -> Operator:
        """The inverse of J^T J / n + ridge, exact or close: a preconditioner."""

    def work(self, products: int, *, factored: bool) -> int:
        """The operations of so many products with the curvature, and of factoring it."""


@dataclass(frozen=True, eq=False)
class Curvature(Operator):
    """J^T J / n + ridge (on penalised rows): the second derivative of the mean ridge loss."""

    squares: Squares
    ridge: float

    def __post_init__(self) -> None:
        if self.squares.count == 0:
            raise InputError("The loss of no rows is not defined. Give at least one row.")

    def matvec(self, v: Array) -> Array:
        """The curvature applied to each column."""
        product = 1 / self.squares.count * self.squares.product(v)
        kept = len(v) - self.squares.free
        product[:kept] += self.ridge * v[:kept]
        return product

    def dense(self) -> Array | None:
        """Its matrix, where the squares have one."""
        if (gram := self.squares.dense()) is None:
            return None
        matrix, kept = 1 / self.squares.count * gram, np.arange(len(gram) - self.squares.free)
        matrix[kept, kept] += self.ridge
        return matrix


class _HeadSquares(CurvedSquares, Protocol):
    """What all squares of a head share; their targets are one-hot."""

    design: Design

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters."""
        return (self.design.columns, self.design.classes)

    @property
    def free(self) -> int:
        """Of a free intercept, one."""
        return int(self.design.intercept == "free")

    @property
    def rank(self) -> int:
        """No more than rows and columns."""
        return min(self.count, self.shape[0])

    def target_energy(self) -> float:
        """One-hot rows have norm 1."""
        return float(self.count)


@dataclass(frozen=True, eq=False)
class StatsSquares(_HeadSquares):
    """The squares of a head, from statistics alone."""

    stats: ClientStats
    design: Design = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.stats.design, TargetDesign):
            raise InputError("This is of heads of classes; several labels and real targets have none.")
        object.__setattr__(self, "stats", self.stats.loaded.dense)
        object.__setattr__(self, "design", self.stats.design)

    @property
    def count(self) -> int:
        """How many rows."""
        return self.stats.count

    def value(self, params: Array) -> float:
        """The sum of squares."""
        inner = self.product(params) - 2 * self.stats.moment
        return max(float((params * inner).sum()) + self.count, 0.0)

    def gradient(self, params: Array) -> Array:
        """Half its gradient."""
        return np.asarray(self.product(params) - self.stats.moment)

    def product(self, v: Array) -> Array:
        """The Gram applied."""
        return np.asarray(self.stats.total_gram @ v)

    def dense(self) -> Array | None:
        """The Gram."""
        return self.stats.total_gram

    def energy(self) -> float:
        """The Gram's trace."""
        return float(np.trace(self.stats.total_gram))

    def largest_curvature(self, ridge: float) -> float:
        """Of the dense curvature."""
        return largest_eigenvalue(self._curvature(ridge))

    def effective_dimension(self, ridge: float) -> float | None:
        """From the Gram's eigenvalues."""
        return rows_effective_dimension(self.stats, ridge)

    def inverse(self, ridge: float) -> Operator:
        """Factored once."""
        return Inverse.of(self._curvature(ridge))

    def work(self, products: int, *, factored: bool) -> int:
        """A Cholesky factorisation, and products of matrices."""
        d, k = self.shape
        return factored * d**3 // 3 + 2 * d * d * k * products

    def _curvature(self, ridge: float) -> Array:
        matrix = self.stats.total_gram / self.count
        kept = np.arange(len(matrix) - self.free)
        matrix[kept, kept] += ridge
        return np.asarray(matrix)


@dataclass(frozen=True, eq=False)
class RowSquares(_HeadSquares):
    """The squares of a head, from the rows themselves, a block at a time; the Gram is never formed."""

    rows: Rows
    labels: NDArray[Any]
    design: Design

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", checked_labels(self.labels, len(self.rows), self.design.classes))

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.rows)

    def value(self, params: Array) -> float:
        """The sum of squares."""
        return float(sum(np.square(self._residual(block, numbers, params)).sum() for numbers, block in self._blocks()))

    def gradient(self, params: Array) -> Array:
        """Half its gradient."""
        total = np.zeros(self.shape)
        for numbers, block in self._blocks():
            total += block.T @ self._residual(block, numbers, params)
        return total

    def product(self, v: Array) -> Array:
        """X^T (X v)."""
        total = np.zeros(v.shape)
        for _, block in self._blocks():
            total += block.T @ (block @ v)
        return total

    def energy(self) -> float:
        """The sum of the rows' squares, column of ones included."""
        found = (np.square(block, dtype=np.float64).sum() for _, block in row_blocks(self.rows, self.design))
        return float(sum(found)) + self.count * (self.design.columns - self.design.dimension)

    def largest_curvature(self, ridge: float) -> float:
        """By products with the rows."""
        kept = self.shape[0] - self.free

        def product(v: Array) -> Array:
            found = self.product(v) / self.count
            found[:kept] += ridge * v[:kept]
            return np.asarray(found)

        return largest_eigenvalue(product, size=self.shape[0])

    def largest_row_curvature(self) -> float:
        """The largest squared norm of a row."""
        ones = self.design.columns - self.design.dimension
        found = (np.square(b, dtype=np.float64).sum(axis=1).max() for _, b in row_blocks(self.rows, self.design))
        return float(max(found)) + ones

    def effective_dimension(self, ridge: float) -> float | None:
        """By their statistics."""
        return self._summed().effective_dimension(ridge)

    def inverse(self, ridge: float) -> Operator:
        """By their statistics."""
        return self._summed().inverse(ridge)

    def work(self, products: int, *, factored: bool) -> int:
        """Two products of matrices for each."""
        d, k = self.shape
        return factored * (self.count * d * d + d**3 // 3) + 4 * self.count * d * k * products

    def _summed(self) -> StatsSquares:
        return StatsSquares(statistics(self.rows, self.labels, self.design))

    def _blocks(self) -> Iterator[tuple[NDArray[np.int64], Array]]:
        few = 8 * self.count * self.design.columns <= KEPT_BYTES
        return iter(self._few_blocks) if few else self._made_blocks()

    @cached_property
    def _few_blocks(self) -> list[tuple[NDArray[np.int64], Array]]:
        """Kept while many steps follow: making them takes longer than a product with them."""
        return list(self._made_blocks())

    def _made_blocks(self) -> Iterator[tuple[NDArray[np.int64], Array]]:
        for numbers, block in row_blocks(self.rows, self.design):
            block = block.astype(np.float64, copy=False)
            ones = np.ones((len(block), self.design.columns - self.design.dimension))
            yield numbers, np.hstack([block, ones]) if ones.size else block

    def _residual(self, block: Array, numbers: NDArray[np.int64], params: Array) -> Array:
        outputs = block @ params
        outputs[np.arange(len(numbers)), self.labels[numbers]] -= 1
        return outputs
