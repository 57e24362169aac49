"""`probekit probe`: backbones x data sets in one table, from names to numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.allocator import keep_freed_memory
from probekit.cli.output import Console, Output, facts, given, remarks, section

if TYPE_CHECKING:
    from probekit.encoding.extract import ExtractProgress
    from probekit.evaluation.probe_table import Cell, ProbeTable

DEFAULT_BACKBONE = "packaged:efficientnet-lite0"
FAILED = 5


@o.common
def probe(
    output: Output,
    data_sets: Annotated[list[str], typer.Argument(help="hf:NAME, folder:PATH, packaged:digits, ... or cached sets.")],
    backbone: Annotated[
        list[str] | None,
        typer.Option(
            "--backbone", "-b", help="As in `extract`, several times; views side by side: NAME#pre, NAME#proj."
        ),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Judge on this instead of the data set's own test split.")] = None,
    group: o.Group = None,
    window: o.Window = None,
    shots: Annotated[str, typer.Option(help="Also few-shot curves: 1,2,4,8,16 training rows of every class.")] = "",
    draws: Annotated[int, typer.Option(min=1, help="How often the few are drawn.")] = 5,
    knn: Annotated[int | None, typer.Option(min=1, help="Also a vote of so many nearest training rows.")] = None,
    controls: Annotated[
        bool, typer.Option(help="Also shuffled labels and random vectors: neither may beat chance.")
    ] = True,
    ridge: Annotated[str, typer.Option(help="auto (exact leave-one-out among 45), or a number.")] = "auto",
    normalise: Annotated[str, o.among("raw", "l2", help="raw: rows as they are; l2: each of norm 1.")] = "raw",
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of whatever is drawn.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="Write every cell and curve to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the table, or the curves, to this SVG file.")] = None,
) -> int:
    """Probe data sets with frozen backbones: accuracy with an interval, on rows that the head does not know.

    What is in the cache is not encoded again; interrupt it whenever you like, the same command continues.
    """
    keep_freed_memory()
    numbers = o.whole_numbers(shots, "--shots")
    with output.busy("loading ..."):
        from probekit.evaluation.probe_table import probe_table
    with output.stages() as stages:

        def progress(what: str) -> Callable[[ExtractProgress], None]:
            bar = stages(what)
            return lambda now: bar(now.rows, now.total, f"{now.reused} reused")

        how: dict[str, Any] = {"normalise": normalise, "confidence": confidence, "seed": seed, "ridge": _ridge(ridge)}
        more: dict[str, Any] = {"shots": numbers, "draws": draws, "knn": knn, "controls": controls}
        more |= {"test": test, "group": group, "window": o.window(window), "note": o.noted(output, "window")}
        found = probe_table(
            data_sets, backbone or [DEFAULT_BACKBONE], store=output.store, progress=progress, **more, **how
        )
    written = _write(found, csv, markdown, picture)
    output.result(found, partial(_show, following=_following(found, output)))
    for path in written:
        output.note(f"wrote {path}")
    return FAILED if found.failed else 0


def _ridge(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise typer.BadParameter(f"--ridge wants auto or a number; found {text!r}.") from None


def _write(found: ProbeTable, csv: Path | None, markdown: Path | None, picture: Path | None) -> list[Path]:
    written = []
    if csv is not None:
        written.append(found.to_csv(csv))
    if markdown is not None:
        written.append(found.to_markdown(markdown))
    if picture is not None:
        from probekit.report.probe_pictures import draw_table

        written.append(draw_table(found, picture))
    return written


def _following(found: ProbeTable, output: Output) -> str:
    """The command that goes on with the best cell: a set that the cache has by a name can be trained across clients."""
    names = {digest: name for name, digest in output.store.sets.names().items()}
    done = [cell.probe for cell in found.cells if cell.probe is not None and not cell.control]
    known = [one for one in done if one.train.digest in names]
    best = max(known, key=lambda one: one.main.value or 0.0, default=None)
    return "" if best is None else f"probekit train {names[best.train.digest]} --clients 10"


def _show(console: Console, found: ProbeTable, *, following: str) -> None:
    if len(found.cells) == 1 and (only := found.cells[0].probe) is not None:
        facts(console, dict(only.facts))
    else:
        rows = [(name, *(_text(found.cell(name, one)) for one in found.data_sets)) for name in found.backbones]
        section(console, f"{found.measured}, {found.confidence:.0%} interval", ("backbone", *found.data_sets), rows)
    for cell in found.cells:
        _show_more(console, cell)
    remarks(console, found.remarks)
    if following:
        facts(console, {"next": following})


def _text(cell: Cell | None) -> str:
    return "" if cell is None else cell.text + ("  SUSPICIOUS" if cell.suspicious else "")


def _show_more(console: Console, cell: Cell) -> None:
    if cell.knn is not None:
        facts(console, {f"k-NN of {cell.backbone} on {cell.data_set}": given(cell.knn.value, ".1%")})
    if cell.few_shot:
        rows = [
            (
                one.shots,
                f"{one.mean:.1%}",
                given(one.deviation, ".1%"),
                "" if one.test is None else f"{given(one.test.low, '.1%')} to {given(one.test.high, '.1%')}",
            )
            for one in cell.few_shot
        ]
        headers = ("rows per class", "accuracy", "deviation of draws", "interval of test rows")
        section(console, f"few-shot: {cell.backbone} on {cell.data_set}", headers, rows)
