"""The papers of an erasure: receipts and answers for those who asked, bundles for anybody, records for the register."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probekit.certificates.verdicts import PROVEN
from probekit.custody.answers import ErasureAnswer
from probekit.errors import InputError
from probekit.files import PRIVATE, write_bytes
from probekit.runs.bundling import bundle
from probekit.runs.commitments import read_transition
from probekit.runs.erase_plan import run_named
from probekit.runs.folder import OpenRun
from probekit.runs.ledger import PURGE, LedgerEntry
from probekit.runs.noise import EXPORT
from probekit.runs.openings import certificate_openings, read_openings
from probekit.runs.proving import receipts_of
from probekit.runs.purging import UNREACHED
from probekit.runs.register import CaseInfo, Record, Register, RunRecord

FIELDS = ("reference", "received", "due", "identity", "basis", "keep")
Case = Mapping[str, Any]


@dataclass(frozen=True)
class Forgot:
    """The ledger's entry of a state, and the numbers of the requests that were carried out in it."""

    entry: LedgerEntry
    cases: tuple[int, ...]


def entries_of(run: OpenRun) -> list[LedgerEntry]:
    """The ledger as it is now: another purge may have written to it since the run was opened."""
    with run.folder.lock(purging=True):
        return run.folder.entries()


Pair = tuple[Case, Case]
"""What is known of a request, and what it takes from a run."""


def write_receipts(book: Register, run: OpenRun, cases: Sequence[Pair], key: bytes | None) -> None:
    """For every client that goes: its leaf as it stands now, by which it can check the bundle."""
    if run.folder.at().commitments() is None:
        return
    gone = [(info["reference"], name) for info, case in cases for name in case["clients"]]
    made = receipts_of(run, [name for _, name in gone], key=key)
    for (reference, _), receipt in zip(gone, made, strict=True):
        path = book.case(reference) / f"receipt-{run.path.name}-{receipt.leaf.slot}.json"
        write_bytes(path, receipt.text.encode(), mode=PRIVATE)


def write_answers(book: Register, run: OpenRun, cases: Sequence[Pair], entry: LedgerEntry, key: bytes | None) -> None:
    """What opens, in the certificate, just what each request asked for; only before the purge erases the salts."""
    asked = {"request.clients": lambda value: value, "request.samples": _text}
    places: dict[tuple[str, str], str] = {}
    openings = read_openings(certificate_openings(run.path, entry.state))
    for place, one in openings.items():
        if (kind := place.rpartition(".")[0]) in asked:
            places[kind, asked[kind](one.value)] = place
    for info, case in cases:
        own = [("request.clients", name) for name in case["clients"]]
        own += [("request.samples", text) for text in case["samples"]]
        mine = {places[one]: openings[places[one]] for one in own if one in places}
        path = book.case(info["reference"]) / f"answer-{run.path.name}-{entry.state:04d}.json"
        if mine and not path.exists():
            answer = ErasureAnswer(info["reference"], {str(entry.details["certificate"]): mine}, entry.anchor)
            write_bytes(path, (answer if key is None else answer.signed(key)).text.encode(), mode=PRIVATE)


def _text(value: Any) -> str:
    sample, client = value
    return str(sample) if client is None else f"{client}/{sample}"


def write_bundles(book: Register, run: OpenRun, plan: Case, found: Sequence[Forgot], key: bytes | None) -> None:
    """A bundle for every state; one of several requests stands with the first of them."""
    for one in found:
        info, state = plan["cases"][one.cases[0]], one.entry.state
        path = book.case(info["reference"]) / _bundle_name(run, state)
        if not path.exists():
            reference = info["reference"] if len(one.cases) == 1 else plan["reference"]
            try:
                bundle(run, path, states=[state], reference=reference, key=key)
            except InputError as error:  # an earlier version's ledger, or more changes than fit
                write_bytes(path.with_suffix(".txt"), f"There is no bundle: {error}\n".encode())


def _bundle_name(run: OpenRun, state: int) -> str:
    return f"bundle-{run.path.name}-{state:04d}.zip"


def records_of(
    book: Register, runs: Sequence[OpenRun], plan: Case, found: Mapping[str, Sequence[Forgot]]
) -> list[Record]:
    """The record of every request."""
    made: list[list[RunRecord]] = [[] for _ in plan["cases"]]
    remains: list[str] = [*UNREACHED, *plan["backups"]]
    for each in plan["runs"]:
        run = run_named(runs, each["path"])
        entries = entries_of(run)
        purges = [one for one in entries if one.action == PURGE]
        for forgot in found[each["path"]]:
            record = _run_record(book, run, plan, forgot, purges[-1])
            for case in forgot.cases:
                made[case].append(record)
        remains += [
            f"{run.path}: the head of state {one.details['state']}, which went to {one.details['to']} on {one.time}"
            for one in entries
            if one.action == EXPORT
        ]
    records, every = [], {id(one): one for own in made for one in own}
    for own, case in zip(made, plan["cases"], strict=True):
        more: dict[str, Any] = {name: case[name] for name in ("wanted", "fingerprint", "asked_by")}
        more |= {"runs": tuple(own or every.values()), "sets": tuple(plan["sets"]), "rows_erased": len(plan["ids"])}
        info = CaseInfo(**{name: case[name] for name in FIELDS})
        records.append(Record.of(info, **more, shared=plan["shared"], remains=tuple(remains)))
    return records


def _run_record(book: Register, run: OpenRun, plan: Case, forgot: Forgot, purged: LedgerEntry) -> RunRecord:
    entry, path, details = forgot.entry, run.path.absolute(), dict[str, Any](purged.details)
    proof = read_transition(run.path, entry.state)
    steps = () if proof is None else proof.changes
    judged = plan["verified"][f"{path} {entry.state}"]
    not_proven = {name for name, verdict in judged if verdict != PROVEN}
    bundled = book.case(plan["cases"][forgot.cases[0]]["reference"]) / _bundle_name(run, entry.state)
    return RunRecord(
        run=str(path),
        states=(entry.state,),
        entries=(entry.number, purged.number),
        emptied=() if proof is None else proof.emptied,
        changed=tuple(step.slot for step in steps if not step.emptied and not step.joined),
        method=str(entry.details["method"]),
        proven=tuple(sorted({name for name, _ in judged} - not_proven)),
        not_proven=tuple(sorted(not_proven)),
        anchor=str(entries_of(run)[-1].anchor),
        files_removed=int(details["removed"]),
        rows_erased=int((details["cache"] or {}).get("rows", 0)),
        bundle=str(bundled.relative_to(book.folder)) if bundled.exists() else "",
    )
