"""Memo: the sample that a file holds, so that known files need not be decoded again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.cache.rows import IdIndex
from probekit.errors import CorruptError, StorageError
from probekit.files import read_limited, remove_files, write_bytes

if TYPE_CHECKING:
    from probekit.cache.store import Cache

MAX_FILES = 1 << 21
SETTLED_NANOSECONDS = 2_000_000_000
KEY_BYTES = 32


class Memo:
    """(path, device, inode, size, mtime, ctime, decoder) -> id.

    Trusted only where both times are two seconds older than the reading: clocks of file systems are
    coarse, and a file may change twice within one tick. The file is the sha256 of its rest, then
    pairs of keys and ids, the oldest first; where it is damaged it counts as empty.
    """

    def __init__(self, cache: Cache) -> None:
        self._path = cache.root / "memo"
        self._cache = cache
        self._added: dict[bytes, bytes] = {}

    def key(self, path: Path | str, decoder: str) -> bytes | None:
        """What a file is known by, None while it may still change; take it before reading it."""
        now = time.time_ns()
        try:
            status = os.stat(path)  # noqa: PTH116  thousands of files: a Path for each costs
        except OSError:
            return None
        if now - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED_NANOSECONDS:
            return None
        return _key(os.path.abspath(path), status, decoder)  # noqa: PTH100

    def lookup(self, key: bytes | None) -> bytes | None:
        """The id of the sample in the file of this key."""
        if key is None:
            return None
        return self._added.get(key) or self._stored.get(key)

    def remember(self, key: bytes, sample_id: bytes) -> None:
        self._added[key] = sample_id

    def flush(self) -> None:
        """Write what was added, beside what other processes wrote; call it once, at the end."""
        if not self._added:
            return
        with suppress(StorageError), self._cache.changing():  # a read-only cache can be used
            merged = {**self._read(), **self._added}
            newest = islice(merged.items(), max(0, len(merged) - MAX_FILES), None)
            self._write(dict(newest))
            self._added.clear()
            self.__dict__.pop("_stored", None)

    def forget(self, samples: IdIndex) -> None:
        """Remove what was noted of files that hold these samples; or all of it, if damaged."""
        with self._cache.changing():
            stored = self._read()
            retained = {key: id_ for key, id_ in stored.items() if id_ not in samples}
            if not retained:
                remove_files([self._path])
            elif len(retained) < len(stored):
                self._write(retained)
        self.__dict__.pop("_stored", None)

    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        body = b"".join(part for pair in pairs.items() for part in pair)
        write_bytes(self._path, hashlib.sha256(body).digest() + body)

    @cached_property
    def _stored(self) -> dict[bytes, bytes]:
        return self._read()

    def _read(self) -> dict[bytes, bytes]:
        size = 2 * KEY_BYTES
        try:
            content = read_limited(self._path, KEY_BYTES + size * MAX_FILES)
        except (OSError, CorruptError):
            return {}
        checksum = content[:KEY_BYTES]
        body = content[KEY_BYTES:]
        if hashlib.sha256(body).digest() != checksum or len(body) % size:
            return {}
        starts = range(0, len(body), size)
        return {body[at : at + KEY_BYTES]: body[at + KEY_BYTES : at + size] for at in starts}


def _key(name: str, status: os.stat_result, decoder: str) -> bytes:
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    text = f"{numbers} {decoder}"
    return hashlib.sha256(text.encode() + b"\0" + os.fsencode(name)).digest()
