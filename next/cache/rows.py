"""Rows that lie in several files, found by the ids of their samples and read as one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Ids, Indices, hex_id, id_keys
from probekit.cache.tensors import REPAIR, map_tensors
from probekit.errors import CorruptError


class IdIndex:
    """Holds 40 bytes an id, in arrays that forked processes share."""

    def __init__(self, ids: Ids) -> None:
        keys = id_keys(ids)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self._keys)

    def locate(self, ids: Ids) -> Indices:
        """The position of each id, -1 where it is absent."""
        if not len(self._keys):
            return np.full(len(ids), -1, np.int64)
        keys = id_keys(ids)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._order[places], -1)

    def __contains__(self, sample_id: bytes) -> bool:
        key = np.frombuffer(sample_id, "S32")
        position = self._keys.searchsorted(key)[0]
        return bool(position < len(self._keys) and self._keys[position] == key[0])


def concatenate_ids(parts: Iterable[Ids]) -> Ids:
    return np.concatenate([np.zeros((0, 32), np.uint8), *parts])


def first_occurrences(ids: Ids, positions: Indices) -> Indices:
    """Those of the positions at which an id stands for the first time, in order."""
    first = np.unique(id_keys(ids[positions]), return_index=True)[1]
    return positions[np.sort(first)]


@dataclass(frozen=True, eq=False)
class RowFile:
    """A file of rows and their ids, named by its sha256.

    mapped: the rows, None where they are mapped at each reading: a mapping keeps a file descriptor
        open, and there may be thousands of pieces.
    """

    path: Path
    ids: Ids
    width: int
    dtype: np.dtype[Any]
    encoding: str
    mapped: NDArray[Any] | None

    @classmethod
    def open(cls, path: Path, *, keep_mapped: bool) -> RowFile:
        tensors, metadata = map_tensors(path)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        count, width, *_ = (*shapes.get("rows", ()), -1, -1)
        if shapes != {"rows": (count, width), "ids": (count, 32)}:
            raise CorruptError(
                f"{path} must hold rows (n, d) and ids (n, 32); found {shapes}. {REPAIR}"
            )
        rows = tensors["rows"]
        encoding = str(metadata.get("encoding"))
        if keep_mapped:
            return cls(path, tensors["ids"], width, rows.dtype, encoding, rows)
        return cls(path, np.array(tensors["ids"]), width, rows.dtype, encoding, None)

    @property
    def rows(self) -> NDArray[Any]:
        return map_tensors(self.path)[0]["rows"] if self.mapped is None else self.mapped


class RowSource(Protocol):
    def shards(self) -> list[RowFile]: ...
    def files(self) -> list[RowFile]: ...


class StoredRows:
    """An (n, d) matrix whose rows are located when first read.

    A slice that lies in one file is a view of the file; everything else is gathered.
    """

    def __init__(self, source: RowSource, ids: Ids, *, width: int, dtype: str) -> None:
        self.shape = (len(ids), width)
        self.dtype = np.dtype(dtype)
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
            if file.width != self.shape[1] or file.dtype != self.dtype:
                raise CorruptError(
                    f"{file.path} must hold rows of {self.shape[1]} {self.dtype}; found "
                    f"{file.width} {file.dtype}. {REPAIR}"
                )
        starts = np.cumsum([0, *(len(file.ids) for file in files)])
        numbers = np.searchsorted(starts, positions, side="right") - 1
        return files, numbers, positions - starts[numbers]

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapped files: another process maps them itself."""
        return {name: value for name, value in vars(self).items() if name != "_places"}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            return self._read(np.arange(*index.indices(len(self))), view=True)
        positions = np.arange(len(self))[index]
        rows = self._read(np.atleast_1d(positions))
        return rows if positions.ndim else rows[0]

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self[:], dtype=dtype, copy=copy)

    def _read(self, positions: Indices, *, view: bool = False) -> NDArray[Any]:
        try:
            return self._gather(positions, view)
        except CorruptError:  # pieces may have become shards since they were located
            self.__dict__.pop("_places", None)
            return self._gather(positions, view)

    def _gather(self, positions: Indices, view: bool) -> NDArray[Any]:
        files, numbers, rows = self._places
        numbers = numbers[positions]
        rows = rows[positions]
        used = np.unique(numbers)
        if view and len(used) == 1 and (np.diff(rows) == 1).all():
            mapped = files[used[0]].mapped
            if mapped is not None:
                return np.asarray(mapped[rows[0] : rows[-1] + 1])
        matrix = np.empty((len(positions), self.shape[1]), self.dtype)
        for number in used:
            targets = np.flatnonzero(numbers == number)
            matrix[targets] = files[number].rows[rows[targets]]
        return matrix


def _locate(files: Sequence[RowFile], ids: Ids) -> Indices:
    """The position of each id in all files, -1 where it is absent."""
    stored = concatenate_ids(file.ids for file in files)
    if len(ids) and len(stored):  # usually they stand one after the other: no need to sort
        words = stored.view(np.uint64)
        span = np.ascontiguousarray(ids).view(np.uint64)
        start = int(np.argmax(words[:, 0] == span[0, 0]))
        if np.array_equal(words[start : start + len(ids)], span):
            return np.arange(start, start + len(ids))
    return IdIndex(stored).locate(ids)
