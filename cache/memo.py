"""Memo: the sample that a file holds, so that known files need not be decoded again."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from functools import cached_property
from itertools import chain
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
        numbers = (status.st_dev, status.st_ino, status.st_size)
        times = (status.st_mtime_ns, status.st_ctime_ns)
        text = f"{numbers + times} {decoder}"
        name = os.path.abspath(path)  # noqa: PTH100
        return hashlib.sha256(text.encode() + b"\0" + os.fsencode(name)).digest()

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
            pairs = {**self._read(), **self._added}
            self._write(dict(list(pairs.items())[-MAX_FILES:]))
            self._added.clear()

    def forget(self, samples: IdIndex) -> None:
        """Remove what was noted of files that hold these samples; or all of it, if damaged."""
        with self._cache.changing():
            stored = self._read()
            retained = {key: id_ for key, id_ in stored.items() if id_ not in samples}
            if len(retained) < len(stored) or not stored:
                self._write(retained)

    def _write(self, pairs: dict[bytes, bytes]) -> None:
        body = b"".join(chain.from_iterable(pairs.items()))
        if body:
            write_bytes(self._path, hashlib.sha256(body).digest() + body)
        else:
            remove_files([self._path])
        self._stored = pairs

    @cached_property
    def _stored(self) -> dict[bytes, bytes]:
        return self._read()

    def _read(self) -> dict[bytes, bytes]:
        try:
            content = read_limited(self._path, KEY_BYTES + 2 * KEY_BYTES * MAX_FILES)
        except (OSError, CorruptError):
            return {}
        body = content[KEY_BYTES:]
        if hashlib.sha256(body).digest() != content[:KEY_BYTES]:
            return {}
        fields = [body[start : start + KEY_BYTES] for start in range(0, len(body), KEY_BYTES)]
        return dict(zip(fields[::2], fields[1::2], strict=True))
