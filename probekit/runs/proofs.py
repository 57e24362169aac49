"""What a run proves of itself: its certificates, checked, and its ledger, told in plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probekit.certificates.certificate import Certificate, read_certificate
from probekit.certificates.verify import Evidence, verify
from probekit.errors import CorruptError, VerificationError
from probekit.report.report import Page
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import LedgerEntry
from probekit.runs.snapshot import Snapshot
from probekit.runs.unlearning import PURGE, UNLEARN, certificate_path
from probekit.unlearning.request import asked
from probekit.values import EmbeddingSet, Json


def page(
    run: RunFolder, here: Snapshot, entries: Sequence[LedgerEntry], *, sets: Sequence[EmbeddingSet] = ()
) -> Page | None:
    """The certificate of a state, checked with all that is at hand; None where nothing was unlearned in it.

    One that does not hold, or is not the ledger's, is refused: a report of it would lend it weight.
    """
    made = [one for one in entries if one.action == UNLEARN and one.outputs.get("state") == here.number]
    if not made:
        return None
    path = certificate_path(run, here.number)
    if not path.is_file():
        raise CorruptError(f"{path} is missing from its run. Restore it from a copy.")
    said, signature = read_certificate(path.read_text())
    if said.digest != made[-1].details.get("certificate"):
        raise VerificationError(
            f"{path} is not the certificate that the ledger says was given for state {here.number}: it was changed, or "
            "is another run's. Restore it from a copy."
        )
    checks = verify(said, _evidence(run, here, said, sets))
    failed = [one for one in checks if not one.passed]
    if failed:
        raise VerificationError(
            f"The certificate of state {here.number} does not hold: {failed[0].name} is claimed to be "
            f"{failed[0].claimed}, found {failed[0].found}. `probekit verify {path} --run {run.path}` tells more."
        )
    return Page(here.number, said, signature, checks)


def _evidence(run: RunFolder, here: Snapshot, said: Certificate, sets: Sequence[EmbeddingSet]) -> Evidence:
    before = run.head(here.number - 1) if here.number - 1 in run.states() else None
    wanted = said.agreement.set_digest if said.agreement is not None else None
    rows = None
    if here.held is not None:
        rows = {name: held for name, held in here.held[1].clients.items() if name in said.retained}
    return Evidence(
        head=here.trained.head,
        before=before,
        objective=here.trained.objective,
        objective_before=run.at(here.number - 1).objective() if before is not None else None,
        statistics=here.trained.statistics,
        embeddings=here.held[0] if here.held is not None else None,
        rows=rows,
        evaluation=next((one for one in sets if one.digest == wanted), None),
    )


def told(entry: LedgerEntry) -> dict[str, Json]:
    """An entry of the ledger as a line of a table."""
    return {
        "number": entry.number,
        "time": entry.time,
        "action": entry.action,
        "state": entry.outputs.get("state"),
        "what": _what(entry),
        "digest": entry.digest,
        "previous": entry.previous,
    }


def _what(entry: LedgerEntry) -> str:
    details: Any = entry.details
    inputs: Any = entry.inputs
    if entry.action == "train":
        return f"set {inputs.get('name')}, {inputs.get('count')} rows"
    if entry.action == UNLEARN:
        return f"{asked(details['request'])}, by {details['method']}"
    if entry.action == PURGE:
        return f"{len(details['removed'])} files removed" + (", rows in the cache too" if details["cache"] else "")
    return ""
