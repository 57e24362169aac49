"""`probekit export`: a head for somebody else, with the run's noise, entered in its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, remarks

if TYPE_CHECKING:
    from probekit.runs.exporting import ExportResult


@o.common
def export(
    output: Output,
    run: o.RunFolder,
    folder: Annotated[Path, typer.Argument(help="Where to write the head.")],
    to: Annotated[str, typer.Option(help="Who gets it, for the ledger.")] = "",
    state: o.State = None,
    without_noise: Annotated[
        bool, typer.Option("--without-noise", help="As it is. In a run with noise that voids its guarantee for good.")
    ] = False,
    yes: o.Yes = False,
) -> None:
    """Write the head of a run elsewhere, and enter in its ledger what left it, when and to whom.

    Of a run that was trained with --release it is the head with its noise: drawn once per state, the same bytes when
    asked for again. What all releases cost adds up; above the budget that was fixed at training it refuses.
    """
    if without_noise:
        output.confirm(f"Let a head leave {run} without noise, and void what it guarantees of its releases?", yes)
    output.result(output.open(run).export(folder, state=state, to=to, noise=not without_noise), _show)


def _show(console: Console, result: ExportResult) -> None:
    seen: dict[str, object] = {
        "head": f"{result.folder}, of state {result.state}{f', for {result.to}' * bool(result.to)}",
        "ledger": f"entry {result.entry}",
    }
    if result.epsilon is not None:
        seen["noise"] = f"{result.mechanism} of sigma {result.sigma:g}"
        seen["cost"] = (
            f"rho {result.rho:.3g}; all releases of this run together {result.spent:.3g}, which is epsilon "
            f"{result.epsilon:.3g} at delta {result.delta:g}"
        )
    facts(console, seen)
    remarks(console, result.remarks)
