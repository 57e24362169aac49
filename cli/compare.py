"""`probekit compare`: runs side by side in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, remarks, section

if TYPE_CHECKING:
    from probekit.report.run_table import RunTable

FEWEST = 2


@o.common
def compare(
    output: Output,
    runs: Annotated[list[Path], typer.Argument(help="The folders of two runs or more.")],
    test: Annotated[
        list[str] | None, typer.Option(help="Judge all on this set (default: each on its server's rows). Repeatable.")
    ] = None,
    triggered: o.Triggered = None,
    target: Annotated[int | None, typer.Option(min=0, help="The trigger's class (default: the run's own).")] = None,
    rows: o.Rows = False,
    csv: Annotated[Path | None, typer.Option(help="Write every number to this file, a line per run and set.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the table and a report of every run to this page (.html).")
    ] = None,
) -> None:
    """Compare runs: accuracy, what was forgotten and how, distance to retraining with its bound, what is proven.

    Ledgers and certificates are checked first; exits 6 if they do not hold.
    """
    if len(runs) < FEWEST:
        raise typer.BadParameter(f"Comparing takes {FEWEST} runs or more; found {len(runs)}. Name another.")
    if out is not None and out.suffix != ".html":
        raise typer.BadParameter(f"--out is a page and must end in .html; found {out}.")
    opened = [output.open(run) for run in runs]
    with output.busy("checking and judging ..."):
        from probekit.report.run_table import run_table

        reports = [one.report(test or (), triggered=triggered, target=target, from_rows=rows) for one in opened]
        found = run_table([one.plain for one in reports])
        written = [found.to_csv(csv)] if csv else []
        written += [found.to_markdown(markdown)] if markdown else []
        if out is not None:
            from probekit.report.page import write_page

            write_page([one.drawn() for one in reports], out)
            written.append(out)
    output.result(found, _show)
    for path in written:
        output.note(f"wrote {path}")


def _show(console: Console, found: RunTable) -> None:
    names = list(dict.fromkeys(line.judged_on for line in found.lines if line.judged_on))
    section(console, f"runs, judged on {', '.join(names) or 'no rows'}", found.headers, found.rows)
    remarks(console, found.remarks)
