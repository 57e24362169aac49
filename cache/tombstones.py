"""Samples that were erased on request and must not come back unasked.

A tombstone is an HMAC of a sample's id under a key of this cache alone: the list tells only somebody who has a picture
and the key whether that picture was erased. Neither is ever exported. A picture that was saved again in another form
has another id, and is not recognised.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from pathlib import Path

from probekit.cache.journal import changing
from probekit.cache.keys import KEY_BYTES, make_key, read_key
from probekit.errors import CorruptError
from probekit.files import write_bytes


class Tombstones:
    """The list of a cache."""

    def __init__(self, root: Path) -> None:
        self.root, self._list, self._key = root, root / "erased", root / "erased.key"

    def among(self, ids: Iterable[str]) -> set[str]:
        """Those of these samples that were erased."""
        listed = self._read()
        if not listed:
            return set()
        key = self._read_key()
        return {sample for sample in ids if _tombstone(key, sample) in listed}

    def add(self, ids: Iterable[str]) -> None:
        """Note that these samples were erased."""
        self._change(ids, erased=True)

    def remove(self, ids: Iterable[str]) -> None:
        """Let these samples come back."""
        self._change(ids, erased=False)

    def _change(self, ids: Iterable[str], *, erased: bool) -> None:
        ids = set(ids)
        if not ids:
            return
        with changing(self.root):
            before = self._read()
            key = self._read_key() if before else make_key(self._key)
            marks = {_tombstone(key, sample) for sample in ids}
            after = before | marks if erased else before - marks
            if after != before:
                write_bytes(self._list, b"".join(sorted(after)))

    def _read(self) -> set[bytes]:
        found = self._list.read_bytes() if self._list.exists() else b""
        if len(found) % KEY_BYTES:
            raise CorruptError(f"{self._list} was cut short: it lists the erased samples. Restore it from a copy.")
        return {found[start : start + KEY_BYTES] for start in range(0, len(found), KEY_BYTES)}

    def _read_key(self) -> bytes:
        return read_key(self._key, "no erased sample can be told")


def _tombstone(key: bytes, sample: str) -> bytes:
    return hmac.digest(key, bytes.fromhex(sample), "sha256")
