"""What a bundle shows to somebody who has nothing else; and what a receipt or an answer shows together with it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from probekit.certificates.certificate import Certificate, read_certificate
from probekit.certificates.evidence import Evidence
from probekit.certificates.second import Sums
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, Finding, unproven, verdict_of
from probekit.certificates.verify import verify as check
from probekit.custody.answers import MOST_BYTES, ErasureAnswer, is_answer
from probekit.custody.archive import CONFIG, LEDGER, STATEMENT, SUMS, TRANSITIONS, WEIGHTS, Archive
from probekit.custody.chain import Anchor, Chain
from probekit.custody.receipts import Receipt
from probekit.custody.transitions import Transition
from probekit.errors import NotFoundError, ProbekitError, VerificationError
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.models.serving import load_head
from probekit.runs.ledger import PURGE, LedgerEntry, entry_of
from probekit.runs.proving import NOT_SHOWN as RECEIPT_NOT_SHOWN
from probekit.runs.proving import ReceiptResult, changes_in_words
from probekit.runs.result import Result
from probekit.runs.statement import NOT_SHOWN, statement

AS_WRITTEN = "Take the bundle as written."


@dataclass(frozen=True)
class BundleCheck(Result):
    """What came of every claim of a bundle, and of all together; and the page in plain words."""

    bundle: Path
    size: int
    verdict: str
    findings: tuple[Finding, ...]
    signed_by: str | None
    reference: str | None
    states: tuple[int, ...]
    anchor: str
    statement: str


@dataclass(frozen=True)
class AnswerResult(Result):
    """What an answer opens of a bundle's certificates: how many of the samples and clients asked for."""

    answer: Path
    reference: str
    opened: tuple[str, ...]
    states: tuple[int, ...]
    anchor: str
    signed_by: str | None
    not_shown: tuple[str, ...] = RECEIPT_NOT_SHOWN


