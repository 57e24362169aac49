"""Is a certificate true? Everything it says, computed again from a run, or from a head alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.certificates.certificate import Certificate, read_certificate
from probekit.certificates.checks import Check
from probekit.certificates.verify import Evidence
from probekit.certificates.verify import verify as check
from probekit.errors import CorruptError, InputError, NotFoundError, VerificationError
from probekit.federated.trained import Trained
from probekit.models.serving import load_head
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.result import Result
from probekit.runs.rows import UNLEARN, RunRows, rows_at
from probekit.runs.unlearning import certificate_path
from probekit.values import EmbeddingSet


@dataclass(frozen=True)
class VerifyResult(Result):
    """Every check of a certificate; `verified`: there are some and all hold."""

    certificate: Path
    digest: str
    verified: bool
    signed_by: str | None
    checkable_by: str
    checks: tuple[Check, ...]
    assumptions: tuple[str, ...]
    caveats: tuple[str, ...]


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
        return cls(path, *read_certificate(path.read_text()))

    def check(self, evidence: Evidence, public_key: bytes | None = None) -> VerifyResult:
        """Every check that the evidence allows."""
        claims, by = self.certificate, self.certificate.checkable_by
        checks = tuple(check(claims, replace(evidence, signature=self.signature, public_key=public_key)))
        private: Any = claims.privacy or {}
        passed = bool(checks) and all(one.passed for one in checks)
        key = self.signature["key"] if self.signature else None
        caveats = (*claims.caveats, *map(str, private.get("caveats") or ()))
        return VerifyResult(self.path, claims.digest, passed, key, by, checks, tuple(claims.assumptions), caveats)


def verify(
    run: OpenRun,
    certificate: Path | str | None = None,
    *,
    rows: bool = False,
    test: str | None = None,
    public_key: bytes | None = None,
) -> VerifyResult:
    """Compute again everything that a certificate of this run says (None: the current state's).

    rows: compute the statistics again from the retained clients' cached rows.
    test: the set of the certified agreement.
    public_key: whose signature is wanted (PEM).
    """
    folder, store = run.folder, run.store
    evaluation = store.open(test) if test is not None else None
    found = CertificateFile.read(Path(certificate)) if certificate is not None else certificate_of(folder, run.state)
    if found is None:
        raise InputError(f"Nothing was unlearned in state {run.state} of {run.path}: there is no certificate.")
    number = _state_of(folder, found.certificate)
    trained = folder.trained(number)
    # where a problem has no statistics, all that is to be checked is in the rows
    summed = "statistics" in trained.problem.traits
    held = rows_at(folder, store, number) if rows or not summed else None
    return found.check(evidence_for(folder, number, trained, found.certificate, held, evaluation), public_key)


def verify_head(
    certificate: Path, head: Path, *, store: DiskStore, test: str | None = None, public_key: bytes | None = None
) -> VerifyResult:
    """Check what a certificate says of a head by itself, where there is no run."""
    evidence = Evidence(head=load_head(head), evaluation=store.open(test) if test is not None else None)
    return CertificateFile.read(certificate).check(evidence, public_key)


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
    return found


def evidence_for(
    run: RunFolder, number: int, trained: Trained, claims: Certificate, rows: RunRows | None, test: EmbeddingSet | None
) -> Evidence:
    """What a run holds to check the certificate of a state by: heads, statistics, rows where given, the test set."""
    evidence = Evidence(trained.head, statistics=trained.statistics, objective=trained.objective, evaluation=test)
    if number - 1 in run.states():
        before = run.at(number - 1)
        evidence = replace(evidence, before=before.head(), objective_before=before.objective())
    if rows is None:
        return evidence
    held = {name: one for name, one in rows.partition.clients.items() if name in claims.retained}
    return replace(evidence, embeddings=rows.embeddings, rows=held)


def _state_of(run: RunFolder, claims: Certificate) -> int:
    """The state that the ledger says this certificate was given for."""
    for entry in run.entries():
        if entry.details.get("certificate") == claims.digest:
            return entry.state
    found = f"certificate {claims.digest[:16]}"
    raise VerificationError(f"The ledger of {run.path} knows no {found}: it was changed, or is another run's.")
