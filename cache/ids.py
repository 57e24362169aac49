"""Sample ids as (n, 32) bytes: found again by binary search, shown as hex; and other columns of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

IdArray = NDArray[np.uint8]
SHORTEST = 8
"""How much of an id has to be given."""


class Column(Sequence[str]):
    """Texts that are made when they are read, each from its entry in an array."""

    def __init__(self, entries: Any, text: Callable[[Any], str]) -> None:
        self.entries, self.text = entries, text

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, row: Any) -> Any:
        found = self.entries[row]
        return type(self)(found, self.text) if isinstance(row, slice) else self.text(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _hex(packed: IdArray) -> str:
    return packed.tobytes().hex()


class HexIds(Column):
    """Ids as hex strings, and all at once as bytes."""

    def tobytes(self) -> bytes:
        """The ids one after the other."""
        found: bytes = self.entries.tobytes()
        return found


def hex_ids(packed: IdArray) -> HexIds:
    """An (n, 32) array of ids, read as hex strings."""
    return HexIds(packed, _hex)


def pack(ids: Iterable[str]) -> IdArray:
    """Hex ids as an (n, 32) array."""
    if isinstance(ids, HexIds):
        packed: IdArray = ids.entries
        return packed
    return np.frombuffer(bytes.fromhex("".join(ids)), dtype=np.uint8).reshape(-1, 32)


def stack(parts: Iterable[IdArray]) -> IdArray:
    """The ids of several arrays, or of none, in one."""
    return np.concatenate([np.zeros((0, 32), np.uint8), *parts])


def meant(text: str, known: Set[str], named: Mapping[str, str]) -> set[str]:
    """The ids that a text may mean: itself, the sample of a row of this name, or those that begin with it."""
    if text in known or text in named:
        return {text if text in known else named[text]}
    return {sample for sample in known if len(text) >= SHORTEST and sample.startswith(text.lower())}


def keys(ids: IdArray) -> NDArray[np.bytes_]:
    """Ids as one value each, which sort and compare."""
    return np.ascontiguousarray(ids).view("S32").ravel()


def first_of(ids: IdArray, wanted: IdArray) -> int:
    """Where the first wanted id stands; 0 where it does not."""
    return int(np.argmax(keys(ids) == wanted[:1].tobytes())) if len(ids) else 0


class IdLookup:
    """Where an id stands in a list of ids. Holds 40 bytes per id and can be shared between processes by forking."""

    def __init__(self, ids: IdArray) -> None:
        self._order = np.argsort(keys(ids), kind="stable")
        self._keys = keys(ids)[self._order]

    def locate(self, wanted: IdArray) -> NDArray[np.int64]:
        """The position of each wanted id, -1 where it is not there."""
        if not len(self._keys):
            return np.full(len(wanted), -1, dtype=np.int64)
        sought = keys(wanted)
        found = np.minimum(np.searchsorted(self._keys, sought), len(self._keys) - 1)
        return np.where(self._keys[found] == sought, self._order[found], -1)

    def __contains__(self, sample: object) -> bool:
        return isinstance(sample, str) and bool(self.locate(pack([sample]))[0] >= 0)