class Bundle:
    """A bundle that was read, its parts put together and held against each other."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.archive = Archive.read(self.path)
        try:
            self._read()
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise VerificationError(f"{self.path} is not a bundle: {error}. {AS_WRITTEN}") from error

    def _read(self) -> None:
        about: Any = self.archive.about
        self.run, self.states, self.reference = str(about["run"]), tuple(map(int, about["states"])), about["reference"]
        ledger = self.archive.json(LEDGER)
        self.chain = Chain.from_plain(ledger["chain"])
        self.entries = tuple(self._on_chain(entry_of(one)) for one in ledger["shown"])
        self.transitions = tuple(map(Transition.from_plain, self.archive.json(TRANSITIONS)))
        for one, following in zip(self.transitions, self.transitions[1:], strict=False):
            if one.after != following.before:
                raise VerificationError(
                    f"The transition to state {following.after.state} does not follow. {AS_WRITTEN}"
                )
        names = {f"certificate-{state:04d}.json": state for state in self.states}
        certificates = {name for name in self.archive.parts if name.startswith("certificate-")}
        if set(names) != certificates or not self.states or not self.transitions:
            raise VerificationError(f"The bundle lacks what it says it is about. {AS_WRITTEN}")
        read = {state: read_certificate(self.archive.parts[name].decode()) for name, state in names.items()}
        self.certificates = {state: one for state, (one, _) in read.items()}
        self.signatures = {state: signature for state, (_, signature) in read.items()}
        self.unlearned = {state: self._tied(state) for state in self.states}
        key = None if self.archive.signature is None else self.archive.signature.get("key")
        steps = {one.after.state: one for one in self.transitions}
        self.statement = statement(about, key, self.entries, steps, self.certificates, self.chain.tip)

    def _on_chain(self, entry: LedgerEntry) -> LedgerEntry:
        """An entry, if the chain has it in its place."""
        place = entry.number - self.chain.start.number - 1
        if not 0 <= place < len(self.chain.bodies) or (
            (self.chain.bodies[place].hex(), self.chain.digests[place].hex()) != (entry.body, entry.previous)
        ):
            raise VerificationError(f"Entry {entry.number} is not on the chain of the bundle's ledger. {AS_WRITTEN}")
        return entry

    def _tied(self, state: int) -> LedgerEntry:
        """The entry that made a state; refused unless it names the certificate and the roots of the transition."""
        digest = self.certificates[state].digest
        step = next((one for one in self.transitions if one.after.state == state), None)
        roots = None if step is None else (step.before.digest, step.after.plain, step.after.run.hex())
        for entry in self.entries:
            named = (entry.inputs.get("root"), entry.outputs.get("root"), self.run)
            if (entry.state, entry.details.get("certificate")) == (state, digest) and named == roots:
                return entry
        raise VerificationError(
            f"Certificate and transition of state {state} are not those that the ledger names. {AS_WRITTEN}"
        )

    def check(
        self, *, public_key: bytes | None = None, anchors: Sequence[str] = (), require: Sequence[str] = ()
    ) -> BundleCheck:
        """Every claim: what the bundle itself shows, what its certificates say, and what no bundle shows.

        public_key: the operator's, from the operator (PEM). anchors: digests of the ledger that somebody noted.
        """
        findings = [self._signed(public_key), self._page(), *self._steps(), *self._chained(anchors)]
        for state, certificate in self.certificates.items():
            evidence = self._evidence(state, certificate)
            judged = check(certificate, replace(evidence, signature=self.signatures[state], public_key=public_key))
            findings += self._counted(certificate, evidence) + list(judged)
        findings += [unproven(name, short, wanted) for name, (short, _, wanted) in NOT_SHOWN.items()]
        findings += [self._purged(one) for one in self.entries if one.action == PURGE]
        signed = self.archive.signature["key"] if self.archive.signature else None
        found, size, tip = tuple(findings), self.path.stat().st_size, str(self.chain.tip)
        verdict, about = verdict_of(findings, require), (self.reference, self.states)
        return BundleCheck(self.path, size, verdict, found, signed, *about, tip, self.statement)

    def _signed(self, public_key: bytes | None) -> Finding:
        signature = self.archive.signature
        named = "" if signature is None else str(signature.get("key"))
        if signature is None and public_key is None:
            return Finding("signature", INTACT, "nobody", "the bundle is not signed", "a signed bundle")
        try:
            self.archive.check_signature(public_key)
        except VerificationError as error:
            return Finding("signature", FALSE, named[:16], str(error))
        if public_key is None:
            return Finding(
                "signature", INTACT, named[:16], "whole, signer unknown", "the signer's public key, from him"
            )
        return Finding("signature", PROVEN, named[:16], "signed by the key given")

    def _page(self) -> Finding:
        given = self.archive.parts.get(STATEMENT, b"")
        same = given == self.statement.encode()
        verdict, said = (PROVEN, "says what") if same else (FALSE, "says something else than what")
        return Finding("statement", verdict, "the page in plain words", f"{said} the rest of the bundle says")

    def _steps(self) -> list[Finding]:
        return [
            Finding("transition", PROVEN, f"from state {one.before.state} to {one.after.state}", changes_in_words(one))
            for one in self.transitions
            if one.after.state in self.states
        ]

    def _chained(self, anchors: Sequence[str]) -> list[Finding]:
        """That shown entries lie on the chain was checked when it was read."""
        shown = " ".join(str(one.number) for one in self.entries[:8]) + (" ..." if len(self.entries) > 8 else "")
        said = f"on one chain to entry {self.chain.tip.number}: current as of then, by the operator's clock"
        found = [Finding("chain", PROVEN, f"entries {shown}", said)]
        for text in anchors:
            try:
                noted = Anchor.parse(text)
                self.chain.demand([noted])
                found.append(Finding("anchor", PROVEN, text[:24], f"the chain runs through entry {noted.number}"))
            except ProbekitError as error:
                found.append(Finding("anchor", FALSE, text[:24], str(error)))
        return found

    def _purged(self, entry: LedgerEntry) -> Finding:
        wanted = "the run and the cache themselves: `probekit purge` searches them"
        return Finding("erased", INTACT, f"entry {entry.number}, {entry.time}", "stated by the operator", wanted)

    def _evidence(self, state: int, certificate: Certificate) -> Evidence:
        """The head and the sums, where they are enclosed and of this state."""
        if WEIGHTS not in self.archive.parts or state != self.states[-1]:
            return Evidence()
        head = self._head()
        if SUMS not in self.archive.parts:
            return Evidence(head=head)
        try:
            design = problem_of(head, certificate.objective).design
            sums = Sums.of_arrays(design, load_tensors(self.archive.parts[SUMS]))
        except (ProbekitError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise VerificationError(f"The sums in {self.path} cannot be read: {error}. {AS_WRITTEN}") from error
        return Evidence(head=head, sums=sums)

    def _head(self) -> Head:
        with tempfile.TemporaryDirectory() as folder:
            for name in (CONFIG, WEIGHTS):
                if name not in self.archive.parts:
                    raise VerificationError(f"The bundle has no {name}. {AS_WRITTEN}")
                (Path(folder) / name.partition("/")[2]).write_bytes(self.archive.parts[name])
            try:
                return load_head(folder)
            except (ProbekitError, ValueError, RecursionError) as error:
                raise VerificationError(f"The head in {self.path} cannot be read: {error} {AS_WRITTEN}") from error

    def _counted(self, certificate: Certificate, evidence: Evidence) -> list[Finding]:
        """Whether the sums are over as many rows as are said to remain."""
        if evidence.sums is None:
            return []
        claimed, found = certificate.retained_numbers[1], int(evidence.sums.counts.sum())
        verdict = PROVEN if claimed == found else FALSE
        return [
            Finding("sums", verdict, f"over {claimed} rows", f"over {found} rows; whose, nobody can tell from them")
        ]

    def receipt(self, path: Path, *, client: str | None, public_key: bytes | None) -> ReceiptResult | AnswerResult:
        """What became of a receipt's leaf by this bundle, or what an answer opens of it."""
        if not path.is_file():
            raise NotFoundError(f"There is no receipt {path}. `probekit prove` and `probekit erase` write them.")
        with path.open("rb") as handle:
            data = handle.read(MOST_BYTES + 1)
        if is_answer(data):
            return self._answer(path, ErasureAnswer.read(data).check(public_key=public_key))
        receipt = Receipt.read(data).check(name=client, public_key=public_key)
        if receipt.leaf.run.hex() != self.run:
            raise VerificationError(f"The receipt {path} is of another run than the bundle {self.path}.")
        if receipt.anchor.number >= self.chain.start.number:
            self.chain.demand([receipt.anchor])
        begin = next((n for n, one in enumerate(self.transitions) if one.before == receipt.root), None)
        if begin is None and receipt.root != self.transitions[-1].after:
            oldest = self.transitions[0].before.state
            if any(receipt.root.state in (one.before.state, one.after.state) for one in self.transitions):
                raise VerificationError(f"In state {receipt.root.state} the run had another root than the receipt's.")
            missing = receipt.root.state + 1 if receipt.root.state < oldest else None
            history, emptied = None, None
        else:
            history = receipt.history(self.transitions[begin:] if begin is not None else ())
            missing, emptied = None, history.emptied
        entry, leaf = self.unlearned.get(emptied or 0), (receipt.leaf.slot, receipt.root.state)
        when, signed = None if entry is None else entry.time, receipt.signature["key"] if receipt.signature else None
        return ReceiptResult(path, *leaf, emptied, when, missing, str(self.chain.tip), signed)

    def _answer(self, path: Path, answer: ErasureAnswer) -> AnswerResult:
        self.chain.demand([answer.anchor])
        by_digest = {one.digest: (state, one) for state, one in self.certificates.items()}
        opened, states = [], []
        for digest, openings in answer.certificates.items():
            if digest not in by_digest:
                raise VerificationError(f"The answer {path} is of a certificate that the bundle does not have.")
            state, sealed = by_digest[digest]
            fitting = Certificate.from_stored(sealed.stored, openings).openings
            if set(fitting) != set(openings) or not openings:
                raise VerificationError(f"The answer {path} opens what was not asked for in state {state}.")
            opened += [f"{place.split('.')[1]} {_short(one.value)}" for place, one in sorted(openings.items())]
            states.append(state)
        signed_by = answer.signature["key"] if answer.signature else None
        return AnswerResult(path, answer.reference, tuple(opened), tuple(states), str(self.chain.tip), signed_by)


def _short(value: Any) -> str:
    """What was asked for, on a line."""
    return str(value[0])[:16] if isinstance(value, list | tuple) else str(value)
