"""The verb: samples leave runs and cache, down to the bytes.

First the intent is written into the cache; until it is gone, all other commands refuse. Then every
run that shares the rows unlearns them and is written without them: a state whose history has not
their names, the partition, no older states. Then the cache's rows, sets and memo, what killed
commands left behind, and the intent. Every step may be repeated: the same command finishes.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from probekit.arrays import hex_id
from probekit.cache import Cache
from probekit.cache.erasure import Intent, finish, read_intent, remove_samples, write_intent
from probekit.cache.runs import noted_runs, write_runs
from probekit.data.triggers import Poison
from probekit.errors import CacheError, InputError, NotFoundError, ProbekitError
from probekit.files import (
    ASIDE,
    REPLACED,
    new_folder,
    remove_folder,
    restore_folder,
    sync_folder,
    write_bytes,
)
from probekit.progress import Progress, silent
from probekit.records import dump
from probekit.runs import layout
from probekit.runs.layout import AnyEvent, Erased, Trained, Unlearned
from probekit.runs.rows import Mask, RunRows
from probekit.runs.run import Run, StoredState, write_state
from probekit.runs.unlearn import check_request, requested_samples

LEFTOVER = re.compile(r"\.aside-.+-[0-9a-f]{8}", re.DOTALL)
NOT_PROMISED = (
    "Not erased: backups, snapshots of the file system, exports, statistics files, heads that "
    "are deployed, the source pictures."
)


@dataclass(frozen=True, eq=False)
class Erasure:
    """What is erased, from which runs: rows by folder, the run that was named first.

    same_samples: how many rows of clients that were not named hold samples that are erased.
    """

    run: Path
    cache: Cache
    request: tuple[str, ...]
    clients: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    rows: dict[Path, int] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    finished: bool = False
    same_samples: dict[str, int] = field(default_factory=dict)

    @property
    def others(self) -> list[Path]:
        """The other runs that share the rows."""
        return [folder for folder in self.rows if folder != self.run]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "clients": list(self.clients),
            "samples": len(self.samples),
            "rows": {str(folder): count for folder, count in self.rows.items()},
            "same_samples": self.same_samples,
            "erased": self.finished,
            "not_promised": NOT_PROMISED,
        }


def plan_erasure(
    folder: Path | str,
    *,
    cache: Cache | Path | str | None = None,
    clients: Collection[str] = (),
    samples: Collection[str] = (),
    where: str | None = None,
    gone: Collection[str] = (),
    dry_run: bool = False,
    progress: Progress = silent,
) -> Erasure:
    """What would be erased: clients, samples (ids, or their first digits) or rows by a column.

    An erasure that was killed is finished first, unless this is a dry run. Every run must be able
    to do without the rows, before anything is changed.
    gone: ids of runs that are lost, and need not be found.
    """
    root = cache.root if isinstance(cache, Cache) else cache
    store = Cache(root, during_erasure=True)
    restore_folder(Path(folder).expanduser())
    run = Run(folder, cache=store)
    request = tuple(
        [*(f"client={name}" for name in clients), *(f"sample={name}" for name in samples)]
        + ([where] if where else [])
    )
    check_request("An erasure", clients, samples, where)
    layout.refuse_links("cache", store.root)
    lost = frozenset(gone)
    intent = read_intent(store)
    if intent is not None:
        if dry_run:
            raise CacheError(
                f"An erasure in {store.root} is not finished. Run the same command without "
                "--dry-run."
            )
        counts = dict.fromkeys(_finish(intent, store, run.folder, lost, progress), 0)
        if intent.request == request:
            return Erasure(
                run.folder, store, request, intent.clients, intent.samples, counts, finished=True
            )
    rows = run.newest.all_rows
    unknown = set(clients) - (set(rows.clients) - {""})
    if unknown:
        raise InputError(
            f"Cannot erase client {min(unknown)!r}: no row of this run is theirs, or all were "
            "erased. Check the name."
        )
    samples = requested_samples(samples, where, run)
    mask = rows.held_by(clients) | rows.with_ids(samples)
    ids = tuple(sorted({hex_id(row) for row in rows.ids[mask]}))
    intent = Intent("", request, run.newest.description.id, tuple(sorted(clients)), ids, {})
    counts = {}
    for folder in [run.folder, *_sharing(run.folder, store, intent, lost)]:
        sharing = run if folder == run.folder else Run(folder, cache=store)
        counts[folder] = int(_erased_rows(sharing.newest, intent).sum())
        _check_remaining(sharing, intent)
        _unlearn(sharing, intent, dry_run=True, progress=progress)
    also = rows.take(_erased_rows(run.newest, intent) & ~mask).counts()
    return Erasure(run.folder, store, request, intent.clients, ids, counts, lost, same_samples=also)


def _check_remaining(run: Run, intent: Intent) -> None:
    stored = run.newest
    remaining = stored.all_rows.take(~_erased_rows(stored, intent))
    retained = layout.retained(remaining, _rewritten(stored.events, remaining))
    if not retained.counts() or (retained.targets is None and len(retained.classes) < 2):
        raise InputError(
            f"A head needs rows of two classes; {run.folder} would have {len(retained)} rows of "
            f"{len(retained.classes)}. Erase less, or delete this run and pass --gone "
            f"{stored.description.id}."
        )


def _erased_rows(stored: StoredState, intent: Intent) -> Mask:
    """Which rows of a run an erasure is about; a client is one of the run that was named."""
    rows = stored.all_rows
    clients = intent.clients if stored.description.id == intent.run else ()
    return rows.held_by(clients) | rows.with_ids(intent.samples)


def _sharing(run: Path, cache: Cache, intent: Intent, gone: frozenset[str]) -> list[Path]:
    """The other runs that hold these samples: those that the cache knows, and those beside."""
    return [
        folder
        for run_id, folder in _runs_of_cache(run, cache, gone).items()
        if run_id != intent.run
        and StoredState.newest(layout.find_run(folder)).all_rows.with_ids(intent.samples).any()
    ]


def _runs_of_cache(run: Path, cache: Cache, gone: frozenset[str]) -> dict[str, Path]:
    """Folders of runs by their ids; refused where a run that was written is missing."""
    noted = noted_runs(cache)
    parents = {run.parent, *(entry.folder(cache).parent for entry in noted.values())}
    beside = [path.parent for parent in parents for path in sorted(parent.glob("[!.]*/run.json"))]
    folders: dict[str, Path] = {}
    for folder in {*beside, run}:
        run_id = _run_id(folder)
        if run_id and run_id in folders:
            raise InputError(
                f"Every run must be there once; {folder} and {folders[run_id]} are the same. "
                "Remove the copy."
            )
        if run_id:
            folders[run_id] = folder
    for run_id, entry in noted.items():
        if entry.done and run_id not in folders and run_id not in gone:
            raise NotFoundError(
                f"Every run of this cache must be here; one is not at {entry.folder(cache)}. Move "
                f"it beside {run}, or pass --gone {run_id} if it is lost."
            )
    return folders


def _run_id(folder: Path) -> str:
    """The id of the run in a folder, "" where there is none."""
    try:
        return layout.read_description(folder)[0].id
    except (ProbekitError, OSError):
        return ""


def _finish(
    intent: Intent, cache: Cache, run: Path, gone: frozenset[str], progress: Progress
) -> list[Path]:
    """All steps that are not done yet; the folders of the runs."""
    runs = _runs_of_cache(run, cache, gone)
    folders = []
    for run_id, path in intent.runs.items():
        folder = runs.get(run_id, Path(os.path.normpath(cache.root.resolve() / path)))
        if _run_id(folder) == run_id:
            folders.append(folder)
        elif run_id not in gone:
            raise NotFoundError(
                f"A run that is being erased from is not at {folder}. Move it beside {run}, or "
                f"pass --gone {run_id} if it is lost."
            )
    for folder in folders:
        _erase_from_run(Run(folder, cache=cache), intent, progress)
    remove_samples(cache, intent.ids)
    noted = noted_runs(cache)
    parents = {folder.parent for folder in (run, *folders)}
    parents |= {entry.folder(cache).parent for entry in noted.values()}
    for parent in parents:
        _sweep(parent)
    if gone & noted.keys():
        with cache.changing():
            write_runs(cache, {name: noted[name] for name in noted if name not in gone})
    finish(cache)
    return folders


def _unlearn(run: Run, intent: Intent, *, dry_run: bool, progress: Progress) -> None:
    """Forget what is not forgotten yet, by the run's own best method."""
    stored = run.newest
    clients = intent.clients if stored.description.id == intent.run else ()
    retained = stored.rows
    leaving = [name for name in clients if retained.held_by([name]).any()]
    if leaving:
        run.unlearn(client=leaving, dry_run=dry_run, progress=progress)
        retained = retained.take(~retained.held_by(leaving)) if dry_run else run.newest.rows
    mask = retained.with_ids(intent.samples)
    samples = sorted({hex_id(row) for row in retained.ids[mask]})
    if samples:
        run.unlearn(sample=samples, dry_run=dry_run, progress=progress)


