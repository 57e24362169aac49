"""Pictures of a table of probes: curves where there are few-shot draws, else accuracies with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from probekit.evaluation.probe_table import Cell, ProbeTable
from probekit.pages.pictures import BLUE, GREEN, GREY, ORANGE, SETTINGS

COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
MARKERS = "osD^vPX"


def draw_table(table: ProbeTable, path: str | Path, *, names: Mapping[str, str] | None = None) -> Path:
    """Draw the table to an SVG file; the same bytes for the same values. names: titles in place of the data sets'."""
    with rc_context(SETTINGS):
        figure = _curves(table) if any(cell.few_shot for cell in table.cells) else _dots(table)
        for axes, data_set in zip(figure.axes, table.data_sets, strict=True):
            axes.set_title((names or {}).get(data_set, data_set))
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return Path(path)


def _dots(table: ProbeTable) -> Figure:
    names, sets = table.backbones, table.data_sets
    figure = Figure(figsize=(1.6 + 3.2 * len(sets), 1.4 + 0.38 * len(names)), layout="constrained")
    for number, (axes, data_set) in enumerate(zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True)):
        for place, name in enumerate(reversed(names)):
            cell = table.cell(name, data_set)
            if cell is None or cell.probe is None:
                axes.text(0.02, place, "failed" if cell is not None else "", va="center", color=GREY)
                continue
            found, colour = cell.probe.main, GREY if cell.control else BLUE
            if found.value is not None and found.low is not None and found.high is not None:
                reach = [[max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]]
                axes.errorbar(found.value, place, xerr=reach, fmt="o", color=colour, capsize=3)
        _chance(axes, table, data_set, vertical=True)
        axes.set_yticks(range(len(names)), list(reversed(names)) if number == 0 else [""] * len(names))
        axes.set(xlim=(0, 1), ylim=(-0.6, len(names) - 0.4), xlabel=table.measured)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="x", linewidth=0.4)
    return figure


def _curves(table: ProbeTable) -> Figure:
    sets = table.data_sets
    shots = sorted({one.shots for cell in table.cells for one in cell.few_shot})
    figure = Figure(figsize=(1.0 + 4.0 * len(sets), 4.4), layout="constrained")
    for axes, data_set in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        drawn = [cell for cell in table.cells if cell.data_set == data_set and cell.few_shot]
        for number, cell in enumerate(drawn):
            _curve(axes, cell, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], whole=4 * shots[-1])
        controls = [cell for cell in table.cells if cell.data_set == data_set and cell.control]
        for cell, marker in zip(controls, "x+", strict=False):
            _whole(axes, cell, 4 * shots[-1], GREY, marker, label=cell.backbone)
        _chance(axes, table, data_set, vertical=False)
        axes.set_xscale("log", base=2)
        axes.set_xticks([*shots, 4 * shots[-1]], [*map(str, shots), "all"])
        axes.minorticks_off()
        axes.set(ylim=(0, 1), xlabel="rows per class", ylabel="accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", linewidth=0.4)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(2, len(sets)))
    return figure


def _curve(axes: Axes, cell: Cell, colour: str, marker: str, *, whole: float) -> None:
    """The draws' mean and deviation and, apart from them, all rows with the interval of the test rows."""
    places, means = [one.shots for one in cell.few_shot], [one.mean for one in cell.few_shot]
    spread = [one.deviation or 0.0 for one in cell.few_shot]
    axes.errorbar(
        places, means, yerr=spread, fmt=f"{marker}-", color=colour, capsize=3, label=f"{cell.backbone} (± draws)"
    )
    _whole(axes, cell, whole, colour, marker)


def _whole(axes: Axes, cell: Cell, place: float, colour: str, marker: str, *, label: str | None = None) -> None:
    found = None if cell.probe is None else cell.probe.accuracy
    if found is not None and found.value is not None and found.low is not None and found.high is not None:
        reach = [[max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]]
        axes.errorbar(place, found.value, yerr=reach, fmt=marker, color=colour, capsize=3, label=label)


def _chance(axes: Axes, table: ProbeTable, data_set: str, *, vertical: bool) -> None:
    known = [cell.probe.chance for cell in table.cells if cell.data_set == data_set and cell.probe is not None]
    for chance in known[:1]:
        line = axes.axvline if vertical else axes.axhline
        line(chance, color=GREY, linestyle="--", linewidth=1, label="chance")
