"""`probekit audit reconstruction`: what the heads before and after a request tell of the deleted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, remarks, section

if TYPE_CHECKING:
    from probekit.runs.reconstruction import ReconstructionResult


@o.common
def reconstruction(
    output: Output,
    run: o.RunFolder,
    public: Annotated[
        str | None, typer.Option(help="A set whose curvature an attacker has (default: the server's rows).")
    ] = None,
    noise: Annotated[
        list[float] | None, typer.Option(help="Normal noise on the heads; repeatable (default: 0, 1e-4, 1e-3).")
    ] = None,
    trials: Annotated[int, typer.Option(min=0, help="Single rows to take out and rebuild, one at a time.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise and the trials.")] = 0,
) -> None:
    """Rebuild deleted rows from the heads before and after: requests of the run, and single rows in trials.

    With the curvature of the retained rows, which few have, and with that of public rows.
    """
    from probekit.runs.reconstruction import NOISES

    scales = tuple(noise or NOISES)
    result = output.open(run).reconstruction(public=public, noise=scales, trials=trials, seed=seed)
    output.result(result, _show)


def _show(console: Console, result: ReconstructionResult) -> None:
    facts(console, {"run": str(result.run), "public": result.public})
    rows = [
        (
            one.state,
            one.removed,
            outcome.curvature,
            f"{outcome.noise:g}",
            f"{outcome.found.cosine:.3f}",
            f"{outcome.found.centred:.3f}",
            f"{outcome.found.found} of {outcome.found.deleted}",
        )
        for one in result.requests
        for outcome in one.outcomes
    ]
    if rows:
        headers = ("state", "removed", "curvature", "noise", "cosine", "centred", "rows found")
        section(console, "requests of this run", headers, rows)
    tried = [
        (
            one.curvature,
            f"{one.noise:g}",
            f"{one.rate.cosine:.3f}",
            f"{one.rate.centred:.3f}",
            f"{one.rate.identified.value:.1%} ({one.rate.identified.low:.1%} to {one.rate.identified.high:.1%})",
        )
        for one in result.trials
    ]
    if tried:
        title = f"{result.trials[0].rate.requests} single rows of the current state, one at a time"
        section(console, title, ("curvature", "noise", "cosine", "centred", "identified"), tried)
    remarks(console, (*result.left_out, *result.meaning))
