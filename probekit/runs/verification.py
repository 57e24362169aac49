"""Is a certificate true? Everything it says, computed again from a run, or from a head alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.certificates.certificate import Certificate, read_certificate
from probekit.certificates.stripping import WHY, read_stripped
from probekit.certificates.verdicts import FALSE, PROVEN, Finding, verdict_of
from probekit.certificates.verify import Evidence
from probekit.certificates.verify import verify as check
from probekit.errors import CorruptError, InputError, NotFoundError, VerificationError
from probekit.federated.trained import Trained
from probekit.files import read_limited
from probekit.models.serving import load_head
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.noise import release_finding
from probekit.runs.openings import certificate_openings, read_openings
from probekit.runs.result import Result
from probekit.runs.retained import RetainedClients
from probekit.runs.rows import UNLEARN, RunRows, rows_at
from probekit.runs.story import NO_RUN, Story, story_of
from probekit.runs.unlearning import certificate_path
from probekit.unlearning.products import Products
from probekit.values import EmbeddingSet

MOST_BYTES = 2**24
"""The size of a certificate that is read at all."""


@dataclass(frozen=True)
class VerifyResult(Result):
    """What came of every claim of a certificate, and of all together: proven, not proven, or false.

    `state` is the one that it was given for, `current` whether that is the run's (None: no run was given).
    """

    certificate: Path
    digest: str
    verdict: str
    findings: tuple[Finding, ...]
    signed_by: str | None
    checkable_by: str
    state: int | None
    current: bool | None
    anchor: str | None
    assumptions: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Whether all (that was required) is proven."""
        return self.verdict == PROVEN

    @property
    def intact(self) -> bool:
        """Whether nothing was found false."""
        return self.verdict != FALSE


@dataclass(frozen=True)
class CertificateFile:
    """A certificate as it was written: where, what it says, and its signature."""

    path: Path
    certificate: Certificate
    signature: Mapping[str, str] | None

    @classmethod
    def read(cls, path: Path) -> CertificateFile:
        """The certificate in a file."""
        if not path.is_file():
            raise NotFoundError(f"There is no certificate {path}. `probekit unlearn` writes one.")
        try:
            text = read_limited(path, MOST_BYTES).decode()
        except ValueError as error:
            raise VerificationError(f"{path} is not a certificate: {error}. Take it as written.") from error
        if read_stripped(text) is not None:
            raise InputError(f"{path} proves nothing any more. {WHY}")
        return cls(path, *read_certificate(text))

    def opened(self, run: RunFolder, state: int) -> CertificateFile:
        """The same with all that the run can still open of it."""
        openings = read_openings(certificate_openings(run.path, state))
        return replace(self, certificate=Certificate.from_stored(self.certificate.stored, openings))

    def check(
        self,
        evidence: Evidence,
        public_key: bytes | None = None,
        *,
        story: Story = NO_RUN,
        require: Sequence[str] = (),
    ) -> VerifyResult:
        """What the evidence, and the story of the run, say of each claim."""
        claims = self.certificate
        judged = check(claims, replace(evidence, signature=self.signature, public_key=public_key))
        findings = (*story.findings, *judged)
        private: Any = claims.privacy or {}
        return VerifyResult(
            self.path,
            claims.digest,
            verdict_of(findings, require),
            findings,
            self.signature.get("key") if self.signature else None,
            claims.checkable_by,
            story.state,
            story.current,
            story.anchor,
            tuple(claims.assumptions),
            (*claims.caveats, *map(str, private.get("caveats") or ())),
        )


