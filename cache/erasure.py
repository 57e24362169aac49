"""Erasing samples from a cache: from every set and every backbone's rows, and a search for what is left of them.

In this order: a journal; tombstones, so that the samples do not come back; sets without them, and names switched to
these; rows without them, and the index switched; the old files removed; the search; the journal struck out. Killed
anywhere, the same command finishes it.
"""

from __future__ import annotations

import bisect
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probekit.cache import journal
from probekit.cache.disk import DiskStore
from probekit.cache.entry import Entry
from probekit.cache.ids import SHORTEST, IdArray, IdLookup, hex_ids, pack
from probekit.cache.journal import JOURNAL, changing
from probekit.cache.matrices import tensor_places
from probekit.cache.removal import DAMAGED, INCOMING, Removed, drop_rows, resumed
from probekit.cache.search import Excuse, Needle, needles_of, search
from probekit.cache.users import users
from probekit.errors import InputError, NotFoundError, OtherRunsError
from probekit.files import remove_folder
from probekit.values import EmbeddingSet, Json

PURGE = "purge"


class Doomed(NamedTuple):
    """The samples that go; the (set, client) that leaves it with what others hold too, and how much that is."""

    ids: IdArray
    leaving: tuple[str, str] = ("", "")
    shared: int = 0


def purge(
    store: DiskStore,
    *,
    samples: Sequence[str] = (),
    client: str | None = None,
    set_name: str | None = None,
    yes: bool = False,
) -> Removed:
    """Take samples out of every spec and every set, rewrite what held them, and search all files for what is left.

    Samples are ids (or their beginnings) or names of rows. A client's samples that another client or set also holds
    stay (counted in `shared`): erase those by id. `yes`: also where runs stand on the sets that held them.

    The same again, or nothing at all, finishes a purge that was interrupted. Where something is left (`remains`) it is
    not finished: remove those files, then the same again.
    """
    request: dict[str, Json] = {"samples": list(samples), "client": client, "set_name": set_name}
    with changing(store.root, removing=True):
        pending = journal.pending(store.root)
        if pending is not None and pending["kind"] == PURGE and not samples and client is None:
            request = pending["request"]
        plan = resumed(store, PURGE, request)
        if plan is None:
            if bool(samples) == (client is not None):
                raise InputError("Say what to purge: either samples, or one client of one set.")
            opened = {digest: store.open(digest) for digest in store.sets.digests()}
            by_client = client is not None
            doomed = (
                _by_client(store, opened, str(client), set_name) if by_client else _by_samples(store, opened, samples)
            )
            plan = plan_of(store, doomed)
            refuse_others(plan["runs"], yes=yes)
            more: dict[str, Json] = {"kind": PURGE, "request": request, "command": "probekit cache purge --yes"}
            plan = journal.begin(store.root, {**plan, **more})
        journal.reached("journalled")
        erase(store, plan)
        removed = look_for(store, plan)
        if not removed.remains:
            journal.strike(store.root)
        return removed


def refuse_others(runs: Sequence[str], *, yes: bool) -> None:
    """Refuse to take rows from runs that nobody agreed about."""
    if runs and not yes:
        raise OtherRunsError(
            f"{len(runs)} runs stand on these rows and would lose them: {'; '.join(runs)}. Nothing was erased. Give "
            "`yes=True` to erase them all the same.",
            tuple(runs),
        )


def plan_of(store: DiskStore, doomed: Doomed) -> dict[str, Any]:
    """What a journal has to say of an erasure: samples, sets and runs concerned, and what to search for at the end."""
    lookup, salt = IdLookup(doomed.ids), secrets.token_bytes(16)
    held = {digest: store.sets.read_columns(digest)["ids"] for digest in store.sets.digests()}
    sets = [digest for digest, ids in held.items() if digest == doomed.leaving[0] or (lookup.locate(ids) >= 0).any()]
    rows = [row for entry in store.entries() for row in _rows_of(entry, lookup)]
    return {
        "ids": list(hex_ids(doomed.ids)),
        "leaving": list(doomed.leaving),
        "shared": doomed.shared,
        "sets": sets,
        "rows": len(rows),
        "runs": [str(run) for run in users(store.root, sets)],
        "salt": salt.hex(),
        "needles": [list(one) for one in needles_of([*rows, *map(bytes, doomed.ids)], salt)],
    }


