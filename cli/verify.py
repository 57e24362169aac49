"""`probekit verify`: is a certificate true?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, section

if TYPE_CHECKING:
    from probekit.certificates.certificate import Certificate
    from probekit.models.heads import Head
    from probekit.runs.folder import RunFolder


def verify(
    certificate: Annotated[Path, typer.Argument(help="A certificate.json.")],
    run: Annotated[Path | None, typer.Option("--run", help="The run it is about.")] = None,
    head: Annotated[Path | None, typer.Option("--head", help="The head it is about, where there is no run.")] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Compute the statistics again from the retained clients' cached rows.")
    ] = False,
    test: Annotated[str | None, typer.Option(help="The set of the certified agreement.")] = None,
    public_key: Annotated[Path | None, typer.Option(help="Whose signature is wanted (PEM).")] = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    """Compute again everything that a certificate says, from what is at hand. Exits 6 on any mismatch."""
    from probekit.certificates.certificate import read_certificate
    from probekit.certificates.verify import verify as check
    from probekit.errors import InputError, NotFoundError

    out = Output(json, quiet)
    if not certificate.is_file():
        raise NotFoundError(f"There is no certificate {certificate}. `probekit unlearn` writes one.")
    if (run is None) == (head is None):
        raise InputError("Say what the certificate is about: --run FOLDER, or --head FOLDER for the head alone.")
    said, signature = read_certificate(certificate.read_text())
    key = public_key.read_bytes() if public_key is not None and public_key.is_file() else None
    if public_key is not None and key is None:
        raise NotFoundError(f"There is no key file {public_key}.")
    with out.busy("computing again what it says ..."):
        evidence = _evidence(said, run=run, head=head, rows=rows, test=test, cache=cache)
        checks = check(said, _with_signature(evidence, signature, key))
    passed = bool(checks) and all(one.passed for one in checks)
    caveats = [*said.caveats, *_listed(said.privacy, "caveats")]
    value: dict[str, Any] = {
        "certificate": str(certificate),
        "digest": said.digest,
        "verified": passed,
        "signed by": signature["key"] if signature else None,
        "checkable by": said.checkable_by,
        "checks": [asdict(one) for one in checks],
        "assumptions": list(said.assumptions),
        "caveats": caveats,
    }

    def show(console: Any) -> None:
        listed = [("ok" if one.passed else "FAILED", one.name, one.claimed, one.found) for one in checks]
        section(console, f"certificate {said.digest[:16]}", ("", "check", "claimed", "found"), listed)
        console.print("[bold green]It holds.[/]" if passed else "[bold red]It does not hold.[/]")
        for line in (*said.assumptions, *caveats):
            console.print(f"[dim]- {line}[/]", soft_wrap=True)

    out.result(value, show)
    return 0 if passed else 6


def _listed(privacy: Any, name: str) -> list[str]:
    """What a budget lists under a name, if there is a budget."""
    found = (privacy or {}).get(name)
    return [*map(str, found)] if isinstance(found, list | tuple) else []


def _with_signature(evidence: Any, signature: Any, key: bytes | None) -> Any:
    from dataclasses import replace

    return replace(evidence, signature=signature, public_key=key)


def _evidence(
    said: Certificate, *, run: Path | None, head: Path | None, rows: bool, test: str | None, cache: Path | None
) -> Any:
    from probekit.cache import DiskStore
    from probekit.certificates.verify import Evidence
    from probekit.models.serving import load_head
    from probekit.runs.folder import RunFolder

    store = DiskStore(cache)
    evaluation = store.open(test) if test is not None else None
    if run is None:
        assert head is not None
        return Evidence(head=load_head(head), evaluation=evaluation)
    opened = RunFolder.open(run)
    opened.entries()
    number = _state_of(opened, said)
    trained = opened.trained(number)
    from probekit.models.heads import NetworkHead

    rows = rows or isinstance(trained.head, NetworkHead)  # all that is to be checked of a network is in its rows
    embeddings, held = _rows(opened, store, said, number) if rows else (None, None)
    return Evidence(
        head=trained.head,
        before=_head_before(opened, said),
        objective=trained.objective,
        objective_before=opened.at(number - 1).objective() if number - 1 in opened.states() else None,
        statistics=trained.statistics,
        embeddings=embeddings,
        rows=held,
        evaluation=evaluation,
    )


def _state_of(run: RunFolder, said: Certificate) -> int:
    """The state that the ledger says this certificate was given for."""
    from probekit.errors import VerificationError

    for entry in run.entries():
        if entry.details.get("certificate") == said.digest:
            return int(entry.outputs["state"])  # type: ignore[arg-type]
    raise VerificationError(
        f"The ledger of {run.path} knows no certificate {said.digest[:16]}: it was changed, or is another run's."
    )


def _head_before(run: RunFolder, said: Certificate) -> Head | None:
    """The head before, where its state was not purged."""
    for number in run.states():
        head = run.head(number)
        if head.digest == said.before.get("head"):
            return head
    return None


def _rows(run: RunFolder, store: Any, said: Certificate, state: int) -> tuple[Any, Any]:
    from probekit.runs.unlearning import rows_at

    embeddings, partition = rows_at(run, store, state)
    return embeddings, {name: held for name, held in partition.clients.items() if name in said.retained}
