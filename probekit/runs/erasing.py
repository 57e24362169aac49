"""Erasing on request, from the request to the record: unlearn, verify, papers, purge, bundle, record.

In this order: the register's lock; a journal in it, closed to others; for every run the clients' receipts, then a new
state, then the answers, whose salts the purge erases, then what verify says of it; the purge of runs and cache, with
its own journals; what else the cache holds of a person; bundles; records; the journal struck out. Killed anywhere, the
same command finishes it, and nothing is called done before.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probekit.cache import journal
from probekit.cache.erasure import purge as purge_cache
from probekit.certificates.verdicts import FALSE
from probekit.custody.petitions import Petition
from probekit.errors import InputError, VerificationError
from probekit.files import make_folder
from probekit.runs.commitments import read_transition
from probekit.runs.erase_papers import Forgot, entries_of, records_of, write_answers, write_bundles, write_receipts
from probekit.runs.erase_plan import EraseRequest, marks_of, plan_erasure, run_named
from probekit.runs.folder import OpenRun
from probekit.runs.ledger import PURGE, LedgerEntry
from probekit.runs.purging import purge, unfinished
from probekit.runs.register import CaseInfo, Record, Register
from probekit.runs.result import Result
from probekit.runs.rows import UNLEARN
from probekit.runs.unlearning import certificate_path, unlearn
from probekit.runs.verification import verify

REGISTER = "erasures"


@dataclass(frozen=True)
class EraseResult(Result):
    """Records of what was erased, now or earlier (then nothing was done); what remains is in the way of finishing."""

    register: Path
    records: tuple[Record, ...]
    already_done: bool
    complete: bool
    remains: tuple[str, ...] = ()


def erase(
    run: OpenRun | Sequence[OpenRun],
    client: str | None = None,
    *,
    clients: Sequence[str] = (),
    subjects: Sequence[str] = (),
    samples: Sequence[str] = (),
    petition: Petition | None = None,
    requests: Sequence[EraseRequest] = (),
    register: Path | str | None = None,
    shared: str | None = None,
    key: bytes | None = None,
    backups: Sequence[str] = (),
    yes: bool = False,
    **info: Any,
) -> EraseResult:
    """Carry out a request for erasure in one run or several, for good, and put it on record.

    client, clients: who is to go. subjects: people inside clients, COLUMN=VALUE, by a column that `extract` kept.
    samples: ids or names of rows. petition: a client's own. requests: many such, instead of these.
    register: the folder of records (default: `erasures` beside the first run).
    shared: keep or erase samples that somebody else holds too. key: the operator's private key (PEM), to sign with.
    backups: sentences about copies, for the record. yes: also where other runs lose rows by it.
    info: the fields of `CaseInfo`: reference, received, due, identity, basis, keep.

    The same again changes nothing, or finishes what was interrupted. Where something remains that should have gone
    (`remains`), it is not finished: remove it, then the same again.
    """
    runs = sorted([run] if isinstance(run, OpenRun) else run, key=lambda one: one.path.absolute())
    if not runs:
        raise InputError("Name a run to erase from.")
    names = (*clients, *([client] if client is not None else []))
    own: Any = {"clients": tuple(names), "subjects": tuple(subjects), "samples": tuple(samples), "petition": petition}
    wanted = [*requests] or [EraseRequest(**own, info=CaseInfo(**info))]
    book = Register(Path(register) if register is not None else runs[0].path.absolute().parent / REGISTER)
    for place in (runs[0].store.root, *(one.path for one in runs)):
        if book.folder.resolve().is_relative_to(place.resolve()):
            raise InputError(f"{book.folder} lies in {place}, which others get to see. Keep the register elsewhere.")
    with book.lock():
        plan, done = _begun(book, runs, wanted)
        if done is not None:
            return EraseResult(book.folder, done, True, True)
        if plan is None:
            named = [_with_reference(one, book) for one in wanted]
            plan = _begin(book, runs, named, shared=shared, yes=yes, backups=backups)
        journal.reached("case journalled")
        return _finish(book, runs, plan, key=key, yes=yes)


def refuse(register: Path | str, reason: str, **info: Any) -> Record:
    """Put on record that a request was refused, and why; nothing else changes."""
    if not reason.strip():
        raise InputError("Say why the request is refused.")
    book = Register(Path(register))
    with book.lock():
        made = CaseInfo(**info).named()
        _refuse_taken(book, made.reference)
        found = Record.of(made, refused=reason, asked_by="the operator", wanted="refused", fingerprint="")
        book.write(found)
    return found


def _begun(
    book: Register, runs: Sequence[OpenRun], wanted: Sequence[EraseRequest]
) -> tuple[dict[str, Any] | None, tuple[Record, ...] | None]:
    """The plan that was begun for these requests, or their records where they were finished."""
    marks, plan = marks_of(runs, wanted), book.pending()
    if plan is not None:
        if [one["fingerprint"] for one in plan["cases"]] != marks:
            book.refuse_pending(plan)
        return plan, None
    known = {one.fingerprint: one for one in sorted(book.records(), key=lambda one: one.done)}
    done = tuple(known[mark] for mark in marks if mark in known)
    return None, done if len(done) == len(marks) and all(_still(one, runs) for one in done) else None


def _still(record: Record, runs: Sequence[OpenRun]) -> bool:
    """Whether nobody was taken back into a run since a record was made."""
    last = {one.run: max(one.states, default=0) for one in record.runs}
    return all(
        not any(step.joined for step in proof.changes)
        for run in runs
        for state in range(last.get(str(run.path.absolute()), 0) + 1, run.state + 1)
        if (proof := read_transition(run.path, state)) is not None
    )


def _with_reference(request: EraseRequest, book: Register) -> EraseRequest:
    own = {name: getattr(request, name) for name in ("clients", "subjects", "samples", "petition")}
    info = request.info.named()
    _refuse_taken(book, info.reference)
    return EraseRequest(**own, info=info)


def _refuse_taken(book: Register, reference: str) -> None:
    if book.find(reference) is not None:
        raise InputError(f"{book.folder} has a record of reference {reference} already. Give the request its own.")


def _begin(
    book: Register,
    runs: Sequence[OpenRun],
    requests: Sequence[EraseRequest],
    *,
    shared: str | None,
    yes: bool,
    backups: Sequence[str],
) -> dict[str, Any]:
    references = [one.info.reference for one in requests]
    if len(set(references)) != len(references):
        raise InputError("Two requests have the same reference. Give each its own.")
    plan = plan_erasure(runs, requests, shared=shared, yes=yes)
    many = f" and {len(references) - 1} more" if len(references) > 1 else ""
    plan |= {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "reference": f"{references[0]}{many}",
        "command": "probekit erase, with the same arguments as before",
        "backups": list(backups),
        "operation": secrets.token_hex(8),
        "yes": yes,
        "verified": {},
    }
    for reference in references:
        make_folder(book.case(reference), closed=True)
    book.begin(plan)
    return plan


def _finish(
    book: Register, runs: Sequence[OpenRun], plan: dict[str, Any], *, key: bytes | None, yes: bool
) -> EraseResult:
    """Everything after the journal; a step that was done before does nothing."""
    found = {}
    for one in plan["runs"]:
        found[one["path"]] = _forget(book, run_named(runs, one["path"]), one, plan, key)
        journal.reached("run forgot")
    remains = _purge(runs, plan, yes=yes or plan["yes"])
    if remains:
        return EraseResult(book.folder, (), False, False, tuple(remains))
    for one in plan["runs"]:
        write_bundles(book, run_named(runs, one["path"]), plan, found[one["path"]], key)
        journal.reached("bundles written")
    records = records_of(book, runs, plan, found)
    for record in records:
        book.write(record)
        journal.reached("record written")
    book.strike()
    return EraseResult(book.folder, tuple(records), False, True)


def _forget(
    book: Register, run: OpenRun, plan: Mapping[str, Any], whole: dict[str, Any], key: bytes | None
) -> list[Forgot]:
    """Unlearn in one run, a state for each chunk, with the papers that can only be made before the purge."""
    found = []
    for number, chunk in enumerate(plan["chunks"]):
        reference = f"{whole['reference']} ({whole['operation']}/{number})"
        entry, pairs = _entry(run, plan, reference), [(whole["cases"][one], plan["cases"][one]) for one in chunk]
        if entry is None:
            cases = [plan["cases"][case] for case in chunk]
            write_receipts(book, run, pairs, key)
            journal.reached("receipts written")
            names = sorted({name for one in cases for name in one["clients"]})
            texts = sorted({text for one in cases for text in one["samples"]})
            asked = _asked(cases, reference, key)
            unlearn(run, clients=names, samples=texts, asked=asked, reference=reference, key=key)
            journal.reached("state written")
            entry = _entry(run, plan, reference)
        if entry is None:
            raise VerificationError(f"The ledger of {run.path} does not say what was just done. Do not trust it.")
        found.append(Forgot(entry, tuple(chunk)))
        write_answers(book, run, pairs, entry, key)
        journal.reached("answers written")
    made = {one.state: one for one in entries_of(run) if one.action == UNLEARN}
    for case, one in enumerate(plan["cases"]):
        found += [Forgot(made[state], (case,)) for state in sorted(set(one["earlier"].values()))]
    for one in found:
        _verify(book, run, whole, one.entry.state, rows=plan["rows"])
        journal.reached("verified")
    return found


def _asked(cases: Sequence[Mapping[str, Any]], reference: str, key: bytes | None) -> list[Petition]:
    """Who asked: clients by their petitions, for all others the operator."""
    found = [Petition.from_plain(one["asked"]) for one in cases if one["asked"] is not None]
    if len(found) < len(cases):
        operator = Petition(said={"reference": reference})
        found.append(operator if key is None else operator.signed(key))
    return found


def _entry(run: OpenRun, plan: Mapping[str, Any], reference: str) -> LedgerEntry | None:
    """The ledger's entry of what was done for a reference since the plan was made."""
    later = entries_of(run)[plan["ledger"] :]
    return next((one for one in later if one.details.get("reference") == reference), None)


