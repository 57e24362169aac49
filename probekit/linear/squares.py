"""The sum of squares |offset + J(params) - targets|^2 of an affine model, however its rows are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import ClientStats, Design
from probekit.linear.statistics import checked_labels, row_blocks
from probekit.values import Rows

Array = NDArray[np.float64]


class Squares(Protocol):
    """|offset + J(params) - targets|^2 as a function of params, however the rows are held."""

    @property
    def count(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    def value(self, params: Array) -> float: ...
    def gradient(self, params: Array) -> Array:
        """Half the gradient: J^T (offset + J(params) - targets)."""
        ...

    def product(self, v: Array) -> Array:
        """J^T J v."""
        ...

    def dense(self) -> Array | None:
        """J^T J, or None where it is too large."""
        ...


@dataclass(frozen=True, eq=False)
class StatsSquares:
    """The squares of a head, from statistics alone (one-hot targets: their energy is the count)."""

    stats: ClientStats

    @property
    def count(self) -> int:
        """How many rows."""
        return self.stats.count

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters."""
        return (self.stats.design.columns, self.stats.design.classes)

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


@dataclass(frozen=True, eq=False)
class RowSquares:
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

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters."""
        return (self.design.columns, self.design.classes)

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

    def dense(self) -> Array | None:
        """Never formed: take statistics for that."""
        return None

    def _blocks(self) -> Iterator[tuple[NDArray[np.int64], Array]]:
        for numbers, block in row_blocks(self.rows, self.design):
            block = block.astype(np.float64, copy=False)
            ones = np.ones((len(block), self.design.columns - self.design.dimension))
            yield numbers, np.hstack([block, ones]) if ones.size else block

    def _residual(self, block: Array, numbers: NDArray[np.int64], params: Array) -> Array:
        outputs = block @ params
        outputs[np.arange(len(numbers)), self.labels[numbers]] -= 1
        return outputs


class Linearization(Protocol):
    """An affine model of its parameters: outputs = offset + jvp(params); `vjp` is the adjoint of `jvp`."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def offset(self) -> Array: ...
    def jvp(self, params: Array) -> Array: ...
    def vjp(self, outputs: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class ModelSquares:
    """The squares of any affine model, a linearized network for one."""

    model: Linearization
    targets: Array

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters."""
        return self.model.shape

    def value(self, params: Array) -> float:
        """The sum of squares."""
        return float(np.square(self._residual(params)).sum())

    def gradient(self, params: Array) -> Array:
        """Half its gradient."""
        return self.model.vjp(self._residual(params))

    def product(self, v: Array) -> Array:
        """J^T J v."""
        return self.model.vjp(self.model.jvp(v))

    def dense(self) -> Array | None:
        """Never formed."""
        return None

    def _residual(self, params: Array) -> Array:
        return self.model.offset + self.model.jvp(params) - self.targets
