"""One file for somebody who has nothing else: what a run's ledger, transitions and certificates say of some states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import save as save_tensors

from probekit.certificates.second import Sums
from probekit.custody.archive import CONFIG, LEDGER, MOST_BYTES, STATEMENT, SUMS, TRANSITIONS, WEIGHTS, Archive
from probekit.custody.chain import BEGINNING, Chain
from probekit.custody.signatures import raw_public_key
from probekit.custody.transitions import Transition
from probekit.errors import InputError
from probekit.files import write_bytes
from probekit.runs.commitments import read_transition
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import state_folder
from probekit.runs.ledger import FORMAT, PURGE, UNLEARN, Event, LedgerEntry
from probekit.runs.noise import EXPORT, releases_of
from probekit.runs.proving import NOTHING_COMMITTED
from probekit.runs.result import Result
from probekit.runs.statement import NOT_SHOWN, statement
from probekit.runs.states import HEAD
from probekit.runs.unlearning import certificate_path
from probekit.runs.verification import CertificateFile
from probekit.values import Json, canonical

HANDED = "sums"
"""The ledger's word for sums that were handed to an auditor."""
NOISY = (
    "{} releases its heads with noise, and a certificate has numbers and digests of heads without it, which no noise "
    "covers: there is no bundle of it. Show the certificate to an auditor, with the run; heads leave it by `export`."
)
MOST_LINKS = 8192
"""Entries of the chain that a bundle has at most."""


@dataclass(frozen=True)
class BundleResult(Result):
    """A bundle that was written: where, its size and digest, of which states, and what it does not show."""

    path: Path
    size: int
    states: tuple[int, ...]
    anchor: str
    signed_by: str | None
    receipts_from: int
    not_shown: tuple[str, ...]


def bundle(
    run: OpenRun,
    path: Path | str,
    *,
    states: Sequence[int] = (),
    reference: str | None = None,
    key: bytes | None = None,
    head: bool = False,
    sums_for: str | None = None,
) -> BundleResult:
    """Write what a stranger can check of states in which something was unlearned (none named: of the current one).

    reference: the operator's for the request; not a name. key: the operator's private key (PEM), to sign with.
    head: enclose the head, which the ledger says left. sums_for: an auditor, to whom the sums over the retained clients
    go with it; the ledger says so, and of one state of a run only: two states' sums differ by whoever was forgotten
    between them.
    """
    folder = run.folder
    with folder.lock():
        if releases_of(folder.entries()) is not None:
            raise InputError(NOISY.format(folder.path))
        named = tuple(sorted(states)) or (folder.state,)
        made = _contents(folder, named, reference)
        large = _large(folder, made.states[-1], head=head or sums_for is not None, sums=sums_for is not None)
        if sums_for is not None:
            _hand_out(folder, sums_for)
        if large:
            _export(folder, named[-1], sums_for or "whoever gets the bundle")
            made = _contents(folder, named, reference)  # with these entries
        made, data = _fitted(made, large, key)
        write_bytes(Path(path), data)
    signed_by = None if key is None else raw_public_key(key, private=True).hex()
    oldest, size = made.transitions[0].before.state, len(data)
    hidden = tuple(text for _, text, _ in NOT_SHOWN.values())
    return BundleResult(Path(path), size, made.states, str(made.chain.tip), signed_by, oldest, hidden)


@dataclass(frozen=True)
class _Contents:
    run: str
    states: tuple[int, ...]
    reference: str | None
    entries: tuple[LedgerEntry, ...]
    chain: Chain
    transitions: tuple[Transition, ...]
    certificates: Mapping[int, CertificateFile]

    def archive(self, large: Mapping[str, bytes], key: bytes | None) -> Archive:
        """The bundle with all of it."""
        named = None if key is None else raw_public_key(key, private=True).hex()
        about: dict[str, Json] = {"run": self.run, "states": list(self.states), "reference": self.reference}
        opened = {state: one.certificate for state, one in self.certificates.items()}
        steps = {one.after.state: one for one in self.transitions}
        page = statement(about, named, self.entries, steps, opened, self.chain.tip)
        ledger: dict[str, Any] = {"chain": self.chain.plain, "shown": [one.stored for one in self.entries]}
        parts = {
            STATEMENT: page.encode(),
            LEDGER: canonical(ledger).encode(),
            TRANSITIONS: canonical([one.plain for one in self.transitions]).encode(),
            **{f"certificate-{state:04d}.json": one.path.read_bytes() for state, one in self.certificates.items()},
        }
        found = Archive(about, {**parts, **large})
        return found if key is None else found.signed(key)


