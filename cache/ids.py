"""Sample ids as (n, 32) bytes: found again by binary search, shown as hex."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

IdArray = NDArray[np.uint8]
SHORTEST = 8
"""How much of an id has to be given."""


def pack(ids: Iterable[str]) -> IdArray:
    """Hex ids as an (n, 32) array."""
    if isinstance(ids, HexIds):
        return ids.array
    data = b"".join(bytes.fromhex(sample) for sample in ids)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 32)


def meant(text: str, known: Set[str], named: Mapping[str, str]) -> set[str]:
    """The ids that a text may mean: itself, the sample of a row of this name, or those that begin with it."""
    if text in known or text in named:
        return {text if text in known else named[text]}
    return {sample for sample in known if len(text) >= SHORTEST and sample.startswith(text.lower())}


class HexIds(Sequence[str]):
    """An (n, 32) array of ids, read as hex strings."""

    def __init__(self, array: IdArray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        return HexIds(self.array[row]) if isinstance(row, slice) else self.array[row].tobytes().hex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _keys(ids: IdArray) -> NDArray[Any]:
    """The first eight bytes of each id as one number, ordered like the bytes."""
    return np.ascontiguousarray(ids[:, :8]).view(">u8").ravel().astype(np.uint64)


class IdLookup:
    """Where an id stands in a list of ids. Holds 44 bytes per id and can be shared between processes by forking."""

    def __init__(self, ids: IdArray) -> None:
        self.ids = ids
        keys = _keys(ids)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self.ids)

    def locate(self, wanted: IdArray) -> NDArray[np.int64]:
        """The position of each wanted id, -1 where it is not there."""
        if not len(self.ids) or not len(wanted):
            return np.full(len(wanted), -1, dtype=np.int64)
        keys = _keys(wanted)
        first = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found = self._order[first]
        same = (self.ids[found] == wanted).all(axis=1)
        for row in np.flatnonzero(~same & (self._keys[first] == keys)):  # eight equal bytes, another id: look further
            stop = np.searchsorted(self._keys, keys[row], side="right")
            for position in self._order[first[row] : stop]:
                if bytes(self.ids[position]) == bytes(wanted[row]):
                    found[row], same[row] = position, True
        return np.where(same, found, -1)

    def __contains__(self, sample: object) -> bool:
        return isinstance(sample, str) and bool(self.locate(pack([sample]))[0] >= 0)
