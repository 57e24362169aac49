"""What an erasure will do, before anything changes: what goes from which run, and who else is hit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.cache.users import users
from probekit.custody.columns import matching
from probekit.custody.petitions import Petition
from probekit.custody.seals import opened
from probekit.errors import InputError, MismatchError, NotFoundError, OtherRunsError, ProbekitError
from probekit.runs.asking import client_of
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.purge_plan import retained_rows
from probekit.runs.register import CaseInfo, fingerprints
from probekit.runs.retained import RetainedClients
from probekit.runs.rows import UNLEARN, full_ids, read_request, request_of, rows_at
from probekit.runs.subjects import RunPeople, read_subject
from probekit.unlearning.method import CONTAINS_BEFORE
from probekit.unlearning.method import method as find_method
from probekit.unlearning.request import SampleRef, UnlearnRequest, known_clients
from probekit.values import Json

MOST_AT_ONCE = 500
"""Clients that change in one state, so that a bundle has room for all of them."""
SHARED = ("keep", "erase")
Case = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EraseRequest:
    """One request: a client, people (COLUMN=VALUE), samples, or a client's own petition; and what is known of it."""

    clients: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    petition: Petition | None = None
    info: CaseInfo = field(default_factory=CaseInfo)

    @property
    def plain(self) -> dict[str, Json]:
        """What is asked for, without who knows what of it."""
        said = None if self.petition is None else self.petition.plain
        lists: dict[str, Json] = {name: sorted(getattr(self, name)) for name in ("clients", "subjects", "samples")}
        return {**lists, "petition": said}

    @property
    def wanted(self) -> str:
        """What is asked for, in words that name nobody."""
        counts = {"client": len(self.clients) + (self.petition is not None), "person": len(self.subjects)}
        counts["sample"] = len(self.samples)
        return ", ".join(f"{number} {what}{'s' * (number > 1)}" for what, number in counts.items() if number)


def plan_erasure(
    runs: Sequence[OpenRun], requests: Sequence[EraseRequest], *, shared: str | None, yes: bool
) -> dict[str, Any]:
    """The plan that a journal keeps. Whatever cannot be done is refused here, before anything changes."""
    if shared not in (None, *SHARED):
        raise InputError(f"`shared` is one of {', '.join(SHARED)}; found {shared!r}.")
    for one in requests:
        if not one.wanted:
            raise InputError("A request must name something to erase: a client, a person, samples, or a petition.")
    store, paths = runs[0].store, [str(run.path.absolute()) for run in runs]
    marks = marks_of(runs, requests)
    cases: list[Case] = [
        {**asdict(one.info), "wanted": one.wanted, "fingerprint": mark, "asked_by": _asker(one)}
        for one, mark in zip(requests, marks, strict=True)
    ]
    plans = [_plan_run(run, requests, shared) for run in runs]
    doomed = {sample for plan in plans for sample in plan.pop("ids")} | _people(store, requests)
    _refuse_others(store, doomed, paths, yes=yes)
    sets = [store.sets.label(digest) for digest in _holding(store, doomed)]
    return {"cases": cases, "runs": plans, "ids": sorted(doomed), "sets": sets, "shared": shared or ""}


def marks_of(runs: Sequence[OpenRun], requests: Sequence[EraseRequest]) -> list[str]:
    """By which each request, of these runs, is known again."""
    paths = sorted(str(run.path.absolute()) for run in runs)
    return fingerprints(runs[0].store, [{**one.plain, "runs": paths} for one in requests])


def _asker(request: EraseRequest) -> str:
    return "the operator" if request.petition is None else "a client, by a petition signed with its key"


@dataclass(frozen=True)
class _Holders:
    """How many rows each client of a run has, and the samples of each, those forgotten before included."""

    counts: Mapping[str, int]
    samples: Mapping[str, set[str]]
    run: OpenRun

    @cached_property
    def people(self) -> RunPeople:
        """Whose the rows are."""
        return RunPeople(self.run.folder, self.run.store)

    @classmethod
    def of(cls, run: OpenRun) -> tuple[_Holders, bool]:
        """Of a run as it is, and whether its rows are at hand."""
        counts = run.folder.at().counts
        try:
            embeddings, partition = rows_at(run.folder, run.store)
        except (NotFoundError, MismatchError):
            return cls(counts, {}, run), False
        ids = embeddings.ids
        held = {**partition.clients, "": partition.server}
        return cls(counts, {name: {ids[row] for row in own.tolist()} for name, own in held.items()}, run), True

    @cached_property
    def whose(self) -> Mapping[str, list[str]]:
        """Who holds each sample now; the server has no name."""
        found: dict[str, list[str]] = {}
        for name, own in self.samples.items():
            for sample in own if name in self.counts or not name else ():
                found.setdefault(sample, []).append(name)
        return found


def _plan_run(run: OpenRun, requests: Sequence[EraseRequest], shared: str | None) -> dict[str, Any]:
    """What goes from one run, for each request, and in which states."""
    _refuse_adapter(run)
    holders, rows = _Holders.of(run)
    items, doomed = [], set[str]()
    for one in requests:
        found, ids = _resolve(run, one, holders, shared)
        items.append(found)
        doomed |= ids
    everybody = {name for one in items for name in one["clients"]}
    if everybody:
        UnlearnRequest.of(everybody).remaining(run.folder.trained())
    for item in items:  # a client that goes takes its samples with it
        item["samples"] = [text for text in item["samples"] if text.rpartition("/")[0] not in everybody]
    return {
        "path": str(run.path.absolute()),
        "ledger": len(run.folder.entries()),
        "rows": rows,
        "cases": items,
        "chunks": list(_chunks(items, set(holders.counts))),
        "ids": doomed,
    }