def _contents(run: RunFolder, states: tuple[int, ...], reference: str | None) -> _Contents:
    entries = run.entries()
    made = {one.state: one for one in entries if one.action == UNLEARN and one.state in states}
    for state in states:
        if state not in made:
            raise InputError(f"Nothing was unlearned in state {state} of {run.path}: there is nothing to show of it.")
    first = min(one.number for one in made.values())
    # other purges, and sums, say nothing of anybody
    shown = [one for one in entries if one in made.values() or (one.number > first and one.action in (PURGE, HANDED))]
    steps = _transitions(run, min(states), max(states))
    certificates = {state: CertificateFile.read(certificate_path(run, state)) for state in sorted(states)}
    name, chain = steps[-1].after.run.hex(), _chain(entries, first)
    return _Contents(name, tuple(sorted(states)), reference, tuple(shown), chain, steps, certificates)


def _chain(entries: Sequence[LedgerEntry], first: int) -> Chain:
    """As much of the chain as fits, with the entry before the first that is shown; earlier formats have none."""
    old = max((one.number for one in entries if one.format != FORMAT), default=0)
    if old >= first:
        raise InputError("This was unlearned by an earlier probekit, whose ledger cannot be shown in part.")
    begin = max(old, min(first - 1, len(entries) - MOST_LINKS), 0)
    start = entries[begin - 1].anchor if begin else BEGINNING
    return Chain(start, tuple(bytes.fromhex(one.body) for one in entries[begin:]))


def _transitions(run: RunFolder, first: int, last: int) -> tuple[Transition, ...]:
    """Every transition up to a state, from the first that has all after it; receipts of these states can be checked."""
    found: list[Transition] = []
    for state in range(last, 1, -1):
        one = read_transition(run.path, state)
        if one is None:
            break
        found.insert(0, one)
    if not found or found[0].after.state > first:
        raise InputError(f"{run.path} has no transition to state {first}: {NOTHING_COMMITTED}")
    return tuple(found)


def _fitted(made: _Contents, large: Mapping[str, bytes], key: bytes | None) -> tuple[_Contents, bytes]:
    """The bundle, with as many of the transitions before the first state as a megabyte has room for."""
    needed = next(n for n, one in enumerate(made.transitions) if one.after.state == made.states[0])
    skip = 0
    while True:
        found = replace(made, transitions=made.transitions[skip:])
        try:
            return found, found.archive(large, key).data
        except InputError as error:
            if skip == needed:
                raise InputError(f"{error} (Of {len(made.states)} states; limit {MOST_BYTES}.)") from error
            skip = min(needed, max(2 * skip, needed // 8, 1))


def _large(run: RunFolder, state: int, *, head: bool, sums: bool) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if sums and state != run.state:
        raise InputError(f"Sums are of the current state, {run.state}, and the bundle is of state {state}.")
    if head:
        folder = state_folder(run.path, state) / HEAD
        run.head(state)  # which checks it
        found |= {name: (folder / name.partition("/")[2]).read_bytes() for name in (CONFIG, WEIGHTS)}
    if sums:
        statistics = run.trained().statistics
        if statistics is None:
            raise InputError(f"{run.path} keeps no statistics, so there are no sums to hand out.")
        if "targets" in run.trained().problem.traits:
            raise InputError("Sums are handed out of runs with classes only; leave them out, or show the run itself.")
        found[SUMS] = save_tensors(Sums.of_statistics(statistics).arrays)
    return found


def _export(run: RunFolder, state: int, to: str) -> None:
    """Enter in the ledger, once, that a head leaves the run."""
    said: dict[str, Json] = {"state": state, "to": to, "rho": None, "noise": False}
    if not any(one.action == EXPORT and dict(one.details) == said for one in run.entries()):
        run.record(Event(EXPORT, {}, said))


def _hand_out(run: RunFolder, auditor: str) -> None:
    """Enter in the ledger who gets the sums; refused where sums of another state were handed out."""
    if not auditor.strip():
        raise InputError("Say who the auditor is that the sums go to.")
    before = [one for one in run.entries() if one.action == HANDED]
    for one in before:
        if one.state != run.state:
            raise InputError(
                f"Sums of state {one.state} of {run.path} went to {one.details['auditor']}. Those of state {run.state} "
                "differ from them by whoever was forgotten since: whoever has both has the forgotten rows. The auditor "
                "can look at the run itself instead."
            )
    if not any(one.details["auditor"] == auditor for one in before):
        run.record(Event(HANDED, {"state": run.state}, {"auditor": auditor}))
