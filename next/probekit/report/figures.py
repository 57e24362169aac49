"""The figures of a report as SVG: the same bytes for the same values.

Colors are those of Okabe and Ito, which color-blind people can tell apart; on a page they are CSS
variables, so that they follow a dark theme. Nothing global is changed: no pyplot, and settings hold
while a figure is drawn.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from io import StringIO
from typing import Any
from xml.etree import ElementTree

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
GREEN = "#009e73"
PURPLE = "#cc79a7"
BLACK = "#000000"
COLORS = {BEFORE: ORANGE, AFTER: BLUE, RETRAINED: GREEN, MINIMUM: PURPLE}
HATCHES = {BEFORE: "//", AFTER: "", RETRAINED: "..", MINIMUM: "\\\\"}
VARIABLES = {
    ORANGE: "var(--orange)",
    BLUE: "var(--blue)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
    BLACK: "currentColor",
    "#ffffff": "var(--paper)",
}
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
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
BARS = {
    "test": "accuracy,\ntest",
    "retained": "accuracy,\nretained",
    "forgotten": "accuracy,\nforgotten",
    "backdoor": "backdoor\nsuccess",
}
LONGEST_NAME = 18
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


def draw(data: ReportData, prefix: str) -> dict[str, str]:
    """Every figure that there are values for, as an SVG element with ids of its own."""
    figures = {}
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's font has it
        for name, title, figure in _figures(data):
            text = StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            figures[name] = embed(text.getvalue(), name=f"{prefix}-{name}", title=title)
    return figures


def _figures(data: ReportData) -> Iterator[tuple[str, str, Figure]]:
    if any(
        measure in BARS for head in data.evaluation.heads.values() for measure in head.estimates
    ):
        yield "heads", "Accuracies and backdoor success by head", heads_figure(data.evaluation)
    distances = _distances(data)
    if distances:
        yield "bounds", "Bounds and the measured distance", bounds_figure(distances)
    if data.evaluation.clients and len(data.evaluation.heads) > 1:
        yield "clients", "Accuracy by client before and after", clients_figure(data.evaluation)


def heads_figure(evaluation: UnlearningEvaluation) -> Figure:
    """Bars of the measures, a group for each; the lines are confidence intervals."""
    names = [name for name in HEADS if name in evaluation.heads]
    estimates = {name: evaluation.heads[name].estimates for name in names}
    measures = [measure for measure in BARS if any(measure in head for head in estimates.values())]
    figure = Figure(figsize=(max(5.5, 1.2 + 1.7 * len(measures)), 3.4), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        measured = estimates[name]
        positions = [position for position, measure in enumerate(measures) if measure in measured]
        drawn = [measured[measures[position]] for position in positions]
        x = np.array(positions) + (number - (len(names) - 1) / 2) * width
        heights = np.array([estimate.value for estimate in drawn])
        look: Any = {"color": COLORS[name], "hatch": HATCHES[name], "edgecolor": "white"}
        axes.bar(x, heights, 0.92 * width, label=name, **look)
        lows = [value.value if value.low is None else value.low for value in drawn]
        highs = [value.value if value.high is None else value.high for value in drawn]
        reach = np.maximum([heights - lows, np.array(highs) - heights], 0)
        axes.errorbar(x, heights, yerr=reach, fmt="none", ecolor=BLACK, capsize=2, linewidth=1)
    axes.set_xticks(range(len(measures)), [BARS[measure] for measure in measures])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", linewidth=0.4)
    figure.legend(loc="outside upper left", ncols=len(names))
    return figure


def _distances(data: ReportData) -> list[tuple[str, float, str]]:
    """Label, value and printed value of what is known of the distance to the minimum."""
    certified = (data.certificate or {}).get("distance")
    lines = [
        ("before unlearning, measured", data.evaluation.distances.get(MINIMUM, {}).get(BEFORE)),
        ("after unlearning, measured", data.truth),
        ("certified: at most", certified),
        ("a priori: at most", data.a_priori),
    ]
    return [
        (label, value, format_number(value) if "measured" in label else format_bound(value))
        for label, value in lines
        if value is not None
    ]


def bounds_figure(distances: list[tuple[str, float, str]]) -> Figure:
    """Distances on a log scale; what is zero stands at the left edge."""
    figure = Figure(figsize=(6.5, 0.9 + 0.42 * len(distances)), layout="constrained")
    axes = figure.add_subplot()
    positive = [value for _, value, _ in distances if 0 < value < np.inf]
    low, high = (min(positive) / 10, max(positive) * 30) if positive else (1e-16, 1.0)
    for row, (label, value, printed) in enumerate(reversed(distances)):
        position = float(np.clip(value, low, high))
        is_bound = "measured" not in label
        axes.plot(
            [low, position], [row, row], color=ORANGE if is_bound else BLUE, linewidth=1.5, zorder=1
        )
        marker: Any = {"marker": "|", "markersize": 14} if is_bound else {"marker": "o"}
        axes.plot(position, row, color=ORANGE if is_bound else BLUE, markeredgewidth=3, **marker)
        axes.annotate(printed, (position, row), (8, 5), textcoords="offset points", fontsize=9)
    axes.set_yticks(range(len(distances)), [label for label, _, _ in reversed(distances)])
    axes.set(xscale="log", xlim=(low, high), ylim=(-0.6, len(distances) - 0.4))
    axes.set_xlabel("distance to the minimum over the retained rows")
    axes.grid(axis="x", linewidth=0.4)
    return figure


def clients_figure(evaluation: UnlearningEvaluation) -> Figure:
    """A line for each client from its accuracy before to after; the forgotten are at the top."""
    names = [name for name in (BEFORE, AFTER) if name in evaluation.heads]
    changes = sorted(evaluation.clients, key=lambda change: not change.is_forgotten)
    changes = changes[:MAX_CLIENTS][::-1]
    figure = Figure(figsize=(6.5, 1.1 + 0.3 * len(changes)), layout="constrained")
    axes = figure.add_subplot()
    for row, change in enumerate(changes):
        values = [change.accuracy[name] for name in names]
        axes.plot(values, [row] * len(values), color=BLACK, linewidth=0.8, zorder=1)
    for name in names:
        values = [change.accuracy[name] for change in changes]
        style = "D" if name == BEFORE else "o"
        axes.plot(values, range(len(changes)), style, color=COLORS[name], label=name)
    labels = [
        f"{_shortened(change.client)} (forgotten)"
        if change.is_forgotten
        else _shortened(change.client)
        for change in changes
    ]
    axes.set_yticks(range(len(changes)), labels)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(changes) - 0.4))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("accuracy on the client's own rows")
    axes.grid(axis="x", linewidth=0.4)
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def _shortened(name: str) -> str:
    """A name on one line, and no formula: matplotlib reads what is between dollar signs."""
    text = " ".join(name.split())
    text = text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
    return text.replace("$", r"\$")


def embed(svg: str, *, name: str, title: str) -> str:
    """An SVG as an element of a page: ids of its own, a title, and the page's colors."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for element in root.iter():
        for attribute, value in list(element.attrib.items()):
            if attribute == "id":
                element.set("id", f"{name}-{value}")
            elif attribute == LINK:
                del element.attrib[LINK]
                element.set("href", value.replace("#", f"#{name}-", 1))
            else:
                value = value.replace("url(#", f"url(#{name}-")
                element.set(attribute, re.sub("#[0-9a-f]{6}", _variable, value))
    width = float(root.attrib["viewBox"].split()[2]) * 4 / 3  # points in pixels
    for attribute in ("width", "height", "version"):
        del root.attrib[attribute]
    root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title"}
    root.set("style", f"max-width: {width:.0f}px")
    element = ElementTree.Element("title", id=f"{name}-title")
    element.text = title
    root.insert(0, element)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _variable(color: re.Match[str]) -> str:
    return VARIABLES.get(color[0], color[0])
