"""Removing from a run, and from the cache, what was derived from the forgotten.

In this order: locks, of the cache and then of the runs; journals, of the runs and then of the cache, whose appearing
begins a purge with rows; tombstones; new sets and partitions, and run.json switched to them; sets and rows of the
cache; old files; the search; the ledger; the journals struck out, the cache's last. Killed anywhere, the same command
finishes it, and nothing is called done before.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore, journal
from probekit.cache.erasure import erase, look_for
from probekit.cache.journal import changing, pending, strike
from probekit.cache.users import missing, register, registered
from probekit.certificates.certificate import read_certificate
from probekit.certificates.stripping import read_stripped, stripped_text
from probekit.errors import UnfinishedError
from probekit.files import remove_file, remove_folder, write_text
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import CERTIFICATE, checkpoint_path
from probekit.runs.layout import NOTE as RUN_NOTE
from probekit.runs.ledger import Event
from probekit.runs.purge_plan import doomed_places, left_in, plan_files, plan_rows, refuse_idle, retained_rows, trace_of
from probekit.runs.result import Result, to_plain
from probekit.runs.rows import PURGE
from probekit.runs.states import NOTE
from probekit.values import Json

KIND = "purge of a run"
UNREACHED = (
    "copies of this run, exports and backups",
    "heads and certificates that were handed out before",
    "the data set itself, and the clients' own files",
    "blocks of the disk that were freed but not yet overwritten, snapshots of the file system, swap",
    "hard links outside of the run, and processes that have its files open",
)
REQUESTS_STAY = (
    "the ledger's openings, which name what was forgotten while its rows are in the cache: purge the rows too"
)
OLD_LEDGER = (
    "entries of the ledger that an earlier version wrote: they name what was forgotten, and hold unsealed digests by "
    "which a candidate can be tried"
)
TRACE_STAYS = (
    "the head itself, and the numbers in its certificate: {} took it from the head before, which knew the forgotten; "
    "whoever has the retained rows and candidates for a forgotten one can try them. Only `exact` and the retraining "
    "methods leave no such trace"
)
RIDGE_STAYS = "the ridge, one of a fixed grid, which was chosen from all rows: give a number where that matters"
TERM_STAYS = (
    "the secret linear term of the objective (kept/objective.safetensors), which later removals need; it "
    "does not depend on any row"
)


@dataclass(frozen=True)
class PurgedRows:
    """Rows erased from the cache, bytes searched for what is left of them, and where something is."""

    rows: int
    searched: int
    remains: tuple[str, ...]


@dataclass(frozen=True)
class PurgeResult(Result):
    """What was removed from a run and, where asked for, from the cache; and what cannot be reached from here.

    remains: files of runs that should have gone. also_purged: other runs that were purged with this one.
    other_runs: those that stood on erased rows and were left as they are. Where anything remains, in the cache or in a
    run, the purge is not `complete`: remove it, then purge again.
    """

    run: Path
    removed: tuple[str, ...]
    cache: PurgedRows | None
    remains: tuple[str, ...]
    also_purged: tuple[str, ...]
    other_runs: tuple[str, ...]
    unreached: tuple[str, ...]
    complete: bool


def purge(run: OpenRun, *, rows: bool = False, also_runs: bool = False, yes: bool = False) -> PurgeResult:
    """Remove earlier states (heads, statistics, gradients, history); with `rows`, forgotten rows in the cache too.

    also_runs: purge with it other runs on the same rows that forgot them as well.
    yes: erase the rows even if other runs lose them by it.

    A purge that was interrupted is finished as it was begun, whatever is asked for now.
    """
    with ExitStack() as locks:
        if rows or _in_cache(run):
            locks.enter_context(changing(run.store.root, removing=True))
            register(run.store.root, run.path)
        plan = _begun(run, rows=rows)
        with_it = _named(plan) if plan is not None else registered(run.store.root) if rows and also_runs else []
        folders = _lock(locks, run.folder, with_it)
        if plan is None:
            refuse_idle(run.folder, rows=rows)
            plan = _begin(run, folders, rows=rows, also_runs=also_runs, yes=yes)
        journal.reached("journalled")
        return _finish(run, folders, plan)


def unfinished(run: OpenRun) -> bool:
    """Whether a purge of this run was begun and interrupted."""
    return pending(run.path) is not None or _in_cache(run)


def _in_cache(run: OpenRun) -> bool:
    """Whether the journal of the cache, or the run's, is of a purge of this run that takes rows."""
    plan, own = pending(run.store.root), pending(run.path)
    here = plan is not None and run.path.absolute() in _named(plan)
    return here or (own is not None and own["cache"] is not None)


