"""Taking things out of a cache: sets, rows nobody uses, and samples that must not stay anywhere in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache.disk import DiskStore
from probekit.cache.entry import Entry, changing
from probekit.cache.ids import IdArray, IdLookup, hex_ids, meant, pack, stack
from probekit.cache.rows import Places, StoredRows
from probekit.cache.search import remains
from probekit.errors import InputError, NotFoundError
from probekit.values import EmbeddingSet


@dataclass(frozen=True)
class Removed:
    """What was taken out: rows, sets, and what stayed because somebody else holds it too."""

    rows: int = 0
    sets: tuple[str, ...] = ()
    shared: int = 0
    files: int = 0
    searched: int = 0
    remains: tuple[str, ...] = ()


def drop_rows(entry: Entry, doomed: IdArray) -> int:
    """Rewrite every file of an entry that holds a doomed row; gives how many rows went."""
    lookup, gone = IdLookup(doomed), 0
    kept: dict[str, list[str]] = {"shards": [], "pieces": []}
    with changing(entry.folder):
        for file in entry.files():
            keep, place, name = np.flatnonzero(lookup.locate(file.ids) < 0), file.path.parent.name, file.name
            gone += len(file.ids) - len(keep)
            if 0 < len(keep) < len(file.ids):
                rows = StoredRows.of(Places([file.rows], np.zeros_like(keep), keep))
                name = entry.write_shard(place, file.ids[keep], rows)
            if len(keep):
                kept[place].append(name)
        entry.write_index(kept["shards"])
        entry.keep("pieces", kept["pieces"])
    return gone


def remove_set(store: DiskStore, name: str, *, keep_rows: bool = False) -> Removed:
    """Forget a set and, unless told otherwise, its rows that no other set uses."""
    digest = store.sets.resolve(name)
    note, ids = store.sets.read_note(digest), np.array(store.sets.read_columns(digest)["ids"])
    store.sets.remove(digest)
    entry = store.entry(note["spec"])
    if keep_rows or not entry.folder.exists():
        return Removed(0, (digest,))
    unused = ids[_used(store, note["spec"]).locate(ids) < 0]
    return Removed(drop_rows(entry, unused), (digest,))


def remove_spec(store: DiskStore, beginning: str) -> Removed:
    """Remove a spec, its rows and all sets made of them."""
    matches = [entry for entry in store.entries() if entry.folder.name.startswith(beginning)]
    if len(matches) != 1:
        found = len(matches) or "none"
        raise NotFoundError(f"Wanted one entry that begins with {beginning!r}, found {found}. See `probekit cache ls`.")
    entry, sets = matches[0], tuple(store.sets.digests(matches[0].folder.name))
    rows = sum(len(shard.ids) for shard in entry.files())
    for digest in sets:
        store.sets.remove(digest)
    with changing(entry.folder):
        shutil.rmtree(entry.folder)
    return Removed(rows, sets)


def prune(store: DiskStore, *, older_than_days: float | None = None, dry_run: bool = False) -> Removed:
    """Remove rows that no set uses, unfinished work and leftovers; with an age, also sets made before that."""
    old: list[str] = []
    if older_than_days is not None:
        limit = time.time() - older_than_days * 86400
        paths = {digest: store.root / "sets" / digest / "set.json" for digest in store.sets.digests()}
        old = [digest for digest, path in paths.items() if path.stat().st_mtime < limit]
    doomed = {entry: _unused(store, entry, without=old) for entry in store.entries()}
    if dry_run:
        return Removed(sum(len(ids) for ids in doomed.values()), tuple(old))
    for digest in old:
        store.sets.remove(digest)
    with changing(store.root):  # which sweeps
        pass
    rows = sum(drop_rows(entry, ids) for entry, ids in doomed.items() if len(ids))
    shutil.rmtree(store.root / "damaged", ignore_errors=True)
    return Removed(rows, tuple(old))


def _used(store: DiskStore, spec: str, *, without: Sequence[str] = ()) -> IdLookup:
    """The ids that the sets of a spec name."""
    sets = store.sets
    return IdLookup(stack(sets.read_columns(digest)["ids"] for digest in sets.digests(spec) if digest not in without))


def _unused(store: DiskStore, entry: Entry, *, without: Sequence[str]) -> IdArray:
    there = stack(shard.ids for shard in entry.files())
    return there[_used(store, entry.folder.name, without=without).locate(there) < 0]


def purge(
    store: DiskStore, *, samples: Sequence[str] = (), client: str | None = None, set_name: str | None = None
) -> Removed:
    """Take samples out of every spec and every set, rewrite what held them, and search all files for what is left.

    Samples are ids (or their beginnings) or names of rows. A client's samples that another client or set also holds
    stay (counted in `shared`): erase those by id.
    """
    if bool(samples) == (client is not None):
        raise InputError("Say what to purge: either samples, or one client of one set.")
    opened = {digest: store.open(digest) for digest in store.sets.digests()}
    if client is None:
        doomed, leaving, shared = _by_samples(store, opened, samples), ("", ""), 0
    else:
        doomed, leaving, shared = _by_client(store, opened, client, set_name)
    bytes_of = [row.tobytes() for entry in store.entries() for row in _rows_of(entry, doomed)]
    changed = [digest for digest, found in opened.items() if _rewrite_set(store, digest, found, doomed, leaving)]
    rows = sum(drop_rows(entry, doomed) for entry in store.entries())
    del opened
    left, files, searched = remains(store.root, [*bytes_of, *(bytes(sample) for sample in doomed)])
    return Removed(rows, tuple(changed), shared, files, searched, tuple(left))


def _rows_of(entry: Entry, ids: IdArray) -> Iterator[NDArray[Any]]:
    lookup = IdLookup(ids)
    for shard in entry.files():
        yield from np.array(shard.rows[np.flatnonzero(lookup.locate(shard.ids) >= 0)])


def _by_samples(store: DiskStore, opened: dict[str, EmbeddingSet], samples: Sequence[str]) -> IdArray:
    """The ids that these texts mean: ids, beginnings of ids, or names of rows."""
    known = {sample for entry in store.entries() for shard in entry.files() for sample in hex_ids(shard.ids)}
    known = known.union(*(found.ids for found in opened.values()))
    pairs = (zip(found.names or (), found.ids, strict=False) for found in opened.values())
    named = dict(pair for one in pairs for pair in one)
    ids = set()
    for text in samples:
        matches = meant(text, known, named)
        if len(matches) != 1:
            raise NotFoundError(
                f"{text!r} means {len(matches)} samples of this cache; give a full id or a row's name. "
                "`probekit cache info SET --rows` shows them. Nothing was removed."
            )
        ids |= matches
    return pack(sorted(ids))


def _by_client(
    store: DiskStore, opened: dict[str, EmbeddingSet], client: str, set_name: str | None
) -> tuple[IdArray, tuple[str, str], int]:
    """The ids that only this client holds, the (set, client) that leaves, and how many others hold too."""
    holders = [digest for digest, found in opened.items() if client in set(found.clients or ())]
    if set_name is not None:
        holders = [digest for digest in holders if digest == store.sets.resolve(set_name)]
    if len(holders) != 1:
        raise NotFoundError(
            f"Client {client!r} is in {len(holders)} sets of this cache; name one by `set_name`. Nothing was removed."
        )
    mine, others = set[str](), set[str]()
    for digest, found in opened.items():
        for sample, owner in zip(found.ids, found.clients or (), strict=False):
            if owner != client:
                others.add(sample)
            elif digest == holders[0]:
                mine.add(sample)
    return pack(sorted(mine - others)), (holders[0], client), len(mine & others)


def _rewrite_set(store: DiskStore, digest: str, found: EmbeddingSet, doomed: IdArray, leaving: tuple[str, str]) -> bool:
    """Keep a set without the rows that go, under the names it had; gives whether it changed."""
    stay = IdLookup(doomed).locate(pack(found.ids)) < 0
    if leaving[0] == digest:
        stay &= np.array([owner != leaving[1] for owner in found.clients or ()])
    if stay.all():
        return False
    if stay.any():
        thin = replace(found, embeddings=np.zeros((len(found), found.dimension), dtype=np.uint8))
        rest = thin.select(np.flatnonzero(stay))
        new = store.sets.write(replace(rest, embeddings=store.load(found.spec, rest.ids, masked=rest.masked)))
        for name in store.sets.names_of(digest):
            store.sets.give_name(name, new)
    store.sets.remove(digest)
    return True
