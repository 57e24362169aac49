"""`probekit purge`: remove what was derived from the forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
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
    yes: o.Yes = False,
) -> int:
    """Remove earlier heads, statistics, gradients and history of a run; with --rows, the rows in the cache too.

    Exits 6 if bytes of an erased row are still found in the cache.
    """
    output.confirm(f"Remove everything in {run} that was derived from the forgotten, for good?", yes)
    result = output.open(run).purge(rows=rows)
    output.result(result, _show)
    return 6 if result.cache is not None and result.cache.remains else 0


def _show(console: Console, result: PurgeResult) -> None:
    facts(console, {"run": result.run, "removed": f"{len(result.removed)} files of earlier states"})
    if (cache := result.cache) is not None:
        facts(console, {"cache": f"{cache.rows} rows erased, {size(cache.searched)} searched for what is left"})
    remarks(console, (f"not reached: {what}" for what in result.unreached))