def _named(plan: Mapping[str, Any]) -> list[Path]:
    return [Path(one["path"]) for one in plan.get("targets", ())]


def _begun(run: OpenRun, *, rows: bool) -> dict[str, Any] | None:
    """The plan that an interrupted purge of this run follows; one that did not really begin is struck out."""
    root, own, plan = run.store.root, pending(run.path), pending(run.store.root)
    if own is not None and own["cache"] is None:
        return own
    if own is not None and own["cache"] != str(root.absolute()):
        raise UnfinishedError(
            f"A purge of {run.path} and of the cache {own['cache']} was interrupted: name that cache."
        )
    if plan is not None:
        if own is not None and own["operation"] == plan["operation"]:  # the run may have been moved since
            moved = {own["path"]: str(run.path.absolute())}
            targets = [{**one, "path": moved.get(one["path"], one["path"])} for one in plan["targets"]]
            return {**plan, "targets": targets}
        if run.path.absolute() in _named(plan):
            return plan
        if rows or own is not None:
            journal.refuse(root)
    if own is not None:
        for path in map(Path, own["paths"]):
            if (pending(path) or {}).get("operation") == own["operation"]:
                strike(path)
        strike(run.path)
    return None


def _lock(locks: ExitStack, run: RunFolder, others: Sequence[Path]) -> dict[Path, RunFolder]:
    """All these runs that are there, locked in the order of their paths."""
    own = run.path.absolute()
    found = {path: RunFolder.open(path, unfinished=True) for path in others if (path / RUN_NOTE).is_file()}
    found[own] = run
    for path in sorted(found):
        locks.enter_context(found[path].lock(purging=True))
    return found


def _begin(
    run: OpenRun, folders: Mapping[Path, RunFolder], *, rows: bool, also_runs: bool, yes: bool
) -> dict[str, Any]:
    """Write the journals."""
    path = run.path.absolute()
    command = f"probekit purge {path}{' --rows' * rows} --yes"
    head: dict[str, Json] = {
        "operation": secrets.token_hex(8),
        "kind": KIND,
        "request": {"run": str(path)},
        "command": command,
    }
    head["path"] = str(path)
    if not rows:
        return journal.begin(path, {**head, "cache": None, "targets": [plan_files(run.folder)]})
    others = [folder for name, folder in folders.items() if name != path]
    plan = plan_rows(run.folder, run.store, others, also=also_runs, yes=yes)
    paths = [str(one) for one in _named(plan)]
    cache = str(run.store.root.absolute())
    for one in paths:
        journal.begin(Path(one), {**head, "path": one, "cache": cache, "paths": list(paths)})
        journal.reached("run journalled")
    return journal.begin(run.store.root, {**head, **plan, "cache": cache})


