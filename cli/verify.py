"""`probekit verify`: is a certificate true?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, remarks, section

if TYPE_CHECKING:
    from probekit.runs.verification import VerifyResult


@o.common
def verify(
    output: Output,
    certificate: Annotated[Path, typer.Argument(help="A certificate.json.")],
    run: Annotated[Path | None, typer.Option(help="The run it is about.")] = None,
    head: Annotated[Path | None, typer.Option(help="The head it is about, where there is no run.")] = None,
    rows: o.Rows = False,
    test: Annotated[str | None, typer.Option(help="The set of the certified agreement.")] = None,
    public_key: Annotated[Path | None, typer.Option(help="Whose signature is wanted (PEM).")] = None,
) -> int:
    """Compute again everything that a certificate says, from what is at hand. Exits 6 on any mismatch."""
    from probekit.errors import InputError, NotFoundError
    from probekit.runs.verification import verify_head

    if (run is None) == (head is None):
        raise InputError("Say what the certificate is about: --run FOLDER, or --head FOLDER for the head alone.")
    if public_key is not None and not public_key.is_file():
        raise NotFoundError(f"There is no key file {public_key}.")
    key = public_key.read_bytes() if public_key is not None else None
    with output.busy("computing again what it says ..."):
        if run is not None:
            result = output.open(run).verify(certificate, rows=rows, test=test, public_key=key)
        elif head is not None:
            result = verify_head(certificate, head, store=output.store, test=test, public_key=key)
    output.result(result, _show)
    return 0 if result.verified else 6


def _show(console: Console, result: VerifyResult) -> None:
    listed = [("ok" if one.passed else "FAILED", one.name, one.claimed, one.found) for one in result.checks]
    section(console, f"certificate {result.digest[:16]}", ("", "check", "claimed", "found"), listed)
    console.print("[bold green]It holds.[/]" if result.verified else "[bold red]It does not hold.[/]")
    remarks(console, (*result.assumptions, *result.caveats))