def _erase_from_run(run: Run, intent: Intent, progress: Progress) -> None:
    last = run.newest.events[-1]
    is_written = isinstance(last, Erased) and last.token == intent.token
    if not is_written:
        _unlearn(run, intent, dry_run=False, progress=progress)
    with layout.working(run.folder, progress):
        stored = Run(run.folder, cache=run.cache).newest
        rows = stored.all_rows
        erased = _erased_rows(stored, intent)
        remaining = rows.take(~erased)
        if not is_written:
            event = Erased(layout.now(), int(erased.sum()), intent.token)
            events = [*_rewritten(stored.events, remaining), event]
            retained = layout.retained(remaining, events)
            with new_folder(layout.state_folder(run.folder, stored.number + 1)) as aside:
                write_state(
                    aside, retained, stored.state, stored.certificate, events, stored.description
                )
        if erased.any():
            write_bytes(run.folder / layout.ROWS, dump(remaining))
        for number in layout.state_numbers(run.folder)[:-1]:
            remove_folder(layout.state_folder(run.folder, number))


def _rewritten(events: Collection[AnyEvent], remaining: RunRows) -> list[AnyEvent]:
    """A history without the names of clients and samples that have no rows any more."""
    samples = {hex_id(row) for row in remaining.ids}
    rewritten: list[AnyEvent] = []
    before = 0
    for event in events:
        changed: AnyEvent = event
        if isinstance(event, Trained) and event.poison is not None:
            poison = Poison.parse(event.poison)
            if poison.client not in remaining.clients or poison.target not in remaining.outputs:
                changed = msgspec.structs.replace(event, poison=None)
        elif isinstance(event, Unlearned):
            changed = msgspec.structs.replace(
                event,
                clients=tuple(name for name in event.clients if name in remaining.clients),
                samples=tuple(sample for sample in event.samples if sample in samples),
            )
            after = int(layout.forgotten(remaining, [*rewritten, changed]).sum())
            changed = msgspec.structs.replace(changed, rows=after - before)
            before = after
        rewritten.append(changed)
    return rewritten


