"""A client's receipt from a run, and what became of the leaf that a receipt is of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.certificates.verdicts import FALSE, PROVEN, Finding, unproven
from probekit.custody.receipts import MOST_BYTES, Receipt
from probekit.custody.seals import opened
from probekit.custody.slots import SlotRoot
from probekit.custody.transitions import Transition
from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.files import PRIVATE, write_bytes
from probekit.runs.commitments import Commitments, read_transition
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.ledger import LedgerEntry
from probekit.runs.result import Result
from probekit.runs.rows import request_of
from probekit.unlearning.request import known_clients

NOTHING_COMMITTED = (
    "it was made by an earlier probekit. Train again; or unlearn something, then the state after it commits to its "
    "clients."
)
SHOWN = 8
NOT_SHOWN = (
    "that the same rows are in no other slot, and that no copies exist elsewhere",
    "that the head was made from what the run commits to",
    "a run that was rolled back or written anew, unless somebody else holds a receipt or an anchor of it",
)


@dataclass(frozen=True)
class ProveResult(Result):
    """A receipt, where it was written, and what it does not show."""

    path: Path
    receipt: Receipt
    not_shown: tuple[str, ...] = NOT_SHOWN

    @property
    def plain(self) -> dict[str, Any]:
        """All of it but the salt, which is for the client alone."""
        said = self.receipt
        return {
            "path": str(self.path),
            "slot": said.leaf.slot,
            "rows": said.leaf.rows,
            "state": said.root.state,
            "root": said.root.digest,
            "anchor": str(said.anchor),
            "signed_by": said.signature["key"] if said.signature else None,
            "not_shown": list(self.not_shown),
        }


def prove(run: OpenRun, client: str, path: Path | str, *, key: bytes | None = None) -> ProveResult:
    """Write a client's receipt, to be kept by the client: its leaf in the current state, and the ledger's tip.

    key: the operator's private key, to sign it with (PEM).
    """
    found, path = receipt_of(run, client, key=key), Path(path)
    write_bytes(path, found.text.encode(), mode=PRIVATE)
    return ProveResult(path, found)


def receipt_of(run: OpenRun, client: str, *, key: bytes | None = None) -> Receipt:
    """A client's receipt: its leaf in the current state, opened."""
    return next(receipts_of(run, [client], key=key))


def receipts_of(run: OpenRun, clients: Iterable[str], *, key: bytes | None = None) -> Iterator[Receipt]:
    """The receipts of many clients."""
    folder = run.folder
    with folder.lock():
        committed, anchor = committed_in(folder), folder.entries()[-1].anchor
        root = committed.root(folder.state)
        if root_of(folder.entries(), folder.state) != root:
            raise VerificationError(f"The leaves of {run.path} are not those that its ledger commits to.")
        for client in clients:
            if client not in committed.leaves:
                raise InputError(f"Cannot prove anything to client {client}: {known_clients(tuple(committed.leaves))}.")
            leaf = committed.leaves[client]
            found = Receipt(leaf, root, committed.tree.siblings(leaf.slot), anchor)
            yield (found if key is None else found.signed(key)).check(name=client)


def committed_in(run: RunFolder) -> Commitments:
    """What the current state commits to; runs that commit to nothing are refused."""
    found = run.at().commitments()
    if found is None:
        raise InputError(f"{run.path} commits to nothing: {NOTHING_COMMITTED}")
    return found


def root_of(entries: list[LedgerEntry], state: int) -> SlotRoot | None:
    """The root of a state, as the ledger has it; None: the state was made by an earlier version."""
    for one in entries:
        if one.outputs.get("trained") is not None and one.state == state:
            plain: Any = one.outputs.get("root")
            return None if plain is None else SlotRoot.from_plain(plain)
    return None


@dataclass(frozen=True)
class ReceiptResult(Result):
    """What became of a receipt's leaf: the state that emptied it and when, by the operator's clock; None: not shown.

    `missing` is the first state whose transition is not there. `anchor` is the ledger's tip, to be noted for later.
    """

    receipt: Path
    slot: int
    state: int
    emptied: int | None
    when: str | None
    missing: int | None
    anchor: str
    signed_by: str | None
    not_shown: tuple[str, ...] = NOT_SHOWN

    @property
    def proven(self) -> bool:
        """Whether the leaf was emptied since."""
        return self.emptied is not None


