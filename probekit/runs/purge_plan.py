"""What a purge of runs will do, as its journal says it: what each run stands on afterwards, and which files go.

A run is purged of everything derived from what it forgot. Certificates stay for good, earlier ones stripped. With
rows, the run gets a set of its retained rows, and the samples that it forgot are erased from the cache; other runs on
these samples are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probekit.cache import DiskStore
from probekit.cache.erasure import Doomed, plan_of
from probekit.cache.ids import pack
from probekit.cache.journal import JOURNAL
from probekit.certificates.stripping import read_stripped
from probekit.errors import InputError, OtherRunsError, ProbekitError
from probekit.files import read_json, sha256_file
from probekit.runs.folder import RunFolder
from probekit.runs.layout import CERTIFICATE, REFERENCES, checkpoint_path
from probekit.runs.ledger import LedgerEntry
from probekit.runs.rows import PURGE, UNLEARN, rows_at
from probekit.runs.states import NOTE
from probekit.unlearning.method import FROM_ROWS, method
from probekit.values import EmbeddingSet, Json, Partition


class Retained(NamedTuple):
    """What is left of a run's rows, and who holds them."""

    embeddings: EmbeddingSet
    partition: Partition


def refuse_idle(run: RunFolder, *, rows: bool) -> None:
    """Refuse a run in which nothing was unlearned since it was purged last, of rows where these are to go."""
    entries = run.entries()
    purged = (place for place, one in enumerate(entries) if one.action == PURGE and (one.details["cache"] or not rows))
    last = max(purged, default=-1)
    if UNLEARN not in [one.action for one in entries[last + 1 :]]:
        why = "nothing was unlearned yet" if last < 0 else "it was purged already"
        raise InputError(f"There is nothing to purge in {run.path}: {why}.")


def retained_rows(run: RunFolder, store: DiskStore) -> Retained:
    """The rows that the run's current state stands for, with the server's; of clients elsewhere only the server's."""
    if (own := run.server_set(store)) is not None:
        server = np.arange(len(own))
        return Retained(own, replace(run.partition(), clients={}, server=server, rows=len(own)))
    (left, divided), counts = rows_at(run, store), run.trained().counts
    keep = np.sort(np.concatenate([divided.server, *(divided.clients[name] for name in counts)]))
    held = {name: np.searchsorted(keep, divided.clients[name]) for name in counts}
    rest, server = left.select(keep), np.searchsorted(keep, divided.server)
    return Retained(rest, replace(run.partition(), clients=held, server=server, rows=len(rest)))


def plan_files(run: RunFolder) -> dict[str, Any]:
    """The files of a run that go; what is in them, by sha256 and size; how many have a name outside the run, too."""
    stays, every = set(run.at().files.values()), dict(_doomed_files(run))
    paths = {path: sha for path, sha in every.items() if sha not in stays}
    named = Counter(path.stat().st_ino for path in run.path.rglob("*") if path.is_file())
    linked = sum(path.stat().st_nlink > max(1, named[path.stat().st_ino]) for path in paths)
    unfinished = checkpoint_path(run.path)
    return {
        "path": str(run.path.absolute()),
        "state": run.state,
        "removed": [str(path.relative_to(run.path)) for path in every] + [unfinished.name] * unfinished.exists(),
        "objects": {sha: path.stat().st_size for path, sha in paths.items()},
        "linked": linked,
        "target": None,
    }


def doomed_places(run: RunFolder) -> list[Path]:
    """The folders that a purge empties: states that are not the current one, the report, the references."""
    states = (path for path in (run.path / "states").iterdir() if path.name.isdigit() and int(path.name) != run.state)
    return [*sorted(states), run.path / "report", run.path / REFERENCES]


def _doomed_files(run: RunFolder) -> Iterator[tuple[Path, str]]:
    """Every file in them but certificates, with its sha256: a state's own list saves reading what it names."""
    for place in doomed_places(run):
        listed: Mapping[str, str] = read_json(place / NOTE)["files"] if (place / NOTE).is_file() else {}
        for path in sorted(path for path in place.rglob("*") if path.is_file() and path != place / CERTIFICATE):
            yield path, listed.get(str(path.relative_to(place))) or sha256_file(path)


def plan_rows(run: RunFolder, store: DiskStore, others: list[RunFolder], *, also: bool, yes: bool) -> dict[str, Any]:
    """The whole plan of a purge with rows. `others` may be purged with it, where `also` asks for that."""
    whole, rest = run.embeddings(store), retained_rows(run, store).embeddings
    gone = sorted({*whole.ids} - {*rest.ids})
    plan = plan_of(store, Doomed(pack(gone)))
    doomed, users = set(gone), [path for path in map(Path, plan["runs"]) if path != run.path.absolute()]
    joined, lose, named = [run], [], []
    for path in users if gone else []:
        used = _used(path, store, doomed)
        if also and used == 0:
            joined += [one for one in others if one.path.absolute() == path]
            continue
        lose.append(path)
        named.append(f"{path}{_IN_WORDS[min(used, 1)].format(used)}")
    if named and not yes:
        raise OtherRunsError(
            f"{len(named)} other runs use rows that would be erased: {'; '.join(named)}. Nothing was changed. Unlearn "
            "there first and give `also_runs=True`, or give `yes=True` to erase the rows all the same.",
            tuple(named),
        )
    targets: list[Json] = [{**plan_files(one), "target": _target(one, store)} for one in joined]
    return {**plan, "runs": [str(path) for path in lose], "targets": targets}


_IN_WORDS = {
    -1: "",
    0: " (it forgot them too: `also_runs=True` purges it with this one)",
    1: " (still trained on {} of them)",
}


def _used(path: Path, store: DiskStore, doomed: set[str]) -> int:
    """How many of these samples a run's current state is trained on; -1 where that cannot be told."""
    try:
        return len(doomed.intersection(retained_rows(RunFolder.open(path), store).embeddings.ids))
    except ProbekitError:
        return -1


def _target(run: RunFolder, store: DiskStore) -> dict[str, Json]:
    """The set that a run stands on afterwards, and a name for it that means no other."""
    digest, name, names = retained_rows(run, store).embeddings.digest, f"{run.path.name}-retained", store.sets.names()
    return {"set": digest, "name": name if names.get(name, digest) == digest else f"{name[:100]}-{digest[:8]}"}


def trace_of(entries: Sequence[LedgerEntry]) -> str | None:
    """The method by which the current head was taken from one that knew the forgotten; None: it was made anew."""
    made = [str(one.details["method"]) for one in entries if one.action == UNLEARN]
    if not made:
        return None
    try:
        traits = getattr(method(made[-1]), "traits", ())
    except ProbekitError:  # somebody's own, which is not installed here
        return made[-1]
    return None if FROM_ROWS in traits else made[-1]


def left_in(run: RunFolder, objects: Mapping[str, int]) -> list[str]:
    """The files of a run that should have gone: in emptied places, or anywhere with the bytes of one that went."""
    sizes, found = set(objects.values()), []
    emptied = doomed_places(run)
    for path in sorted(path for path in run.path.rglob("*") if path.is_file()):
        if path.name == JOURNAL or (path.name == CERTIFICATE and _left_of_one(path, emptied)):
            continue
        inside = any(path.is_relative_to(place) for place in emptied)
        if inside or (path.stat().st_size in sizes and sha256_file(path) in objects):
            found.append(str(path.relative_to(run.path)))
    return found


def _left_of_one(path: Path, emptied: list[Path]) -> bool:
    """Whether a certificate may stay: the current state's, and what is left of an earlier one."""
    return path.parent not in emptied or read_stripped(path.read_text()) is not None