def _verify(book: Register, run: OpenRun, whole: dict[str, Any], state: int, *, rows: bool) -> None:
    """Hold the certificate against all that is still there, before it goes, and note what came of each claim."""
    place = f"{run.path.absolute()} {state}"
    if place in whole["verified"]:
        return
    judged = verify(run, certificate_path(run.folder, state), rows=rows)
    if not judged.intact:
        wrong = next(one for one in judged.findings if one.verdict == FALSE)
        raise VerificationError(
            f"The certificate of state {state} of {run.path} is false ({wrong.name}: {wrong.found}). Nothing was "
            "purged; do not trust this run."
        )
    whole["verified"][place] = [[one.name, one.verdict] for one in judged.findings]
    book.begin(whole)


def _purge(runs: Sequence[OpenRun], plan: Mapping[str, Any], *, yes: bool) -> list[str]:
    """Purge every run, unless that was done since it forgot, then what else the cache has; gives what is left."""
    store, remains = runs[0].store, list[str]()
    for one in plan["runs"]:
        run = run_named(runs, one["path"])
        entries = entries_of(run)
        forgot = max((each.number for each in entries if each.action == UNLEARN), default=0)
        purges = [each for each in entries if each.action == PURGE and (each.details["cache"] or not one["rows"])]
        if unfinished(run) or not purges or purges[-1].number < forgot:
            found = purge(run, rows=one["rows"], also_runs=one["rows"], yes=yes)
            remains += [*found.remains, *(found.cache.remains if found.cache is not None else ())]
        journal.reached("run purged")
    if not remains and journal.pending(store.root) is not None:
        remains += purge_cache(store, yes=True).remains  # which this was at when it was interrupted
    doomed = set(plan["ids"])
    there = {sample for digest in store.sets.digests() for sample in store.open(digest).ids if sample in doomed}
    if there and not remains:  # rows without a label, test sets
        remains += purge_cache(store, samples=sorted(there), yes=True).remains
    journal.reached("cache purged")
    return remains
