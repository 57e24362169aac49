"""`probekit prove`: a client's receipt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, remarks

if TYPE_CHECKING:
    from probekit.runs.bundle_check import AnswerResult
    from probekit.runs.proving import ProveResult, ReceiptResult


@o.common
def prove(
    output: Output,
    run: o.RunFolder,
    client: Annotated[str, typer.Option(help="The client that the receipt is for.")],
    receipt: Annotated[Path, typer.Option(help="The file to write; an existing one is replaced.")] = Path(
        "receipt.json"
    ),
    key: Annotated[Path | None, typer.Option(help="Sign it with this Ed25519 private key (PEM).")] = None,
) -> None:
    """Write a receipt for a client: its leaf, the leaf's salt and the way to the root that the run commits to.

    The client keeps it, and nobody else should. After the client was forgotten,
    `probekit verify --receipt FILE --run RUN` shows that its leaf was emptied.
    """
    signed = None if key is None else o.private_key(key, run, output.store.root)
    output.result(output.open(run).prove(client, receipt, key=signed), _show)


def _show(console: Console, result: ProveResult) -> None:
    said = result.receipt
    facts(
        console,
        {
            "receipt": result.path,
            "slot": f"{said.leaf.slot} of {said.root.slots}, {said.leaf.rows} rows, in state {said.root.state}",
            "root": said.root.digest,
            "anchor": f"{said.anchor}",
            "signed by": said.signature["key"] if said.signature else "nobody",
        },
    )
    remarks(console, (f"not shown: {what}" for what in result.not_shown))


def show_receipt(console: Console, result: ReceiptResult) -> None:
    """What became of a receipt's leaf."""
    if result.emptied is not None:
        text = f"Emptied in state {result.emptied}, at {result.when} by the operator's clock"
    elif result.missing is not None:
        text = f"Not shown: the transition to state {result.missing} is missing from the run"
    else:
        text = "Still there: nothing emptied this leaf"
    facts(
        console,
        {
            "receipt": result.receipt,
            "leaf": f"slot {result.slot}, in state {result.state}",
            "now": text,
            "signed by": result.signed_by or "nobody",
            "anchor": f"{result.anchor}: the ledger's last entry, to be noted for later",
        },
    )
    remarks(console, (f"not shown: {what}" for what in result.not_shown))


def show_answer(console: Console, result: AnswerResult) -> None:
    """What an answer opens of a bundle."""
    facts(
        console,
        {
            "answer": f"{result.answer}, reference {result.reference}",
            "asked for": f"{len(result.opened)} in state {', '.join(map(str, result.states))}, as certified",
            "signed by": result.signed_by or "nobody",
            "anchor": f"{result.anchor}: the ledger's last entry, to be noted for later",
        },
    )
    remarks(console, (*(f"opened: {what}" for what in result.opened), *(f"not shown: {x}" for x in result.not_shown)))
