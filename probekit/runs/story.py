"""What a run says happened, held against itself and against what others noted of it: request, partition, method, state.

Files of a run can prove nothing against whoever owns them: all of them can be written anew. An anchor can, a digest of
the ledger that somebody else noted before: what the ledger said then it must say still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probekit.cache import DiskStore
from probekit.certificates.certificate import Certificate
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, Finding, unproven
from probekit.custody.seals import opened
from probekit.errors import ProbekitError
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import LedgerEntry
from probekit.runs.noise import release_finding
from probekit.runs.proving import judge_transition
from probekit.runs.rows import PURGE, UNLEARN, request_of, rows_at
from probekit.unlearning.request import UnlearnRequest, asked

SHORTEST = 16
OLDER = "an anchor of the ledger that somebody noted before the request"


@dataclass(frozen=True)
class Story:
    """What was found, for which state, whether that is the run's, and the digest of the ledger's last entry."""

    findings: tuple[Finding, ...]
    state: int | None = None
    current: bool | None = None
    anchor: str | None = None


NO_RUN = Story((unproven("request", "as written", "the run, and " + OLDER),))


def story_of(
    run: RunFolder, number: int, certificate: Certificate, *, store: DiskStore | None, anchors: Sequence[str] = ()
) -> Story:
    """The story of the state that a certificate was given for; with a cache, its rows are looked at too."""
    entries = run.entries()
    entry = next(one for one in entries if one.details.get("certificate") == certificate.digest)
    anchored, found = _anchored(entries, anchors)
    older = any(one < entry.number for one in anchored)
    for name, wrong in (
        ("request", _request(run, entry, certificate, store)),
        ("partition", _partition(run, entries)),
        (
            "method",
            "" if entry.details["method"] == certificate.method else f"the ledger says {entry.details['method']}",
        ),
    ):
        if name == "request" and not opened(certificate.request):
            found.append(unproven(name, asked(certificate.request), "the request, which was erased with its rows"))
            continue
        claimed = (
            asked(certificate.request)
            if name == "request"
            else certificate.method
            if name == "method"
            else "as trained"
        )
        covered = max(anchored, default=0) >= entry.number if name == "method" else older
        verdict = FALSE if wrong else PROVEN if covered and (store is not None or name == "method") else INTACT
        wanted = (
            "an anchor noted since" if name == "method" else OLDER + ("" if store is not None else ", and the rows")
        )
        found.append(
            Finding(name, verdict, claimed, wrong or "as the ledger says", wanted if verdict == INTACT else "")
        )
    current = number == run.state
    found += release_finding(entries, certificate, anchored)
    found += [judge_transition(run, entry, entries), _current(run, entry, entries)]
    return Story(tuple(found), number, current, str(entries[-1].anchor))


def _anchored(entries: Sequence[LedgerEntry], anchors: Sequence[str]) -> tuple[list[int], list[Finding]]:
    """The numbers of the entries that anchors name; one that the ledger does not run through shows another history."""
    numbers, found = [], []
    for anchor in anchors:
        number, _, noted = anchor.lower().rpartition(":")
        meant = [one for one in entries if number in ("", str(one.number))]
        here = [one.number for one in meant if len(noted) >= SHORTEST and one.digest.startswith(noted)]
        numbers += here
        if not here:
            said = "the ledger does not run through it: it was written anew, rolled back, or is another run's"
            found.append(Finding("anchor", FALSE, anchor[:16], said))
    if anchors and not found:
        found.append(Finding("anchor", PROVEN, f"{len(anchors)} noted", f"current as of entry {max(numbers)}"))
    return numbers, found


def _request(run: RunFolder, entry: LedgerEntry, certificate: Certificate, store: DiskStore | None) -> str:
    """What contradicts the request, in words; nothing where all fits."""
    if not opened(entry.details["request"]) or not opened(certificate.request):
        return ""  # erased since, with the rows
    request = UnlearnRequest.from_plain(certificate.request)
    if request_of(entry).plain != request.plain:
        return f"the ledger says {asked(request_of(entry).plain)}"
    if entry.state - 1 not in run.states():
        return ""
    counts = dict(run.trained(entry.state - 1).counts)
    gone = [name for name in request.clients if name not in counts]
    if gone:
        return f"client {gone[0]} was not there to be forgotten"
    for name in request.clients:
        counts.pop(name)
    retained = certificate.retained or run.trained(entry.state).counts  # names may be sealed
    others, everyone = set(retained) - set(request.added), dict(counts)
    for name in set(counts) - others:
        if request.may_empty(name, counts[name]):
            counts.pop(name)
    if others != set(counts):
        return f"client {min(others ^ set(counts))} came or went unasked"
    moved = [name for name in sorted(others) if retained[name] != counts[name]]
    if moved and not request.by_row:
        return f"client {moved[0]} has {retained[moved[0]]} rows, before it had {counts[moved[0]]}"
    return _samples(run, entry, request, certificate, everyone, store) if request.by_row and store is not None else ""


def _samples(
    run: RunFolder,
    entry: LedgerEntry,
    request: UnlearnRequest,
    certificate: Certificate,
    counts: dict[str, int],
    store: DiskStore,
) -> str:
    """What contradicts a request about samples: each was there and is gone (or has its label), and no other."""
    if any(one.action == PURGE and one.details["cache"] and one.number > entry.number for one in run.entries()):
        return ""  # the rows were erased since
    held: list[dict[tuple[str, str], int]] = []
    server: list[set[str]] = []
    for state in (entry.state - 1, entry.state):
        embeddings, partition = rows_at(run, store, state)
        names = [name for name in partition.clients if name in certificate.retained or name in counts]
        server.append({embeddings.ids[row] for row in partition.server.tolist()})
        held.append(
            {
                (name, embeddings.ids[row]): int(embeddings.labels[row])
                for name in names
                for row in partition.clients[name].tolist()
            }
        )
    before, after = held
    out = {(name, one.sample) for one in request.samples for name in ([one.client] if one.client else counts)}
    labels = {
        (name, one.sample): one.label for one in request.relabelled for name in ([one.client] if one.client else counts)
    }
    for sample in {one.sample for one in request.samples}:
        if sample not in server[0] and not any(key[1] == sample for key in before):
            return f"sample {sample[:12]} was not there to be forgotten"
    for one in request.samples:
        if one.client is None and one.sample in server[1]:
            return f"sample {one.sample[:12]} is still among the server's rows"
    wanted = {key: labels.get(key, label) for key, label in before.items() if key not in out}
    joined = {key for key in after if key[0] in request.added}
    after = {key: label for key, label in after.items() if key not in joined}
    if after != wanted:
        odd: Any = next(iter(set(after.items()) ^ set(wanted.items())))
        return f"sample {odd[0][1][:12]} of client {odd[0][0]} changed unasked, or did not change"
    return ""


def _partition(run: RunFolder, entries: Sequence[LedgerEntry]) -> str:
    """Whether who holds which rows is what the ledger says it was at training (or at the last purge of rows)."""
    fixed: Any = next(one.inputs["partition"] for one in entries if "partition" in one.inputs)
    if any(one.action == PURGE and one.details["cache"] for one in entries):
        fixed = run.inputs["partition"]
    try:
        found = run.partition().digest
    except ProbekitError as error:
        return str(error)
    return "" if found == fixed == run.inputs["partition"] else "rows were moved between clients since training"


def _current(run: RunFolder, entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> Finding:
    """Whether the state is the run's, and whether somebody forgotten was taken back since."""
    every = [one for one in entries if one.action == UNLEARN and opened(one.details["request"])]
    forgotten = set(request_of(entry).clients) if entry in every else set()
    later = [one for one in every if one.number > entry.number]
    back = {name: one.state for one in later for name in request_of(one).added if name in forgotten}
    claimed = f"state {entry.state}"
    if back:
        name, state = next(iter(back.items()))
        wanted = f"the certificate of state {run.state}: this one is out of date"
        return Finding("current", INTACT, claimed, f"client {name} was taken back in state {state}", wanted)
    if entry.state != run.state:
        wanted = f"the certificate of state {run.state}, which followed"
        return Finding("current", INTACT, claimed, f"the run is in state {run.state}", wanted)
    return Finding("current", PROVEN, claimed, "the run's state")
