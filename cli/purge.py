"""`probekit purge`: remove what was derived from the forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.consent import agreed
from probekit.cli.output import Console, Output, facts, remarks, size

if TYPE_CHECKING:
    from probekit.runs.purging import PurgeResult


@o.common
def purge(
    output: Output,
    run: Annotated[Path, typer.Argument(help="A run folder in which something was unlearned.")],
    rows: Annotated[
        bool, typer.Option("--rows", help="Also erase the forgotten rows, everywhere in the cache.")
    ] = False,
    also_runs: Annotated[
        bool, typer.Option("--also-runs", help="Purge with it other runs on these rows that forgot them too.")
    ] = False,
    yes: o.Yes = False,
) -> int:
    """Remove earlier heads, statistics, gradients and history of a run; with --rows, the rows in the cache too.

    Certificates stay. Interrupted, every other command on the run and the cache refuses until the same is given again.
    Exits 6 if anything that was to go is still found; then it is not finished.
    """
    opened = output.open(run, finishing=True)
    output.confirm(f"Remove everything in {run} that was derived from the forgotten, for good?", yes)
    result = agreed(output, lambda sure: opened.purge(rows=rows, also_runs=also_runs, yes=sure), yes)
    output.result(result, _show)
    return 0 if result.complete else 6


def _show(console: Console, result: PurgeResult) -> None:
    facts(console, {"run": result.run, "removed": f"{len(result.removed)} files of earlier states"})
    if (cache := result.cache) is not None:
        facts(console, {"cache": f"{cache.rows} rows erased, {size(cache.searched)} searched for what is left"})
    facts(console, {what: ", ".join(runs) for what, runs in _runs(result).items() if runs})
    if not result.complete:
        left = (*result.remains, *(cache.remains if cache is not None else ()))
        facts(
            console, {"not finished": f"still there: {', '.join(left)}. Remove them, then give the same command again"}
        )
    remarks(console, (f"not reached: {what}" for what in result.unreached))


def _runs(result: PurgeResult) -> dict[str, tuple[str, ...]]:
    return {"also purged": result.also_purged, "runs that lost rows": result.other_runs}