def check_receipt(
    run: OpenRun, path: Path | str, *, client: str | None = None, public_key: bytes | None = None
) -> ReceiptResult:
    """Whether the leaf of a receipt was emptied since; refused if the run is not the one that the receipt is of.

    client: the name that the receipt must be of. public_key: the operator's, from the operator (PEM).
    """
    folder, path = run.folder, Path(path)
    receipt = read_receipt(path).check(name=client, public_key=public_key)
    entries = folder.entries()
    _demand(receipt, entries, folder.path)
    steps, missing = _transitions(folder, entries, receipt.root.state)
    found = receipt.history(steps)
    made = [one for one in entries if "root" in one.outputs and one.state == found.emptied]
    return ReceiptResult(
        path,
        receipt.leaf.slot,
        receipt.root.state,
        found.emptied,
        made[0].time if made else None,
        None if made else missing,
        str(entries[-1].anchor),
        receipt.signature["key"] if receipt.signature else None,
    )


def read_receipt(path: Path) -> Receipt:
    """The receipt in a file."""
    if not path.is_file():
        raise NotFoundError(f"There is no receipt {path}. `probekit prove` writes one.")
    with path.open("rb") as handle:
        return Receipt.read(handle.read(MOST_BYTES + 1))


def _demand(receipt: Receipt, entries: list[LedgerEntry], path: Path) -> None:
    """Refuse a run whose ledger does not run through a receipt's anchor, or had another root then."""
    noted, root = receipt.anchor, receipt.root
    if not 0 < noted.number <= len(entries) or entries[noted.number - 1].anchor != noted:
        raise VerificationError(
            f"The ledger of {path} does not run through entry {noted.number} as the receipt has it: it was written "
            "anew, rolled back, or is another run's."
        )
    if root_of(entries[: noted.number], root.state) != root:
        raise VerificationError(
            f"In state {root.state} the ledger of {path} committed to another root than the receipt's."
        )


def _transitions(run: RunFolder, entries: list[LedgerEntry], state: int) -> tuple[list[Transition], int | None]:
    """Every transition after a state, up to the first that is missing, each between roots that the ledger has."""
    found: list[Transition] = []
    for number in range(state + 1, run.state + 1):
        one = read_transition(run.path, number)
        if one is None:
            return found, number
        if (one.before, one.after) != (root_of(entries, number - 1), root_of(entries, number)):
            raise VerificationError(
                f"The transition to state {number} of {run.path} is not between its ledger's roots."
            )
        found.append(one)
    return found, None


def judge_transition(run: RunFolder, entry: LedgerEntry, entries: list[LedgerEntry]) -> Finding:
    """Whether exactly the slots that a request is about changed between the roots of two states."""
    claimed, state = f"from state {entry.state - 1} to {entry.state}", entry.state
    before, after = root_of(entries, state - 1), root_of(entries, state)
    if before is None or after is None:
        return unproven("transition", claimed, "a run that commits to its clients: train again with this version")
    try:
        proof = read_transition(run.path, state)
        if proof is None:
            return unproven("transition", claimed, f"the transition to state {state}, as the run wrote it")
        if (proof.before, proof.after) != (before, after):
            raise VerificationError("it is not between the roots that the ledger has")
        _demand_slots(run, entry, proof)
    except (VerificationError, InputError) as error:
        return Finding("transition", FALSE, claimed, str(error))
    return Finding("transition", PROVEN, claimed, changes_in_words(proof))


def changes_in_words(proof: Transition) -> str:
    """Which slots a transition changed, and how."""
    counts = {"emptied": len(proof.emptied), "joined": sum(one.joined for one in proof.changes)}
    counts["changed"] = len(proof.changes) - sum(counts.values())
    said = ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "none changed"
    slots = " ".join(str(one.slot) for one in proof.changes[:SHOWN]) + (" ..." if len(proof.changes) > SHOWN else "")
    return f"slots {slots}: {said}; no other of {proof.after.slots}"


def _demand_slots(run: RunFolder, entry: LedgerEntry, proof: Transition) -> None:
    """Refuse a transition of other clients than were asked about, as far as requests and leaves are still there."""
    joined, named = sum(one.joined for one in proof.changes), entry.details.get("request")
    if named is None or not opened(named):
        return
    request = request_of(entry)
    fewest = len(request.clients)  # a client whose every sample is forgotten goes too
    if joined != len(request.added) or len(proof.emptied) < fewest or (not request.by_row and proof.emptied[fewest:]):
        raise VerificationError(f"{len(proof.emptied)} slots emptied and {joined} joined, which is not what was asked")
    held = run.at(entry.state - 1).commitments() if entry.state - 1 in run.states() else None
    if held is None:
        return
    for name in request.clients:
        if name not in held.leaves or held.leaves[name].slot not in proof.emptied:
            raise VerificationError(f"the slot of client {name} was not emptied")
