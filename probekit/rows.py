"""Matrices of rows that are read in pieces, so that their size is no matter of memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Indices

LARGE_BYTES = 1 << 28
"""Larger matrices are not copied in memory."""


class Rows(Protocol):
    """An (n, d) matrix: an array, a memory map, or what is read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> NDArray[Any]: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]: ...


class LazyRows(ABC):
    """A matrix whose rows are read when they are asked for, by their numbers."""

    def __init__(self, count: int, width: int, dtype: np.dtype[Any]) -> None:
        self.shape = (count, width)
        self.dtype = dtype

    @abstractmethod
    def gather(self, indices: Indices) -> NDArray[Any]:
        """Rows by number, (len(indices), d)."""

    @property
    def ndim(self) -> int:
        return 2

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            return self.gather(np.arange(*index.indices(len(self))))
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            numbers = np.flatnonzero(numbers)
        numbers = np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)
        rows = self.gather(numbers.ravel())
        return rows if numbers.ndim else np.asarray(rows[0])

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self[:], dtype=dtype, copy=copy)


class PickedRows(LazyRows):
    """Some rows of a matrix, in any order."""

    def __init__(self, rows: Rows, indices: Indices, dtype: np.dtype[Any] | None = None) -> None:
        super().__init__(len(indices), rows.shape[1], dtype or rows.dtype)
        self.rows: Rows = rows
        self.indices: Indices = indices
        if isinstance(rows, PickedRows):
            self.rows = rows.rows
            self.indices = rows.indices[indices]

    def gather(self, indices: Indices) -> NDArray[Any]:
        return np.asarray(self.rows[as_slice(self.indices[indices])], self.dtype)


class StackedRows(LazyRows):
    """Matrices of one width, one below the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *map(len, self.parts)])
        dtype = np.result_type(*(part.dtype for part in self.parts))
        super().__init__(int(self.starts[-1]), self.parts[0].shape[1], dtype)

    def gather(self, indices: Indices) -> NDArray[Any]:
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        matrix = np.empty((len(indices), self.shape[1]), self.dtype)
        for number in np.unique(numbers):
            targets = np.flatnonzero(numbers == number)
            local = indices[targets] - self.starts[number]
            matrix[as_slice(targets)] = self.parts[number][as_slice(local)]
        return matrix


def as_slice(positions: Indices) -> Indices | slice:
    """Neighbors as a slice, which copies nothing; all others as they are."""
    if len(positions) and (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions


def pick_rows(rows: Rows, indices: Indices) -> Rows:
    """Rows by number: an array in memory, but of a large one they are read when asked for."""
    picked = PickedRows(rows, indices)
    return picked if picked.nbytes > LARGE_BYTES else np.ascontiguousarray(picked[:])


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one below the other: an array in memory, but large ones are read when asked for."""
    stacked = StackedRows(parts)
    return stacked if stacked.nbytes > LARGE_BYTES else stacked[:]
