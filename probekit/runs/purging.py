"""Removing from a run, and from the cache, what still knows the forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.errors import InputError
from probekit.runs.folder import RunFolder
from probekit.runs.layout import checkpoint_path
from probekit.runs.ledger import Event
from probekit.runs.unlearning import PURGE, UNLEARN, requests_since_purge, rows_now
from probekit.unlearning.request import UnlearnRequest
from probekit.values import Json

if TYPE_CHECKING:
    from probekit.cache import DiskStore

REFERENCES = "references"
UNREACHED = (
    "copies of this run, exports and backups",
    "heads and certificates that were handed out before",
    "the data set itself, and the clients' own files",
    "blocks of the disk that were freed but not yet overwritten",
    "the ledger and the certificate, which name what was forgotten by client and sample id",
)
TERM_STAYS = (
    "the secret linear term of the objective (kept/objective.safetensors), which later removals need; no row had a "
    "say in it"
)


def forgotten_clients(run: RunFolder) -> list[str]:
    """The clients that the run was trained with and no longer has."""
    return [name for name in run.partition().clients if name not in run.trained().counts]


def purge_run(run: RunFolder, store: DiskStore | None = None) -> dict[str, Any]:
    """Remove earlier states (heads, statistics, gradients, history); with a store, the forgotten rows there too.

    Gives what was removed and what cannot be reached from here.
    """
    with run.lock():
        entries = requests_since_purge(run.entries())
        if not entries:
            done = any(entry.action == PURGE for entry in run.entries())
            raise InputError(
                f"There is nothing to purge in {run.path}: "
                + ("it was purged already." if done else "nothing was unlearned yet.")
            )
        removed: list[str] = []
        cached = _purge_cache(run, store) if store is not None else None
        for number in run.states():
            if number != run.state:
                folder = run.path / "states" / f"{number:04d}"
                removed += sorted(str(path.relative_to(run.path)) for path in folder.rglob("*") if path.is_file())
                shutil.rmtree(folder)
        for told in (run.path / "report", run.path / REFERENCES):
            if told.exists():
                removed += sorted(str(path.relative_to(run.path)) for path in told.rglob("*") if path.is_file())
                shutil.rmtree(told)
        unfinished = checkpoint_path(run.path)
        if unfinished.exists():
            removed.append(unfinished.name)
            unfinished.unlink()
        details: dict[str, Json] = {"removed": list(removed), "cache": cached}
        run.record(Event(PURGE, {"state": run.state}, details))
        stays = [TERM_STAYS] if run.at().objective() is not None else []
        return {"removed": removed, "cache": cached, "unreached": [*UNREACHED, *stays]}


def _purge_cache(run: RunFolder, store: DiskStore) -> dict[str, Json]:
    """Give the run a set of its retained rows only, then erase the forgotten samples from the whole cache."""
    from probekit.cache.removal import purge

    whole, partition = run.embeddings(store), run.partition()
    left, divided = rows_now(run, store)
    keep = np.sort(np.concatenate([divided.server, *(divided.clients[name] for name in run.trained().counts)]))
    stays = {left.ids[row] for row in keep.tolist()}
    gone = sorted({sample for sample in whole.ids if sample not in stays})
    rest = left.select(keep)
    place = {int(row): number for number, row in enumerate(keep)}
    held = {name: _placed(divided.clients[name], place) for name in run.trained().counts}
    sealed = store.seal(rest)
    name = f"{run.path.name}-retained"
    store.sets.give_name(name, sealed.digest)
    run.rebase(
        sealed, name, type(partition)(held, _placed(divided.server, place), len(rest), partition.scheme, partition.seed)
    )
    if not gone:
        return {"rows": 0, "searched": 0, "remains": []}
    outcome = purge(store, samples=gone)
    return {"rows": outcome.rows, "searched": outcome.searched, "remains": list(outcome.remains)}


def _placed(rows: Any, place: dict[int, int]) -> Any:
    return np.array([place[int(row)] for row in rows], dtype=np.int64)


def all_requests(run: RunFolder) -> list[UnlearnRequest]:
    """Everything that was ever asked for, in order."""
    return [UnlearnRequest.from_plain(entry.details["request"]) for entry in run.entries() if entry.action == UNLEARN]  # type: ignore[arg-type]


def run_files(run: RunFolder) -> list[Path]:
    """Every file of a run."""
    return sorted(path for path in run.path.rglob("*") if path.is_file())
