"""Looking for bytes that must not be anywhere in a folder any more.

What is looked for is kept as a needle: eight bytes of it, and a salted digest of all of it. So a journal can say what
to search for, after a crash too, without being one more copy of what is erased.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_KEY = 8
_BLOCK = 1 << 22
_BITS, _ODD = 24, np.uint64(0x9E3779B97F4A7C15)


class Needle(NamedTuple):
    """A byte string of some length: eight bytes of it in hex, where they stand in it, its salted digest."""

    window: str
    offset: int
    length: int
    digest: str


class Searched(NamedTuple):
    """The files in which something was found, and how many files and bytes were searched."""

    found: tuple[str, ...]
    files: int
    bytes: int


Excuse = Callable[[Path, int, int], bool]
"""Whether what was found in a file, at a place and of a length, may be there: another's bytes can be the same."""


def needles_of(secret_bytes: Iterable[bytes], salt: bytes) -> list[Needle]:
    """What to look for; ids also as hex text. Bytes that are all the same are left out: they say nothing of anybody."""
    found = []
    for one in secret_bytes:
        for secret in [one, one.hex().encode()] if len(one) == 32 else [one]:
            if len(secret) >= _KEY and len(set(secret)) > 1:
                offset = _rarest(secret)
                window = secret[offset : offset + _KEY].hex()
                found.append(Needle(window, offset, len(secret), _digest(salt, secret)))
    return found


def search(
    root: Path,
    needles: Collection[Needle],
    salt: bytes,
    *,
    skip: Collection[Path] = (),
    excused: Excuse = lambda path, place, length: False,
) -> Searched:
    """Search every file below a folder for all needles together, at every offset."""
    haystack = _Needles(needles, salt)
    found, files, searched = [], 0, 0
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path not in skip):
        files += 1
        searched += path.stat().st_size
        if needles and any(not excused(path, *hit) for hit in haystack.inside(path)):
            found.append(str(path.relative_to(root)))
    return Searched(tuple(found), files, searched)


def remains(root: Path, secret_bytes: Iterable[bytes]) -> Searched:
    """Search every file below a folder for any of these byte strings, at every offset, ids also as hex text."""
    salt = secrets.token_bytes(16)
    return search(root, needles_of(secret_bytes, salt), salt)


def _mixed(windows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A few bits of every window, such that windows that are alike in most bytes differ in them."""
    return (windows * _ODD) >> np.uint64(64 - _BITS)


def _digest(salt: bytes, data: bytes) -> str:
    return hashlib.blake2b(data, key=salt, digest_size=16).hexdigest()


class _Needles:
    """Needles by their windows, which are looked up at every offset; those alike in form are hashed once."""

    def __init__(self, needles: Iterable[Needle], salt: bytes) -> None:
        self.salt = salt
        self.by_key: dict[int, dict[tuple[int, int], set[str]]] = {}
        for one in needles:
            shapes = self.by_key.setdefault(int.from_bytes(bytes.fromhex(one.window), "little"), {})
            shapes.setdefault((one.offset, one.length), set()).add(one.digest)
        self.keys = np.array(sorted(self.by_key), dtype=np.uint64)
        self.seen = np.zeros(1 << _BITS, dtype=bool)
        self.seen[_mixed(self.keys)] = True

    def inside(self, path: Path) -> Iterator[tuple[int, int]]:
        """Where in a file one of the strings begins, and its length."""
        data = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
        for start in range(0, max(0, len(data) - _KEY + 1), _BLOCK):
            yield from self._in_block(data, start, min(start + _BLOCK, len(data) - _KEY + 1))

    def _in_block(self, data: NDArray[np.uint8], start: int, stop: int) -> Iterator[tuple[int, int]]:
        block = np.array(data[start : stop + _KEY - 1])
        windows = np.ndarray(stop - start, "<u8", block, strides=(1,))  # the eight bytes at every offset
        candidates = np.flatnonzero(self.seen[_mixed(windows)])  # few: most are told apart by a table
        windows = windows[candidates]
        if not len(candidates):
            return
        hits = self.keys[np.minimum(np.searchsorted(self.keys, windows), len(self.keys) - 1)] == windows
        for place, window in zip((candidates[hits] + start).tolist(), windows[hits].tolist(), strict=True):
            for (offset, length), digests in self.by_key[window].items():
                begin = place - offset
                whole = data[begin : begin + length].tobytes() if begin >= 0 else b""
                if len(whole) == length and _digest(self.salt, whole) in digests:
                    yield begin, length


def _rarest(secret: bytes) -> int:
    """An offset whose eight bytes differ most among themselves: zeros and repeats are common in files."""
    best, most = 0, 0
    for offset in range(0, len(secret) - _KEY + 1, 4):
        different = len(set(secret[offset : offset + _KEY]))
        if different > most:
            best, most = offset, different
        if most >= _KEY - 1:
            break
    return best
