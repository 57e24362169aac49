"""Erasure: samples leave a cache for good, and do not come back.

erase.json     what is being erased; until it is gone, all other commands on this cache refuse
erased         a key, and under it the HMAC of the id of each erased sample
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from probekit import files
from probekit.arrays import Ids, stack_ids
from probekit.cache.rows import IdIndex
from probekit.cache.sets import SetDescription, assemble, read_ids, write_columns
from probekit.cache.store import INTENT, Cache
from probekit.cache.tensors import SUFFIX
from probekit.embeddings import EmbeddingSet
from probekit.errors import CacheError, CorruptError

TOMBSTONES = "erased"
KEY_BYTES = 32
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Intent:
    """What is being erased, and from which runs.

    token: of this erasure. request: as it was typed. run: the id of the run that was named, whose
    `clients` leave it whole. samples: ids. runs: relative paths by id, so that all can be moved.
    """

    token: str
    request: tuple[str, ...]
    run: str
    clients: tuple[str, ...]
    samples: tuple[str, ...]
    runs: dict[str, str]

    @property
    def ids(self) -> Ids:
        return stack_ids(bytes.fromhex(sample) for sample in self.samples)


def read_intent(cache: Cache) -> Intent | None:
    """The erasure that is not finished."""
    if not cache.is_erasing():
        return None
    return files.read_typed(
        cache.root / INTENT, Intent, remedy="Restore it from a copy, to finish."
    )


def write_intent(cache: Cache, intent: Intent) -> None:
    """Begin; the caller holds the cache's lock."""
    busy = [entry.digest[:12] for entry in cache.entries() if entry.is_busy()]
    if busy:
        raise CacheError(
            f"Nothing may be extracted during an erasure; encoding {busy[0]} is being extracted. "
            "Stop it, or wait for its end."
        )
    files.write_json(cache.root / INTENT, asdict(intent))


def finish(cache: Cache) -> None:
    """The last step: other commands may go on."""
    files.remove_files([cache.root / INTENT])


@dataclass(frozen=True, eq=False)
class Tombstones:
    """Which samples were erased; their ids cannot be told from it."""

    key: bytes
    marks: Ids

    @classmethod
    def read(cls, cache: Cache) -> Self:
        path = cache.root / TOMBSTONES
        try:
            content = files.read_limited(path, MAX_BYTES)
        except FileNotFoundError:
            return cls(secrets.token_bytes(KEY_BYTES), np.zeros((0, 32), np.uint8))
        if len(content) < KEY_BYTES or len(content) % KEY_BYTES:
            raise CorruptError(
                f"{path} must hold a key and marks of 32 bytes each; found {len(content)} bytes. "
                "Restore it from a copy."
            )
        return cls(content[:KEY_BYTES], stack_ids([content[KEY_BYTES:]]))

    def write(self, cache: Cache) -> None:
        files.write_bytes(cache.root / TOMBSTONES, self.key + self.marks.tobytes())

    def holds(self, ids: Ids) -> NDArray[np.bool_]:
        """Whether these samples were erased."""
        if not len(self.marks):
            return np.zeros(len(ids), bool)
        return self._index.holds(self._marks_of(ids))

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex([self.marks])

    def __contains__(self, sample_id: bytes) -> bool:
        return bool(self.holds(stack_ids([sample_id]))[0])

    def of(self, ids: Ids) -> Self:
        """Those of these samples too, in an order that says nothing."""
        marks = np.concatenate([self.marks, self._marks_of(ids)])
        return replace(self, marks=np.unique(marks, axis=0))

    def _marks_of(self, ids: Ids) -> Ids:
        return stack_ids(hmac.digest(self.key, row.tobytes(), "sha256") for row in ids)


def without_erased(cache: Cache, rows: EmbeddingSet) -> tuple[EmbeddingSet, int]:
    """The rows that were not erased from this cache, and how many were."""
    erased = Tombstones.read(cache).holds(rows.ids)
    if not erased.any():
        return rows, 0
    return rows.take(np.flatnonzero(~erased)), int(erased.sum())


def remove_samples(cache: Cache, ids: Ids) -> None:
    """Take samples out of rows, sets and memo; killed at any moment, the same call finishes."""
    with cache.changing():
        Tombstones.read(cache).of(ids).write(cache)
        for entry in cache.entries():
            entry.drop(ids)
        erased = IdIndex([ids])
        for name in cache.names():
            _remove_from_set(cache, name, erased)
        used = {cache.columns_path(cache.describe(name)) for name in cache.names()}
        files.remove_files(set((cache.root / "columns").glob(f"*{SUFFIX}")) - used)
        cache.memo.forget(erased)
        files.remove_folder(cache.root / "damaged")
        files.sweep(cache.root)


def _remove_from_set(cache: Cache, name: str, erased: IdIndex) -> None:
    """A set without these samples and without the classes that only they had."""
    description = cache.describe(name)
    path = cache.columns_path(description)
    retained = np.flatnonzero(~erased.holds(read_ids(path)))
    if len(retained) == description.rows:
        return
    if not len(retained):
        files.remove_files([cache.set_path(name)])
        return
    before = assemble(description, path)
    after = _without_lost_classes(before, before.take(retained))
    columns = write_columns(cache.root / "columns", after)
    changed = SetDescription.of(replace(after, skipped=before.skipped), columns)
    files.write_json(cache.set_path(name), asdict(changed))


def _without_lost_classes(before: EmbeddingSet, after: EmbeddingSet) -> EmbeddingSet:
    if before.labels is None or after.labels is None:
        return after
    lost = set(np.unique(before.labels).tolist()) - set(np.unique(after.labels).tolist())
    names = [name for number, name in enumerate(before.class_names) if number not in lost]
    return after.with_classes(names)
