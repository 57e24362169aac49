"""A page about a probe: every cell with its interval, curves, reliability, classes, wrong rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter, ScalarFormatter

from probekit.errors import InputError
from probekit.evaluation.intervals import Estimate
from probekit.files import write_bytes
from probekit.probing.cells import Cell
from probekit.probing.result import ProbeResult, as_text, text_table
from probekit.report.figures import BLUE, ORANGE, Picture, draw_figure, shortened
from probekit.report.page import render_template
from probekit.report.tables import Table, format_estimate

MAX_CLASSES = 50
MAX_COMPARED = 6
MAX_WRONG = 10
MAX_RELIABILITY = 6
LONGEST_LABEL = 60
HIDDEN = ("data", "confidence")
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
MARKERS = "osD^vPX"
LAYER = re.compile(r"layer:(-?\d+)")

Points = Sequence[tuple[float, Estimate]]


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
    if shots := few_shot_curves(heads):
        pictures["shots"] = draw_figure(
            lambda: curves_figure(shots, "training rows of every class", "accuracy", log=True),
            "Accuracy by training rows",
        )
    if layers := layer_curves(evaluated):
        pictures["layers"] = draw_figure(
            lambda: curves_figure(layers, "layer", _metric_of(evaluated), log=False), "Layers"
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
    headers, *rows = text_table(cells, HIDDEN)
    return Table(tuple(headers), tuple(map(tuple, rows)))


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


def cell_name(cell: Cell) -> str:
    """Backbone with its view, and head."""
    view = f"#{cell.view}" if cell.view else ""
    return f"{cell.backbone}{view} {cell.head}".strip()


def results_figure(cells: Sequence[Cell]) -> Figure:
    """Every cell's primary metric with its interval, in the order of the table."""
    estimates = [(cell, cell.evaluation.primary) for cell in cells if cell.evaluation is not None]
    figure = Figure(figsize=(7.5, 1.0 + 0.32 * len(estimates)), layout="constrained")
    axes = figure.add_subplot()
    heads = list(dict.fromkeys(cell.head for cell in cells))
    for row, (cell, estimate) in enumerate(estimates):
        number = heads.index(cell.head) % len(COLORS)
        axes.hlines(row, estimate.low, estimate.high, color=COLORS[number], linewidth=2)
        axes.plot(estimate.value, row, MARKERS[number], color=COLORS[number], markersize=7)
        text = estimate.format(estimate.value)
        axes.annotate(text, (estimate.high, row), (6, -3), textcoords="offset points", fontsize=9)
    names = [shortened(cell_name(cell), LONGEST_LABEL) for cell, _ in estimates]
    axes.set_yticks(range(len(estimates)), names)
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.set_xlabel(_metric_of(cells))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: estimates[0][1].format(value)))
    axes.grid(axis="x", linewidth=0.4)
    return figure


def curves_figure(curves: Mapping[str, Points], xlabel: str, ylabel: str, *, log: bool) -> Figure:
    """A line for every name, with its intervals."""
    figure = Figure(figsize=(7.0, 3.4 + 0.2 * len(curves)), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        x = [position for position, _ in points]
        value, low, high = np.array([(e.value, e.low, e.high) for _, e in points]).T
        marker = MARKERS[number % len(MARKERS)]
        label = shortened(name, LONGEST_LABEL)
        axes.plot(x, value, marker=marker, color=color, label=label)
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    if log:
        axes.set_xscale("log")
        positions = sorted({position for points in curves.values() for position, _ in points})
        axes.set_xticks(positions)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(MaxNLocator(1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    estimate = next(iter(curves.values()))[0][1]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: estimate.format(value)))
    axes.grid(linewidth=0.4)
    figure.legend(loc="outside upper left", ncols=1)
    return figure


def few_shot_curves(cells: Sequence[Cell]) -> dict[str, Points]:
    """Accuracy by the number of training rows of a class."""
    curves = {
        cell_name(cell): [
            (float(shot.shots), shot.accuracy)
            for shot in cell.few_shot
            if shot.accuracy is not None
        ]
        for cell in cells
    }
    return {name: points for name, points in curves.items() if len(points) > 1}


def layer_curves(cells: Sequence[Cell]) -> dict[str, Points]:
    """The primary metric by layer, for every backbone, head and kind of token."""
    curves: dict[str, list[tuple[float, Estimate]]] = {}
    for cell in cells:
        match = LAYER.match(cell.view)
        if match is not None and cell.evaluation is not None:
            name = f"{cell.backbone}#layer:*{cell.view[match.end() :]} {cell.head}"
            curves.setdefault(name, []).append((float(match[1]), cell.evaluation.primary))
    return {
        name: sorted(points, key=lambda point: point[0])
        for name, points in curves.items()
        if len(points) > 1
    }


def reliability_figure(cells: Sequence[Cell]) -> Figure:
    """How often rows of some confidence are right: bars, how many rows they are, the diagonal."""
    shown = cells[:MAX_RELIABILITY]
    columns = min(len(shown), 2)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.7 * rows), layout="constrained")
    for number, cell in enumerate(shown):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
        for part in cell.reliability:
            width = part.high - part.low
            middle = (part.low + part.high) / 2
            axes.bar(middle, part.accuracy, 0.9 * width, color=BLUE, alpha=0.8)
            axes.plot(part.confidence, part.accuracy, "_", color=ORANGE, markersize=9)
            axes.annotate(
                f"{part.rows:,}",
                (middle, part.accuracy),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
        axes.set(xlim=(0, 1), ylim=(0, 1.12))
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(shortened(cell_name(cell), LONGEST_LABEL // 2 + 8), fontsize=9)
        axes.set_xlabel("confidence", fontsize=8)
        axes.set_ylabel("right", fontsize=8)
    return figure


def _metric_of(cells: Sequence[Cell]) -> str:
    metrics = [cell.evaluation.metric for cell in cells if cell.evaluation is not None]
    return metrics[0].replace("_", " ") if metrics else ""
