"""`probekit method`: the ways to forget, and what each of them needs."""

from __future__ import annotations

from pathlib import Path

import typer

from probekit.cli.options import CodeFlags, argument, flag
from probekit.cli.output import CacheOutput

app = typer.Typer(help="List the ways to forget, and what each needs.", no_args_is_help=True)

HEADERS = (
    *("method", "ends at", "no communication", "no target", "no retained", "no history"),
    "certified",
)
MARKS = {True: "yes", False: "no", None: "-"}


@app.command()
def ls(
    names: list[str] | None = argument(
        "Methods with their options, py:module:Class too; all without a name.", None
    ),
    run: Path | None = flag("Folder of a run: what it lacks, and what would be asked."),
    client: str | None = flag("The client that would leave (default: the first)."),
    *,
    code: CodeFlags,
    output: CacheOutput,
) -> None:
    """Print the five properties by which the paper compares methods, from what each needs.

    Without a run: of a FedAvg run that kept everything, with rows on the server.
    """
    from dataclasses import asdict

    from probekit.unlearning.choice import plan

    if run is None:
        from probekit.testing import example_removal

        removal = example_removal()
    else:
        from probekit.runs.run import Run
        from probekit.runs.unlearn import removal_of

        opened = Run(run, cache=output.open_cache())
        leaver = client or next(iter(opened.newest.rows.counts()))
        removal = removal_of(opened, [leaver], output.progress)
    plans = plan(removal, names or ())
    headers: tuple[str, ...] = HEADERS
    if run is not None:
        headers += ("rounds at most", "bytes at most", "lacks")
    rows = []
    for item in plans:
        marks = (MARKS[value] for value in asdict(item.properties).values())
        row = [item.name, item.promise, *marks]
        if run is not None:
            costs = [f"{item.rounds:,}", f"{item.bytes:,}"] if item.possible else ["-", "-"]
            row += [*costs, "; ".join(item.missing)]
        rows.append(row)
    output.table(headers, rows)
    output.result({"methods": [asdict(item) for item in plans]})
