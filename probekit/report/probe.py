"""A page about a probe: every cell with its interval, curves, reliability, classes, wrong rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probekit.errors import InputError
from probekit.files import write_bytes
from probekit.probing.cells import Cell
from probekit.probing.result import SHOWN_COLUMNS, ProbeResult, as_text, cell_records
from probekit.report.figures import Picture, draw_figure
from probekit.report.page import render_template
from probekit.report.probe_figures import (
    MAX_RELIABILITY,
    cell_name,
    curves_figure,
    few_shot_curves,
    layer_curves,
    reliability_figure,
    results_figure,
)
from probekit.report.tables import Table, format_estimate

MAX_CLASSES = 50
MAX_COMPARED = 6
MAX_WRONG = 10
HIDDEN = ("data", "confidence")


def write_probe_page(result: ProbeResult, path: Path) -> Path:
    write_bytes(path, render_probe(result).encode())
    return path


def render_probe(result: ProbeResult) -> str:
    """The page; the same result gives the same bytes."""
    if not result.cells:
        raise InputError("A report needs a cell; found none. Probe a dataset.")
    names = list(dict.fromkeys(cell.data for cell in result.cells))
    articles = []
    for name in names:
        cells = [cell for cell in result.cells if cell.data == name]
        articles.append(_article(name, cells, result))
    title = names[0] if len(names) == 1 else f"{len(names)} datasets"
    return render_template(
        "probe.html.j2", title=title, articles=articles, legend=result.legend, notes=result.notes
    )


def _article(name: str, cells: list[Cell], result: ProbeResult) -> dict[str, Any]:
    heads = [cell for cell in cells if not cell.control and not cell.error]
    evaluated = [cell for cell in heads if cell.evaluation is not None]
    calibrated = [cell for cell in evaluated if cell.reliability]
    return {
        "name": name,
        "results": results_table(cells),
        "differences": _differences_table(name, result),
        "classes": classes_table(evaluated),
        "wrong": [(cell_name(cell), wrong_table(cell)) for cell in evaluated if cell.most_wrong],
        "reliability": reliability_table(calibrated[:MAX_RELIABILITY]),
        "figures": _draw(evaluated, heads, calibrated),
    }


def _draw(
    evaluated: list[Cell], heads: list[Cell], calibrated: list[Cell]
) -> dict[str, Picture | None]:
    pictures: dict[str, Picture | None] = dict.fromkeys(
        ("results", "shots", "layers", "reliability")
    )
    if evaluated:
        pictures["results"] = draw_figure(lambda: results_figure(evaluated), "Results")
    shots = few_shot_curves(heads)
    if shots:
        pictures["shots"] = draw_figure(
            lambda: curves_figure(shots, "training rows of every class", "accuracy", log=True),
            "Accuracy by training rows",
        )
    layers = layer_curves(evaluated)
    if layers:
        metric = evaluated[0].evaluation.metric if evaluated[0].evaluation else ""
        pictures["layers"] = draw_figure(
            lambda: curves_figure(layers, "layer", metric.replace("_", " "), log=False),
            "Layers",
        )
    if calibrated:
        pictures["reliability"] = draw_figure(
            lambda: reliability_figure(calibrated), "Reliability of probabilities"
        )
    return pictures


def _differences_table(name: str, result: ProbeResult) -> Table:
    headers, *rows = result.differences_table()
    return Table(tuple(headers[1:]), tuple(tuple(row[1:]) for row in rows if row[0] == name))


def results_table(cells: Sequence[Cell]) -> Table:
    """The rows of the result's table, controls too."""
    records = [record for cell in cells for record in cell_records(cell)]
    columns = [
        name
        for name in SHOWN_COLUMNS
        if name not in HIDDEN and any(record.get(name) not in (None, "") for record in records)
    ]
    rows = tuple(tuple(as_text(record.get(name)) for name in columns) for record in records)
    return Table(tuple(name.replace("_", " ") for name in columns), rows)


def classes_table(cells: Sequence[Cell]) -> Table:
    """The accuracy on each class's rows by head, those first that the first head knows least."""
    shown = [cell for cell in cells if cell.evaluation is not None and cell.evaluation.per_class]
    shown = shown[:MAX_COMPARED]
    if not shown:
        return Table((), ())
    per_class = [cell.evaluation.per_class for cell in shown if cell.evaluation is not None]
    names = sorted(per_class[0], key=lambda name: per_class[0][name].value)
    rows = tuple(
        (
            name,
            f"{per_class[0][name].count:,}",
            *(format_estimate(estimates.get(name)) for estimates in per_class),
        )
        for name in names[:MAX_CLASSES]
    )
    hidden = len(names) - len(rows)
    note = f"{hidden:,} more classes are not shown." if hidden else ""
    if len(cells) > len(shown):
        note = f"{note} The first {len(shown)} of {len(cells)} heads are shown.".strip()
    return Table(("class", "rows", *map(cell_name, shown)), rows, note)


def wrong_table(cell: Cell) -> Table:
    """Evaluated rows that a head is most wrong about."""
    rows = tuple(
        (row.key, row.label, row.predicted, f"{row.margin:.3g}")
        for row in cell.most_wrong[:MAX_WRONG]
    )
    return Table(("row", "label", "predicted", "margin"), rows)


def reliability_table(cells: Sequence[Cell]) -> Table:
    rows = tuple(
        (
            cell_name(cell),
            as_text(cell.evaluation.calibration_error if cell.evaluation else None),
            f"{sum(part.rows for part in cell.reliability):,}",
        )
        for cell in cells
    )
    return Table(("", "calibration error", "rows"), rows)
