"""`probekit petition`: a client asks to leave a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts

if TYPE_CHECKING:
    from probekit.custody.petitions import Petition


@o.common
def petition(
    output: Output,
    receipt: Annotated[Path, typer.Argument(help="The client's receipt, from `probekit prove`.")],
    key: Annotated[Path, typer.Option(help="The client's Ed25519 private key (PEM).")],
    petition: Annotated[Path, typer.Option(help="The file to write; an existing one is replaced.")] = Path(
        "petition.json"
    ),
) -> None:
    """Write a client's signed petition to leave the run that its receipt is of: `probekit erase RUN --petition FILE`.

    The operator needs the public key from the client beforehand (`probekit train --client-keys FOLDER`).
    """
    from probekit.runs.asking import petition as ask

    found = ask(receipt, petition, key=o.private_key(key))
    output.result({"path": str(petition), "by": found.by, **found.said}, lambda console, _: _show(console, found))


def _show(console: Console, found: Petition) -> None:
    facts(console, {"by key": found.by, "run": found.said["run"], "slot": found.said["slot"]})
