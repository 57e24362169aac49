"""Rows that lie in several mapped files, read as one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Places:
    """Row i of a matrix is row `row[i]` of `files[file[i]]`; file -1 is a masked row."""

    files: Sequence[NDArray[Any]]
    file: NDArray[np.int64]
    row: NDArray[np.int64]


class StoredRows:
    """An (n, d) matrix in mapped files, found when first read. A masked row reads as NaN.

    A slice inside one file is a view of the file; everything else is gathered.
    """

    def __init__(self, find: Callable[[], Places], shape: tuple[int, int], dtype: str) -> None:
        self._find = find
        self.shape, self.dtype = shape, np.dtype(dtype)

    @classmethod
    def of(cls, places: Places) -> Self:
        """The rows in these places, which were found already."""
        return cls(lambda: places, (len(places.row), places.files[0].shape[1]), str(places.files[0].dtype))

    @cached_property
    def _places(self) -> Places:
        return self._find()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._span(start, max(start, stop)) if step == 1 else self._gather(np.arange(start, stop, step))
        if isinstance(index, (int, np.integer)):
            row = range(len(self))[int(index)]
            result: NDArray[Any] = self._span(row, row + 1)[0]
            return result
        wanted = np.asarray(index)
        if wanted.dtype == bool:
            wanted = np.flatnonzero(wanted)
        return self._gather(np.where(wanted < 0, wanted + len(self), wanted))

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._span(0, len(self)), dtype=dtype, copy=copy)

    def _span(self, start: int, stop: int) -> NDArray[Any]:
        """The rows from start to stop: a view where they lie one after the other in one file."""
        file, row = self._places.file[start:stop], self._places.row[start:stop]
        if stop > start and file[0] >= 0 and (file == file[0]).all() and (np.diff(row) == 1).all():
            inside: NDArray[Any] = self._places.files[file[0]][row[0] : row[0] + stop - start]
            return inside
        return self._gather(np.arange(start, stop))

    def _gather(self, wanted: NDArray[np.int64]) -> NDArray[Any]:
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"Row numbers lie between 0 and {len(self) - 1}; found {wanted.min()} to {wanted.max()}.")
        result = np.full((len(wanted), self.shape[1]), np.nan, dtype=self.dtype)
        at = self._places
        files = at.file[wanted]
        for file in np.unique(files[files >= 0]):
            here = np.flatnonzero(files == file)
            result[here] = at.files[int(file)][at.row[wanted[here]]]
        return result
