"""`probekit bundle`: one file that a stranger can check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, remarks, size

if TYPE_CHECKING:
    from probekit.runs.bundling import BundleResult


@o.common
def bundle(
    output: Output,
    run: o.RunFolder,
    state: Annotated[
        list[int] | None, typer.Option(help="Of this state (default: the current one). Repeatable.")
    ] = None,
    bundle: Annotated[Path, typer.Option(help="The file to write; an existing one is replaced.")] = Path("bundle.zip"),
    key: Annotated[Path | None, typer.Option(help="Sign it with this Ed25519 private key (PEM).")] = None,
    reference: Annotated[str | None, typer.Option(help="Your reference of the request; not a name.")] = None,
    with_head: Annotated[bool, typer.Option("--with-head", help="Enclose the head.")] = False,
    with_sums: Annotated[
        str | None,
        typer.Option(metavar="AUDITOR", help="Enclose head and sums, for this auditor. The ledger says so; one state."),
    ] = None,
) -> None:
    """Write what a stranger can check of an unlearned state with this file alone: `probekit verify FILE`.

    It has a page in plain words, names nobody, and takes at most a megabyte, head and sums aside.
    """
    signed = None if key is None else o.private_key(key, run, output.store.root)
    how: Any = {"reference": reference, "key": signed, "head": with_head, "sums_for": with_sums}
    output.result(output.open(run).bundle(bundle, states=state or (), **how), show_bundle)


def show_bundle(console: Console, result: BundleResult) -> None:
    """Where a bundle is, and what it does not show."""
    facts(
        console,
        {
            "bundle": f"{result.path}, {size(result.size)}, of state {', '.join(map(str, result.states))}",
            "receipts": f"of state {result.receipts_from} and later can be checked with it",
            "anchor": result.anchor,
            "signed by": result.signed_by or "nobody",
        },
    )
    remarks(console, (f"not shown: {what}" for what in result.not_shown))
