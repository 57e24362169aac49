"""Removing from a run, and from the cache, what was derived from the forgotten."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.runs.erasure import erase_purged
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import REFERENCES, checkpoint_path, state_folder
from probekit.runs.ledger import Event
from probekit.runs.result import Result, to_plain
from probekit.runs.rows import PURGE, UNLEARN, rows_at

UNREACHED = (
    "copies of this run, exports and backups",
    "heads and certificates that were handed out before",
    "the data set itself, and the clients' own files",
    "blocks of the disk that were freed but not yet overwritten",
)
REQUESTS_STAY = (
    "the ledger's openings, which name what was forgotten while its rows are in the cache: purge the rows too"
)
OLD_LEDGER = (
    "entries of the ledger that an earlier version wrote: they name what was forgotten, and hold unsealed digests by "
    "which a candidate can be tried"
)
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
    """What was removed from a run and, where asked for, from the cache; and what cannot be reached from here."""

    run: Path
    removed: tuple[str, ...]
    cache: PurgedRows | None
    unreached: tuple[str, ...]


def purge(run: OpenRun, *, rows: bool = False) -> PurgeResult:
    """Remove earlier states (heads, statistics, gradients, history); with `rows`, forgotten rows in the cache too."""
    folder = run.folder
    with folder.lock():
        actions = [entry.action for entry in folder.entries()]
        last = max((place for place, action in enumerate(actions) if action == PURGE), default=-1)
        if UNLEARN not in actions[last + 1 :]:
            why = "nothing was unlearned yet" if last < 0 else "it was purged already"
            raise InputError(f"There is nothing to purge in {run.path}: {why}.")
        cached = _purge_cache(folder, run.store) if rows else None
        earlier = [state_folder(run.path, number) for number in folder.states() if number != run.state]
        removed: list[str] = []
        for place in (*earlier, run.path / "report", run.path / REFERENCES):
            if place.exists():
                removed += sorted(str(path.relative_to(run.path)) for path in place.rglob("*") if path.is_file())
                shutil.rmtree(place)
        unfinished = checkpoint_path(run.path)
        if unfinished.exists():
            removed.append(unfinished.name)
            unfinished.unlink()
        # how many only: names of files are names of clients
        folder.record(Event(PURGE, {"state": run.state}, {"removed": len(removed), "cache": to_plain(cached)}))
        erase_purged(run.path, folder.entries())
        old = any(entry.format == 1 for entry in folder.entries())
        notes = ((folder.at().objective() is not None, TERM_STAYS), (not rows, REQUESTS_STAY), (old, OLD_LEDGER))
        stays = [text for holds, text in notes if holds]
        return PurgeResult(run.path, tuple(removed), cached, (*UNREACHED, *stays))


def _purge_cache(run: RunFolder, store: DiskStore) -> PurgedRows:
    """Give the run a set of its retained rows only, then erase the forgotten samples from the whole cache."""
    from probekit.cache.removal import purge as erase

    whole = run.embeddings(store)
    (left, divided), counts = rows_at(run, store), run.trained().counts
    keep = np.sort(np.concatenate([divided.server, *(divided.clients[name] for name in counts)]))
    rest = left.select(keep)
    gone = sorted({*whole.ids} - {*rest.ids})
    held = {name: np.searchsorted(keep, divided.clients[name]) for name in counts}
    server = np.searchsorted(keep, divided.server)
    sealed, name = store.seal(rest), f"{run.path.name}-retained"
    store.sets.give_name(name, sealed.digest)
    run.rebase(sealed, name, replace(run.partition(), clients=held, server=server, rows=len(rest)))
    if not gone:
        return PurgedRows(0, 0, ())
    outcome = erase(store, samples=gone)
    return PurgedRows(outcome.rows, outcome.searched, tuple(outcome.remains))
