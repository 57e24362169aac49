"""Looking for bytes that must not be anywhere in a folder any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_KEY = 8
_BLOCK = 1 << 22


def remains(root: Path, secrets: Sequence[bytes]) -> tuple[list[str], int, int]:
    """Search every file below a folder for any of these byte strings, at every offset, ids also as hex text.

    Gives the files that hold one, the number of files and the number of bytes searched.
    """
    wanted = [secret for secret in secrets if len(secret) >= _KEY]
    wanted += [secret.hex().encode() for secret in secrets if len(secret) == 32]
    needles = _Needles(wanted)
    found, files, searched = [], 0, 0
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        files += 1
        searched += path.stat().st_size
        if wanted and needles.inside(path):
            found.append(str(path.relative_to(root)))
    return found, files, searched


class _Needles:
    """Byte strings searched for together: an eight-byte window of each is looked up at every offset of a file."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self.by_key: dict[int, list[tuple[bytes, int]]] = {}
        for secret in secrets:
            offset = _rarest(secret)
            key = int.from_bytes(secret[offset : offset + _KEY], "little")
            self.by_key.setdefault(key, []).append((secret, offset))
        self.keys = np.array(sorted(self.by_key), dtype=np.uint64)
        self.first = np.zeros(1 << 16, dtype=bool)
        self.first[(self.keys & np.uint64(0xFFFF)).astype(np.int64)] = True

    def inside(self, path: Path) -> bool:
        """Whether a file holds one of the strings."""
        data = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
        for start in range(0, max(0, len(data) - _KEY + 1), _BLOCK):
            if self._in_block(data, start, min(start + _BLOCK, len(data) - _KEY + 1)):
                return True
        return False

    def _in_block(self, data: NDArray[np.uint8], start: int, stop: int) -> bool:
        low = data[start:stop].astype(np.uint16) | (data[start + 1 : stop + 1].astype(np.uint16) << 8)
        candidates = np.flatnonzero(self.first[low]) + start
        if not len(candidates):
            return False
        windows = np.zeros(len(candidates), dtype=np.uint64)
        for byte in range(_KEY):
            windows |= data[candidates + byte].astype(np.uint64) << np.uint64(8 * byte)
        hits = np.isin(windows, self.keys)
        for place, window in zip(candidates[hits], windows[hits], strict=True):
            for secret, offset in self.by_key[int(window)]:
                begin = int(place) - offset
                if begin >= 0 and bytes(data[begin : begin + len(secret)]) == secret:
                    return True
        return False


def _rarest(secret: bytes) -> int:
    """An offset whose eight bytes differ most among themselves: zeros and repeats are common in files."""
    offsets = range(0, min(len(secret) - _KEY + 1, 256), 4)
    return max(offsets, key=lambda offset: len(set(secret[offset : offset + _KEY])))
