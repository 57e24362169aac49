"""Taking things out of a cache: sets, rows nobody uses, and samples that must not stay anywhere in it.

Every removal is journalled: killed at any step, the same command finishes it, and until then nothing else is done.
Whatever a step does, doing it again does nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from probekit.cache import journal
from probekit.cache.disk import WORK, DiskStore
from probekit.cache.entry import Entry
from probekit.cache.ids import IdArray, IdLookup, stack
from probekit.cache.journal import changing
from probekit.cache.rows import Places, StoredRows
from probekit.cache.users import users
from probekit.errors import InputError, NotFoundError
from probekit.files import remove_folder
from probekit.values import Json

DAMAGED, INCOMING = "damaged", "incoming"
"""Folders of a cache with files that were set aside, and with those that wait for the others of their set."""


@dataclass(frozen=True)
class Removed:
    """What was taken out: rows, sets, and what stayed because somebody else holds it too.

    busy: backbones whose unused rows stay, as an extraction is at work on them. runs: those that stood on what went.
    files, searched: how many files and bytes were searched for what is left; remains: where something is.
    """

    rows: int = 0
    sets: tuple[str, ...] = ()
    shared: int = 0
    files: int = 0
    searched: int = 0
    remains: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


def drop_rows(entry: Entry, doomed: IdArray) -> int:
    """Rewrite every file of an entry that holds a doomed row; gives how many rows went."""
    lookup, gone = IdLookup(doomed), 0
    kept: dict[str, list[str]] = {"shards": [], "pieces": []}
    with changing(entry.root):
        for file in entry.files():
            keep, place, name = np.flatnonzero(lookup.locate(file.ids) < 0), file.path.parent.name, file.name
            gone += len(file.ids) - len(keep)
            if 0 < len(keep) < len(file.ids):
                rows = StoredRows.of(Places([file.rows], np.zeros_like(keep), keep))
                name = entry.write_shard(place, file.ids[keep], rows)
            if len(keep):
                kept[place].append(name)
        journal.reached("rows written")
        if kept["shards"] != entry.shard_names():
            entry.write_index(kept["shards"])
        journal.reached("index switched")
        for place, names in kept.items():
            entry.keep(place, names)
    return gone


def remove_set(store: DiskStore, name: str, *, keep_rows: bool = False) -> Removed:
    """Forget a set and, unless told otherwise, its rows that no other set uses."""
    request: dict[str, Json] = {"set": name, "keep_rows": keep_rows}
    with changing(store.root, removing=True):
        plan = resumed(store, "rm", request)
        if plan is None:
            digest = store.sets.resolve(name)
            spec = store.sets.read_note(digest)["spec"]
            rows = 0 if keep_rows else len(_unused_without(store, spec, [digest], only=digest))
            command = f"probekit cache rm {name} --yes{' --keep-rows' * keep_rows}"
            plan = _begin(store, "rm", request, command, sets=[digest], rows={} if keep_rows else {spec: rows})
        return _finish(store, plan)


def remove_spec(store: DiskStore, beginning: str) -> Removed:
    """Remove a spec, its rows and all sets made of them."""
    request: dict[str, Json] = {"spec": beginning}
    with changing(store.root, removing=True):
        plan = resumed(store, "rm", request)
        if plan is None:
            matches = [entry for entry in store.entries() if entry.folder.name.startswith(beginning)]
            if len(matches) != 1:
                found = f"found {len(matches) or 'none'}. See `probekit cache ls`."
                raise NotFoundError(f"Wanted one entry that begins with {beginning!r}, {found}")
            entry = matches[0]
            if busy(entry):
                raise InputError(f"An extraction is at work on {entry.folder.name[:12]}. Stop it, or wait for its end.")
            rows, sets = sum(len(shard.ids) for shard in entry.files()), store.sets.digests(entry.folder.name)
            command = f"probekit cache rm {beginning} --yes"
            plan = _begin(store, "rm", request, command, sets=sets, rows={entry.folder.name: rows}, whole=True)
        return _finish(store, plan)


def prune(store: DiskStore, *, older_than_days: float | None = None, dry_run: bool = False) -> Removed:
    """Remove rows that no set uses, unfinished work and leftovers; with an age, also sets made before that.

    Rows that an extraction is making just now stay.
    """
    request: dict[str, Json] = {"older_than_days": older_than_days}
    with changing(store.root, removing=True):
        plan = resumed(store, "prune", request)
        if plan is None:
            old: list[str] = []
            if older_than_days is not None:
                limit = time.time() - older_than_days * 86400
                paths = {digest: store.root / "sets" / digest / "set.json" for digest in store.sets.digests()}
                old = [digest for digest, path in paths.items() if path.stat().st_mtime < limit]
            there = {entry.folder.name: entry for entry in store.entries()}
            rows = {spec: len(_unused_without(store, spec, old)) for spec in there}
            if dry_run:
                waiting = {spec for spec, entry in there.items() if busy(entry)}
                free = sum(count for spec, count in rows.items() if spec not in waiting)
                return Removed(free, tuple(old), busy=_backbones(store, waiting))
            older = "" if older_than_days is None else f" --older-than {older_than_days:g}"
            plan = _begin(store, "prune", request, f"probekit cache prune{older}", sets=old, rows=rows)
        return _finish(store, plan)


def resumed(store: DiskStore, kind: str, request: Mapping[str, Json]) -> dict[str, Any] | None:
    """The plan of the same removal, if it was begun before; another one has to be finished first."""
    plan = journal.pending(store.root)
    if plan is not None and (plan["kind"], plan["request"]) != (kind, dict(request)):
        journal.refuse(store.root)
    return plan


def _begin(
    store: DiskStore,
    kind: str,
    request: Mapping[str, Json],
    command: str,
    *,
    sets: Sequence[str],
    rows: Mapping[str, int],
    whole: bool = False,
) -> dict[str, Any]:
    """Journal that these sets go, and of these specs the rows that no set uses then (`whole`: the specs, too)."""
    runs: list[Json] = [str(run) for run in users(store.root, sets)]
    plan: dict[str, Json] = {"kind": kind, "request": dict(request), "command": command, "whole": whole, "runs": runs}
    return journal.begin(store.root, {**plan, "sets": list(sets), "rows": dict(rows)})


def _finish(store: DiskStore, plan: Mapping[str, Any]) -> Removed:
    """Rows before sets, so that who does it again still knows which rows they were."""
    journal.reached("journalled")
    waiting, gone = set(), 0
    for spec, rows in plan["rows"].items():
        entry = store.entry(spec)
        if plan["whole"]:
            for digest in plan["sets"]:
                store.sets.remove(digest)
            remove_folder(entry.folder)
        elif busy(entry):
            waiting.add(spec)
            continue
        elif entry.folder.exists():
            only = plan["sets"][0] if plan["kind"] == "rm" else None
            drop_rows(entry, _unused_without(store, spec, plan["sets"], only=only))
        gone += rows
        journal.reached("rows dropped")
    for digest in plan["sets"]:
        store.sets.remove(digest)
        journal.reached("set removed")
    if plan["kind"] == "prune":
        for leftover in (DAMAGED, INCOMING):
            remove_folder(store.root / leftover)
    journal.strike(store.root)
    return Removed(gone, tuple(plan["sets"]), busy=_backbones(store, waiting), runs=tuple(plan["runs"]))


def busy(entry: Entry) -> bool:
    """Whether an extraction is at work on an entry; asked while the cache is held, so that none begins meanwhile."""
    for path in entry.folder.glob(f"{WORK}*"):
        try:
            FileLock(path).acquire(timeout=0).lock.release()
        except Timeout:
            return True
    return False


def _backbones(store: DiskStore, specs: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(store.entry(spec).spec.backbone for spec in specs))


def _unused_without(store: DiskStore, spec: str, sets: Collection[str], *, only: str | None = None) -> IdArray:
    """The ids of an entry's rows (`only`: of a set's) that no set uses but these."""
    others = [digest for digest in store.sets.digests(spec) if digest not in sets]
    used = IdLookup(stack(store.sets.read_columns(digest)["ids"] for digest in others))
    if only is not None and not _set_path(store, only).exists():
        return stack([])
    there = stack(shard.ids for shard in store.entry(spec).files())
    if only is not None:
        there = there[IdLookup(np.array(store.sets.read_columns(only)["ids"])).locate(there) >= 0]
    return there[used.locate(there) < 0]


def _set_path(store: DiskStore, digest: str) -> Path:
    return store.root / "sets" / digest
