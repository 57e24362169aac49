"""The figures of a report as SVG: the same bytes for the same values.

Colors are those of Okabe and Ito, which color-blind people can tell apart. Nothing global is
changed: no pyplot, and settings hold while a figure is drawn.
"""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from probekit.evaluation.unlearning import (
    AFTER,
    BEFORE,
    HEADS,
    MINIMUM,
    RETRAINED,
    UnlearningEvaluation,
)
from probekit.report.tables import MAX_CLIENTS, ReportData, format_bound, format_number

ORANGE = "#e69f00"
BLUE = "#0072b2"
COLORS = {BEFORE: ORANGE, AFTER: BLUE, RETRAINED: "#009e73", MINIMUM: "#cc79a7"}
HATCHES = {BEFORE: "//", AFTER: "", RETRAINED: "..", MINIMUM: "\\\\"}
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "probekit",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "hatch.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
BARS = {
    "test": "accuracy,\ntest",
    "retained": "accuracy,\nretained",
    "forgotten": "accuracy,\nforgotten",
    "backdoor": "backdoor\nsuccess",
}

Distance = tuple[str, float]
"""What it is, and its value."""


@dataclass(frozen=True)
class Picture:
    """An SVG as the source of an `img`; width: in pixels, 96 an inch."""

    title: str
    source: str
    width: int


def draw(data: ReportData) -> dict[str, Picture | None]:
    """Every figure; None where there are no values for it."""
    evaluation = data.evaluation
    distances = _distances(data)
    measures = {measure for head in evaluation.heads.values() for measure in head}
    pictures: dict[str, Picture | None] = {"heads": None, "bounds": None, "clients": None}
    if measures & BARS.keys():
        title = "Accuracies and backdoor success by head"
        pictures["heads"] = draw_figure(lambda: heads_figure(evaluation), title)
    if distances:
        title = "Bounds and the measured distance"
        pictures["bounds"] = draw_figure(lambda: bounds_figure(distances), title)
    if evaluation.clients and {BEFORE, AFTER} <= evaluation.heads.keys():
        title = "Accuracy by client before and after"
        pictures["clients"] = draw_figure(lambda: clients_figure(evaluation), title)
    return pictures


def draw_figure(make: Callable[[], Figure], title: str) -> Picture:
    """A figure that is made and saved with our settings."""
    content = BytesIO()
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's font has it
        figure = make()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    source = f"data:image/svg+xml;base64,{b64encode(content.getvalue()).decode()}"
    return Picture(title, source, round(figure.get_figwidth() * 96))


def heads_figure(evaluation: UnlearningEvaluation) -> Figure:
    """Bars of the measures, a group for each; the lines are confidence intervals."""
    heads = {name: evaluation.heads[name] for name in HEADS if name in evaluation.heads}
    bars = [measure for measure in BARS if any(measure in head for head in heads.values())]
    figure = Figure(figsize=(max(5.5, 1.2 + 1.7 * len(bars)), 3.4), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(heads)
    for number, (name, measures) in enumerate(heads.items()):
        groups = [group for group, measure in enumerate(bars) if measure in measures]
        estimates = [measures[bars[group]] for group in groups]
        values = np.array([(item.value, item.low, item.high) for item in estimates]).reshape(-1, 3)
        heights, lows, highs = values.T
        axes.bar(
            np.array(groups) + (number - (len(heads) - 1) / 2) * width,
            heights,
            0.92 * width,
            yerr=np.maximum([heights - lows, highs - heights], 0),
            label=name,
            color=COLORS[name],
            hatch=HATCHES[name],
            edgecolor="white",
            capsize=2,
        )
    axes.set_xticks(range(len(bars)), [BARS[measure] for measure in bars])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", linewidth=0.4)
    figure.legend(loc="outside upper left", ncols=len(heads))
    return figure


def _distances(data: ReportData) -> list[Distance]:
    distances = [
        ("before unlearning, measured", data.evaluation.distances.get(MINIMUM, {}).get(BEFORE)),
        ("after unlearning, measured", data.truth),
        ("certified: at most", (data.certificate or {}).get("distance")),
        ("a priori: at most", data.a_priori),
    ]
    return [(label, value) for label, value in distances if value is not None]


def bounds_figure(distances: list[Distance]) -> Figure:
    """Distances on a log scale; what is zero stands at the left edge."""
    figure = Figure(figsize=(6.5, 0.9 + 0.42 * len(distances)), layout="constrained")
    axes = figure.add_subplot()
    positive = [value for _, value in distances if 0 < value < np.inf] or [1e-3]
    low = min(positive) / 10
    high = max(positive) * 30
    labels = [label for label, _ in reversed(distances)]
    for row, (label, value) in enumerate(reversed(distances)):
        position = float(np.clip(value, low, high))
        color = BLUE
        marker = "o"
        text = format_number(value)
        if "at most" in label:
            color = ORANGE
            marker = "|"
            text = format_bound(value)
        axes.hlines(row, low, position, color=color, linewidth=1.5, zorder=1)
        axes.plot(position, row, marker, color=color, markersize=10, markeredgewidth=3)
        axes.annotate(text, (position, row), (8, 5), textcoords="offset points", fontsize=9)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xscale="log", xlim=(low, high), ylim=(-0.6, len(labels) - 0.4))
    axes.set_xlabel("distance to the minimum over the retained rows")
    axes.grid(axis="x", linewidth=0.4)
    return figure


def clients_figure(evaluation: UnlearningEvaluation) -> Figure:
    """A line for each client from its accuracy before to after; the forgotten are at the top."""
    changes = sorted(evaluation.clients, key=lambda change: not change.is_forgotten)
    changes = changes[:MAX_CLIENTS][::-1]
    rows = range(len(changes))
    figure = Figure(figsize=(6.5, 1.1 + 0.3 * len(changes)), layout="constrained")
    axes = figure.add_subplot()
    before = [change.accuracy[BEFORE] for change in changes]
    after = [change.accuracy[AFTER] for change in changes]
    axes.hlines(rows, before, after, color="black", linewidth=0.8, zorder=1)
    axes.plot(before, rows, "D", color=COLORS[BEFORE], label=BEFORE)
    axes.plot(after, rows, "o", color=COLORS[AFTER], label=AFTER)
    forgotten = [" (forgotten)" if change.is_forgotten else "" for change in changes]
    names = [shortened(change.client) for change in changes]
    axes.set_yticks(rows, list(map(str.__add__, names, forgotten)))
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(changes) - 0.4))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("accuracy on the client's own rows")
    axes.grid(axis="x", linewidth=0.4)
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def shortened(name: str, longest: int = 18) -> str:
    """A name on one line, and no formula: matplotlib reads what is between dollar signs."""
    text = " ".join(name.split())
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return text.replace("$", r"\$")
