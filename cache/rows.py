"""Rows that lie in several files, found by the ids of their samples and read as one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Ids, Indices, hex_id, id_keys, stack_ids
from probekit.cache.tensors import REPAIR, map_tensors
from probekit.errors import CorruptError
from probekit.rows import LazyRows, as_slice

MAPPED_FILES = 16
"""A mapping keeps a file descriptor open, and there may be thousands of files."""


class IdIndex:
    """Holds 40 bytes an id, in arrays that forked processes share."""

    def __init__(self, parts: Iterable[Ids]) -> None:
        keys = id_keys(concatenate_ids(parts))
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self._keys)

    def locate(self, ids: Ids) -> Indices:
        """The position of each id, -1 where it is absent."""
        if not len(self._keys):
            return np.full(len(ids), -1, np.int64)
        keys = id_keys(ids)
        ranks = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[ranks] == keys, self._order[ranks], -1)

    def holds(self, ids: Ids) -> NDArray[np.bool_]:
        return self.locate(ids) >= 0

    def __contains__(self, sample_id: bytes) -> bool:
        return bool(self.holds(stack_ids([sample_id]))[0])


def concatenate_ids(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([np.zeros((0, 32), np.uint8), *parts])


@dataclass(frozen=True, eq=False)
class RowFile:
    """A file of rows and their ids, named by its sha256."""

    path: Path
    ids: Ids
    width: int
    dtype: np.dtype[Any]
    encoding: str

    @classmethod
    def open(cls, path: Path) -> Self:
        tensors, metadata = map_tensors(path)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        count, width, *_ = (*shapes.get("rows", ()), -1, -1)
        if shapes != {"rows": (count, width), "ids": (count, 32)}:
            raise CorruptError(
                f"{path} must hold rows (n, d) and ids (n, 32); found {shapes}. {REPAIR}"
            )
        dtype = tensors["rows"].dtype
        return cls(path, np.array(tensors["ids"]), width, dtype, str(metadata.get("encoding")))

    def rows(self) -> NDArray[Any]:
        return map_rows(self.path)


@lru_cache(maxsize=MAPPED_FILES)
def map_rows(path: Path) -> NDArray[Any]:
    return map_tensors(path)[0]["rows"]


class RowSource(Protocol):
    def shards(self) -> Sequence[RowFile]: ...
    def files(self) -> Sequence[RowFile]: ...


class StoredRows(LazyRows):
    """Rows of samples, located when first read.

    A slice that lies in one file is a view of the file; everything else is gathered.
    """

    def __init__(self, source: RowSource, ids: Ids, *, width: int, dtype: str) -> None:
        super().__init__(len(ids), width, np.dtype(dtype))
        self._source = source
        self._ids = ids

    @cached_property
    def _places(self) -> tuple[Sequence[RowFile], Indices, Indices]:
        """Files, and for each row the number of its file and its number there."""
        files = self._source.shards()
        positions = _locate(files, self._ids)
        if (positions < 0).any():
            files = self._source.files()
            positions = _locate(files, self._ids)
        absent = np.flatnonzero(positions < 0)
        if len(absent):
            raise CorruptError(
                f"{len(absent)} of {len(self)} rows are not in the cache any more (the first is "
                f"sample {hex_id(self._ids[absent[0]])[:16]}). Run the extract or import command "
                "again: it adds what is missing."
            )
        for file in files:
            if (file.width, file.dtype) != (self.shape[1], self.dtype):
                raise CorruptError(
                    f"{file.path} must hold rows of {self.shape[1]} {self.dtype}; found "
                    f"{file.width} {file.dtype}. {REPAIR}"
                )
        starts = np.cumsum([0, *(len(file.ids) for file in files)])
        numbers = np.searchsorted(starts, positions, side="right") - 1
        return files, numbers, positions - starts[numbers]

    def __getstate__(self) -> dict[str, Any]:
        """Without the files' ids: another process reads them itself."""
        return {name: value for name, value in vars(self).items() if name != "_places"}

    def gather(self, indices: Indices) -> NDArray[Any]:
        try:
            return self._gather(indices)
        except CorruptError:  # files may have been replaced since rows were located
            self.__dict__.pop("_places", None)
            return self._gather(indices)

    def _gather(self, indices: Indices) -> NDArray[Any]:
        files, numbers, rows = self._places
        numbers = numbers[indices]
        rows = rows[indices]
        if len(numbers) and (numbers == numbers[0]).all():
            return np.asarray(files[numbers[0]].rows()[as_slice(rows)])
        matrix = np.empty((len(numbers), self.shape[1]), self.dtype)
        for number in np.unique(numbers):
            targets = np.flatnonzero(numbers == number)
            matrix[as_slice(targets)] = files[number].rows()[as_slice(rows[targets])]
        return matrix


def _locate(files: Sequence[RowFile], ids: Ids) -> Indices:
    """The position of each id in all files, -1 where it is absent."""
    starts = np.cumsum([0, *(len(file.ids) for file in files)])
    first = {file.ids[:1].tobytes(): number for number, file in enumerate(files)}
    spans = [np.zeros(0, np.int64)]
    count = 0
    while count < len(ids) and (number := first.get(ids[count].tobytes())) is not None:
        stored = files[number].ids[: len(ids) - count]
        if stored.tobytes() != ids[count : count + len(stored)].tobytes():
            break
        spans.append(starts[number] + np.arange(len(stored)))
        count += len(stored)
    if count == len(ids):  # files one after the other: no need to sort
        return np.concatenate(spans)
    return IdIndex(file.ids for file in files).locate(ids)