def _sweep(folder: Path) -> None:
    """Remove what killed commands left beside runs."""
    for path in folder.glob(f"{REPLACED}*"):
        restore_folder(folder / path.name.removeprefix(REPLACED))
    leftovers = [path for path in folder.glob(f"{ASIDE}*") if LEFTOVER.fullmatch(path.name)]
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if leftovers:
        sync_folder(folder)


def erase_rows(plan: Erasure, *, others: bool = False, progress: Progress = silent) -> Erasure:
    """Carry out a plan; other runs that share the rows must be agreed to.

    A plan is finished where a killed command's work was this.
    """
    if plan.others and not others:
        listed = ", ".join(str(folder) for folder in plan.others)
        raise InputError(
            f"Other runs share these rows, and would be changed: {listed}. Pass --yes "
            "(others=True), or erase fewer rows."
        )
    if plan.finished:
        return plan
    cache = plan.cache
    runs = {_run_id(folder): folder for folder in plan.rows}
    root = cache.root.resolve()
    intent = Intent(
        token=secrets.token_hex(16),
        request=plan.request,
        run=_run_id(plan.run),
        clients=plan.clients,
        samples=plan.samples,
        runs={name: os.path.relpath(folder, root) for name, folder in runs.items() if name},
    )
    with cache.changing():
        sharing = {_run_id(folder) for folder in _sharing(plan.run, cache, intent, plan.gone)}
        if not sharing <= intent.runs.keys():
            raise CacheError(
                "Another run of these rows was trained meanwhile. Run the same command again."
            )
        write_intent(cache, intent)
    _finish(intent, cache, plan.run, plan.gone, progress)
    return replace(plan, finished=True)