def erase(store: DiskStore, plan: Mapping[str, Any]) -> None:
    """Tombstones, then sets, then rows. Doing it again does what is left of it."""
    store.tombstones.add(plan["ids"])
    journal.reached("tombstones")
    doomed, there = pack(plan["ids"]), set(store.sets.digests())
    for digest in plan["sets"]:
        if digest in there:
            _rewrite_set(store, digest, IdLookup(doomed), plan["leaving"])
            journal.reached("set rewritten")
    for entry in store.entries():
        drop_rows(entry, doomed)
        journal.reached("rows dropped")
    for leftover in (DAMAGED, INCOMING):
        remove_folder(store.root / leftover)


def look_for(store: DiskStore, plan: Mapping[str, Any]) -> Removed:
    """Search the cache for what is left of what was erased."""
    needles, salt = [Needle(*one) for one in plan["needles"]], bytes.fromhex(plan["salt"])
    skip = [store.root / JOURNAL]
    found, files, searched = search(store.root, needles, salt, skip=skip, excused=_rows_that_stay(store))
    journal.reached("searched")
    counted = {"shared": plan["shared"], "files": files, "searched": searched, "remains": found}
    return Removed(plan["rows"], tuple(plan["sets"]), runs=tuple(plan["runs"]), **counted)


def _rows_that_stay(store: DiskStore) -> Excuse:
    """Whether bytes in a file of rows or in a set's columns are those of what stays.

    Two pictures may have the same embedding, and bytes across two rows, or two ids, may happen to be a third one. An id
    in its place, or a name, is never excused, nor is any byte of another file.
    """
    files = [file.path for entry in store.entries() for file in entry.files()]
    files += [store.sets.columns_path(digest) for digest in store.sets.digests()]
    places = {path: tensor_places(path) for path in files}

    def excused(path: Path, place: int, length: int) -> bool:
        tensors = places.get(path)
        if tensors is None or place < min(begin for begin, _ in tensors.values()):
            return False
        touched = {name for name, (begin, end) in tensors.items() if place < end and place + length > begin}
        an_id = touched == {"ids"} and (place - tensors["ids"][0]) % 32 == 0
        return not an_id and "names" not in touched

    return excused


def _rows_of(entry: Entry, lookup: IdLookup) -> Iterator[bytes]:
    for shard in entry.files():
        for row in np.flatnonzero(lookup.locate(shard.ids) >= 0).tolist():
            yield shard.rows[row].tobytes()


def _by_samples(store: DiskStore, opened: Mapping[str, EmbeddingSet], samples: Sequence[str]) -> Doomed:
    """The ids that these texts mean: ids, beginnings of ids, or names of rows."""
    known = {sample for entry in store.entries() for shard in entry.files() for sample in hex_ids(shard.ids)}
    known = known.union(*(found.ids for found in opened.values()))
    pairs = (zip(found.names or (), found.ids, strict=False) for found in opened.values())
    named = dict(pair for one in pairs for pair in one)
    ordered, ids = sorted(known), set[str]()
    for text in samples:
        matches = {text} if text in known else {named[text]} if text in named else {*_beginning(text, ordered)}
        if len(matches) != 1:
            raise NotFoundError(
                f"{text!r} means {len(matches)} samples of this cache; give a full id or a row's name. "
                "`probekit cache info SET --rows` shows them. Nothing was removed."
            )
        ids |= matches
    return Doomed(pack(sorted(ids)))


def _beginning(text: str, ordered: Sequence[str]) -> Iterable[str]:
    """The ids, of a sorted list, that begin with a text."""
    text = text.lower()
    if len(text) < SHORTEST:
        return ()
    return ordered[bisect.bisect_left(ordered, text) : bisect.bisect_left(ordered, text + "g")]


def _by_client(store: DiskStore, opened: Mapping[str, EmbeddingSet], client: str, set_name: str | None) -> Doomed:
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
    return Doomed(pack(sorted(mine - others)), (holders[0], client), len(mine & others))


def _rewrite_set(store: DiskStore, digest: str, doomed: IdLookup, leaving: Sequence[str]) -> None:
    """Keep a set without the rows that go, under the names it had."""
    note, columns = store.sets.read_note(digest), store.sets.read_columns(digest)
    stay = doomed.locate(columns["ids"]) < 0
    if leaving[0] == digest:
        stay &= columns["clients"] != note["clients"].index(leaving[1])
    if stay.any():
        found = store.open(digest)
        thin = replace(found, embeddings=np.zeros((len(found), found.dimension), dtype=np.uint8))
        rest = thin.select(np.flatnonzero(stay))
        new = store.sets.write(replace(rest, embeddings=store.load(found.spec, rest.ids, masked=rest.masked)))
        journal.reached("set written")
        for name in store.sets.names_of(digest):
            store.sets.give_name(name, new)
            journal.reached("name switched")
    store.sets.remove(digest)
