"""`probekit purge`: remove what still knows the forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, size


def purge(
    run: Annotated[Path, typer.Argument(help="A run folder in which something was unlearned.")],
    rows: Annotated[
        bool, typer.Option("--rows", help="Also erase the forgotten rows from the cache, in every set and backbone.")
    ] = False,
    yes: o.Yes = False,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    """Remove earlier heads, statistics, gradients and history of a run; with --rows, the rows in the cache too.

    Exits 6 if bytes of an erased row are still found in the cache.
    """
    from probekit.cache import DiskStore
    from probekit.runs.folder import RunFolder
    from probekit.runs.purging import purge_run

    if not yes and not json:
        typer.confirm(f"Remove everything in {run} that knew the forgotten, for good?", abort=True, err=True)
    found = purge_run(RunFolder.open(run), DiskStore(cache) if rows else None)
    value: dict[str, Any] = {"run": str(run), **found}

    def show(console: Any) -> None:
        facts(console, {"run": run, "removed": f"{len(found['removed'])} files of earlier states"})
        if found["cache"] is not None:
            searched = size(found["cache"]["searched"])
            facts(console, {"cache": f"{found['cache']['rows']} rows erased, {searched} searched for what is left"})
        for what in found["unreached"]:
            console.print(f"[dim]- not reached: {what}[/]", soft_wrap=True)

    Output(json, quiet).result(value, show)
    return 6 if found["cache"] is not None and found["cache"]["remains"] else 0