def _refuse_adapter(run: OpenRun) -> None:
    """Refuse a head that gives the one before back: what is to be erased is still in it."""
    used, traits = str(run.folder.at().note["method"]), frozenset[str]()
    with suppress(ProbekitError):  # of a training method, or of a plugin that is gone
        traits = frozenset(find_method(used).traits)
    if CONTAINS_BEFORE in traits:
        raise InputError(
            f"Cannot erase from {run.path}: its head was unlearned by {used}, an adapter on the head before, which "
            "still holds the forgotten rows. Train again without them. Nothing was changed."
        )


def _resolve(
    run: OpenRun, request: EraseRequest, holders: _Holders, shared: str | None
) -> tuple[dict[str, Any], set[str]]:
    """The clients and samples of one request in one run, with those forgotten before; and the ids of all their rows."""
    folder, counts = run.folder, holders.counts
    names = [*request.clients, *([client_of(folder, request.petition)] if request.petition is not None else [])]
    earlier = {name: _forgotten(folder, name, tuple(counts)) for name in names if name not in counts}
    refs = {one for text in request.subjects for one in holders.people.samples(text)}
    if request.samples:
        asked_for, online = read_request(samples=request.samples), RetainedClients(folder, run.store)
        elsewhere = online.elsewhere  # where only the clients know their rows
        named = online.checked(asked_for) if elsewhere else full_ids(asked_for, folder.embeddings(run.store))
        refs |= {*named.samples}
    ids = {one.sample for one in refs}.union(*(holders.samples.get(name, ()) for name in names))
    mine, everywhere = {(one.client, one.sample) for one in refs}, {one.sample for one in refs if one.client is None}
    others: dict[str, list[str]] = {}
    for sample in ids - everywhere:
        if left := [one for one in holders.whose.get(sample, ()) if one not in names and (one, sample) not in mine]:
            others[sample] = left
    if others and shared is None:
        who = ", ".join(sorted({name or "the server" for held in others.values() for name in held})[:5])
        raise InputError(
            f"{len(others)} samples of this request are also held by others in {run.path}: {who}. Decide with "
            "`shared`: keep leaves them with the others, erase takes them from everybody. Nothing was changed."
        )
    if shared == "erase":
        refs = {one for one in refs if one.sample not in others} | {SampleRef(sample) for sample in others}
    else:
        ids -= set(others)
    asked = None if request.petition is None else request.petition.plain
    samples = [one.text for one in sorted(refs, key=str)]
    present = [name for name in names if name in counts]
    return {"clients": present, "samples": samples, "earlier": earlier, "asked": asked}, ids


def _forgotten(run: RunFolder, name: str, known: Sequence[str]) -> int:
    """The state in which a client was forgotten before."""
    for entry in reversed(run.entries()):
        if entry.action == UNLEARN and opened(entry.details["request"]) and name in request_of(entry).clients:
            return entry.state
    raise InputError(f"Cannot erase client {name}: {known_clients(known)}.")


def _chunks(items: Sequence[Mapping[str, Any]], clients: set[str]) -> Iterator[list[int]]:
    """The numbers of requests that are carried out in one state each, so that no state changes too many clients."""
    chunk: list[int] = []
    touched: set[str] = set()
    for number, one in enumerate(items):
        if not one["clients"] and not one["samples"]:
            continue
        holders = {text.rpartition("/")[0] for text in one["samples"]}
        own = {*one["clients"], *(clients if "" in holders else holders)}
        if chunk and len(touched | own) > MOST_AT_ONCE:
            yield chunk
            chunk, touched = [], set()
        chunk, touched = [*chunk, number], touched | own
    if chunk:
        yield chunk


def _people(store: DiskStore, requests: Sequence[EraseRequest]) -> set[str]:
    """The samples of people in every set of the cache that has their column: also unused ones, and test sets."""
    found: set[str] = set()
    texts = [text for one in requests for text in one.subjects]
    for digest in store.sets.digests() if texts else ():
        embeddings = store.open(digest)
        for text in texts if embeddings.columns else ():
            try:
                column, value = read_subject(embeddings, text)
            except InputError:
                continue
            found |= {embeddings.ids[row] for row in matching(embeddings.columns[column], value).tolist()}
    return found


def _holding(store: DiskStore, doomed: set[str]) -> list[str]:
    """The sets that hold any of these samples."""
    return [digest for digest in store.sets.digests() if doomed and not doomed.isdisjoint(store.open(digest).ids)]


def _refuse_others(store: DiskStore, doomed: set[str], paths: Sequence[str], *, yes: bool) -> None:
    """Refuse to take rows from runs that nobody named, unless they forgot them too or somebody agreed."""
    named: list[str] = []
    for path in users(store.root, _holding(store, doomed)):
        if str(path) in paths or yes:
            continue
        used = doomed.intersection(retained_rows(RunFolder.open(path), store).embeddings.ids)
        named += [f"{path} (trained on {len(used)} of them)"] if used else []
    if named:
        raise OtherRunsError(
            f"{len(named)} other runs use rows that would be erased: {'; '.join(named)}. Nothing was changed. Name "
            "them too, so that they forget them as well, or give `yes=True` to take the rows from them.",
            tuple(named),
        )


def run_named(runs: Sequence[OpenRun], path: str) -> OpenRun:
    """The run at a path."""
    for one in runs:
        if one.path.absolute() == Path(path):
            return one
    raise InputError(f"The erasure that is not finished is also about the run {path}. Name it too.")