def _finish(run: OpenRun, folders: Mapping[Path, RunFolder], plan: Mapping[str, Any]) -> PurgeResult:
    """Everything after the journal; a step that was done before does nothing."""
    store, own = run.store, run.path.absolute()
    there = {Path(one["path"]): one for one in plan["targets"] if Path(one["path"]) in folders}
    if plan["cache"] is not None:
        store.tombstones.add(plan["ids"])
        for path, one in there.items():
            _switch(folders[path], store, one["target"])
            journal.reached("run switched")
        erase(store, plan)
    for path in there:
        _remove_files(folders[path])
        journal.reached("files removed")
    cached = None
    if plan["cache"] is not None:
        looked = look_for(store, plan)
        cached = PurgedRows(looked.rows, looked.searched, looked.remains)
    left = {path: left_in(folders[path], one["objects"]) for path, one in there.items()}
    remains = tuple(str(path / name) for path, names in left.items() for name in names)
    complete = not remains and (cached is None or not cached.remains)
    if complete:
        for path, one in there.items():
            _record(folders[path], one, cached, str(plan["operation"]))
            journal.reached("recorded")
        for path in there:
            strike(path)
            journal.reached("run struck")
        if plan["cache"] is not None:
            strike(store.root)
    mine = there.get(own) or next(iter(there.values()))
    also = tuple(str(path) for path in there if path != own)
    gone = tuple(plan.get("runs", ()))
    unreached = _unreached(run, there, rows=plan["cache"] is not None)
    return PurgeResult(run.path, tuple(mine["removed"]), cached, remains, also, gone, unreached, complete)


def _switch(run: RunFolder, store: DiskStore, target: Mapping[str, str]) -> None:
    """Let a run stand on the set of its retained rows."""
    if run.inputs["set"] == target["set"]:
        return
    rest, partition = retained_rows(run, store)
    sealed = store.seal(rest)
    store.sets.give_name(target["name"], sealed.digest)
    journal.reached("set of a run written")
    run.rebase(sealed, target["name"], partition)


def _remove_files(run: RunFolder) -> None:
    """Remove earlier states but what is left of their certificates, and what was made of them."""
    for place in doomed_places(run):
        if not (place / CERTIFICATE).is_file():
            remove_folder(place)
            continue
        remove_file(place / NOTE)  # first, so that nobody takes the rest for a state
        _strip(place / CERTIFICATE)
        for path in sorted(place.iterdir()):
            if path.is_dir():
                remove_folder(path)
            elif path.name != CERTIFICATE:
                remove_file(path)
    remove_file(checkpoint_path(run.path))
    run.drop_partitions()


def _strip(path: Path) -> None:
    """Leave of a certificate what tells nothing of those that were forgotten later."""
    text = path.read_text()
    if read_stripped(text) is None:
        write_text(path, stripped_text(*read_certificate(text)))


def _record(run: RunFolder, one: Mapping[str, Any], cached: PurgedRows | None, operation: str) -> None:
    """Enter a purge in the run's ledger, once, and erase the salts of all that went by it."""
    if not any(entry.details.get("operation") == operation for entry in run.entries()):
        # how many only: names of files are names of clients
        details = {"removed": len(one["removed"]), "cache": to_plain(cached), "operation": operation}
        details["trace"] = trace_of(run.entries())
        run.record(Event(PURGE, {"state": run.state}, details))
    run.erase()


def _unreached(run: OpenRun, there: Mapping[Path, Mapping[str, Any]], *, rows: bool) -> tuple[str, ...]:
    folder = run.folder
    old = any(entry.format == 1 for entry in folder.entries())
    chosen = "ridge_chosen" in folder.head().recipe
    notes = (
        *((folder.at().objective() is not None, TERM_STAYS), (chosen, RIDGE_STAYS)),
        *((not rows, REQUESTS_STAY), (old, OLD_LEDGER)),
    )
    stays = [text for holds, text in notes if holds]
    if method := trace_of(folder.entries()):
        stays.append(TRACE_STAYS.format(method))
    if linked := sum(one["linked"] for one in there.values()):
        stays.append(f"{linked} of the removed files, which have another name outside the run (hard links)")
    if rows and (lost := missing(run.store.root)):
        stays.append(f"runs that are not where they were when they were trained: {', '.join(map(str, lost))}")
    return (*UNREACHED, *stays)