def verify(
    run: OpenRun,
    certificate: Path | str | None = None,
    *,
    rows: bool = False,
    test: str | None = None,
    public_key: bytes | None = None,
    anchors: Sequence[str] = (),
    require: Sequence[str] = (),
) -> VerifyResult:
    """Hold every claim of a certificate of this run (None: the current state's) against what can be computed again.

    rows: compute the statistics again from the retained clients' cached rows; where the rows lie with the clients,
    ask them for their statistics again.
    test: the set of the certified agreement.
    public_key: the signer's, from himself (PEM).
    anchors: digests of ledger entries that somebody noted earlier: the ledger must run through all of them.
    require: the claims that must be proven for the verdict to be so; none: all.
    """
    folder, store = run.folder, run.store
    evaluation = store.open(test) if test is not None else None
    found = CertificateFile.read(Path(certificate)) if certificate is not None else certificate_of(folder, run.state)
    if found is None:
        raise InputError(f"Nothing was unlearned in state {run.state} of {run.path}: there is no certificate.")
    number = _state_of(folder, found.certificate)
    found = found.opened(folder, number)
    trained = folder.trained(number)
    # where a problem has no statistics, all that is to be checked is in the rows, unless they lie with the clients
    elsewhere = "federation" in folder.inputs
    summed = "statistics" in trained.problem.traits or elsewhere
    if rows and elsewhere:
        with closing(RetainedClients(folder, store)) as clients:
            trained = replace(trained, statistics=clients.statistics(trained, number))
    try:
        held = rows_at(folder, store, number) if (rows and not elsewhere) or not summed else None
    except InputError as error:
        raise VerificationError(f"What the ledger says was asked for does not fit the rows. {error}") from error
    evidence = evidence_for(folder, number, trained, found.certificate, held, evaluation)
    told = story_of(folder, number, found.certificate, store=store if rows and not elsewhere else None, anchors=anchors)
    return found.check(evidence, public_key, story=told, require=require)


def verify_head(
    certificate: Path,
    head: Path,
    *,
    store: DiskStore,
    test: str | None = None,
    public_key: bytes | None = None,
    require: Sequence[str] = (),
) -> VerifyResult:
    """Check what a certificate says of a head by itself, where there is no run."""
    found = CertificateFile.read(certificate)
    evaluation = store.open(test) if test is not None else None
    told = replace(NO_RUN, findings=(*NO_RUN.findings, *release_finding(None, found.certificate)))
    evidence = Evidence(head=load_head(head), evaluation=evaluation)
    return found.check(evidence, public_key, story=told, require=require)


def certificate_of(run: RunFolder, state: int) -> CertificateFile | None:
    """The certificate that the ledger says was given for a state; None where nothing was unlearned in it."""
    made = [one for one in run.entries() if one.action == UNLEARN and one.state == state]
    if not made:
        return None
    path = certificate_path(run, state)
    if not path.is_file():
        raise CorruptError(f"{path} is missing from its run. Restore it from a copy.")
    found = CertificateFile.read(path)
    if found.certificate.digest != made[-1].details.get("certificate"):
        raise VerificationError(
            f"{path} is not the certificate that the ledger says was given for state {state}: it was changed, or "
            "is another run's. Restore it from a copy."
        )
    return found.opened(run, state)


def evidence_for(
    run: RunFolder, number: int, trained: Trained, claims: Certificate, rows: RunRows | None, test: EmbeddingSet | None
) -> Evidence:
    """What a run holds to check the certificate of a state by: heads, statistics, rows where given, the test set."""
    evidence = Evidence(trained.head, statistics=trained.statistics, objective=trained.objective, evaluation=test)
    evidence = replace(evidence, products=Products.of(trained))
    if number - 1 in run.states():
        before = run.at(number - 1)
        evidence = replace(evidence, before=before.head(), objective_before=before.objective())
    if rows is None:
        return evidence
    held = {name: one for name, one in rows.partition.clients.items() if name in (claims.retained or trained.counts)}
    return replace(evidence, embeddings=rows.embeddings, rows=held)


def _state_of(run: RunFolder, claims: Certificate) -> int:
    """The state that the ledger says this certificate was given for."""
    for entry in run.entries():
        if entry.details.get("certificate") == claims.digest:
            return entry.state
    found = f"certificate {claims.digest[:16]}"
    raise VerificationError(f"The ledger of {run.path} knows no {found}: it was changed, or is another run's.")
