"""Pictures of an outcome: bars with the gap to retraining, curves over what was swept, distance against bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.bench.results import BenchResult, TableRow
from probekit.pages.pictures import BLUE, GREEN, GREY, ORANGE, SETTINGS

BARS = (("accuracy", BLUE), ("backdoor", ORANGE))
REFERENCES = ("retrain-fedavg", "retrain")
BASE = "nothing"
STYLES = ("o-", "s-", "^-", "D-", "v-", "P-", "X-", "*-", "<-", ">-")
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", GREY)
MEASURES = {
    "accuracy": "accuracy",
    "backdoor": "backdoor, others",
    "distance": "distance to the minimum",
    "curvature_error": "curvature's error",
}
FAR = {"distance": "distance to the minimum", "distance_fedavg": "distance to FedAvg's retraining"}
MOST_CURVES = 16
NEAR_X, NEAR_Y = 0.06, 0.04
"""Shares of the axes within which labels would overlap."""


def figures(result: BenchResult) -> Iterator[tuple[str, str, Figure]]:
    """Every picture that the outcome has numbers for: its file's name, what it shows in words, the figure."""
    if result.plain["experiment"]["sweep"]:
        for measure, title in MEASURES.items():
            figure = curves(result, measure, title)
            if figure is not None:
                yield f"curves-{measure}", f"{title} against {result.plain['experiment']['sweep']}", figure
    for number, setting in enumerate(result.settings):
        rows = [row for row in result.of(setting) if row.means]
        if result.plain["experiment"]["sweep"] or not rows:
            continue
        name = "".join(sign if sign.isalnum() else "-" for sign in setting).strip("-") or str(number)
        yield (
            f"bars-{name}",
            f"Accuracy and backdoor of every method, {setting}, beside retraining",
            bars(rows, setting),
        )
        figure = distance_map(rows, setting)
        if figure is not None:
            yield f"map-{name}", f"Distance to retraining against bytes sent, {setting}", figure


def bars(rows: Sequence[TableRow], title: str) -> Figure:
    """Accuracy and backdoor of every method; lines at retraining's, and the gap to it in points on every bar."""
    figure = Figure(figsize=(max(6.0, 1.5 + 0.55 * len(rows)), 5.2), layout="constrained")
    reference = _reference(rows)
    many = figure.subplots(2, 1, sharex=True)
    for axes, (measure, colour) in zip(many, BARS, strict=True):
        known = [(place, row.means[measure]) for place, row in enumerate(rows) if measure in row.means]
        axes.bar([place for place, _ in known], [one.value for _, one in known], color=colour, width=0.8)
        spread = [(place, one.value, one.error) for place, one in known if one.error is not None]
        if spread:
            axes.errorbar(
                *zip(*[(x, y) for x, y, _ in spread], strict=True), [e for *_, e in spread], fmt="none", color=GREY
            )
        goal = None if reference is None else reference.mean(measure)
        if goal is not None:
            axes.axhline(goal, color=GREEN, linewidth=1, linestyle="--", label="retraining")
            for place, one in known:
                gap = f"{100 * (one.value - goal):+.1f}"
                top = (place, one.value + (one.error or 0.0))
                axes.annotate(gap, top, (0, 2), textcoords="offset points", ha="center", fontsize=7)
        axes.set(ylabel=measure, ylim=(0, 1.12))
    many[0].set_title(f"{title}: gap to retraining in points")
    many[1].set_xticks(
        range(len(rows)), [_label(row.method) for row in rows], rotation=60, ha="right", rotation_mode="anchor"
    )
    return figure


def distance_map(rows: Sequence[TableRow], title: str) -> Figure | None:
    """Each method by the bytes that it sends and its distance to retraining."""
    measure = "distance" if any("distance" in row.means for row in rows) else "distance_fedavg"
    points = [(row, row.mean("up") or 0.0, row.mean("down") or 0.0, row.mean(measure)) for row in rows]
    drawn = [(row, up + down, far) for row, up, down, far in points if far is not None]
    if not drawn:
        return None
    drawn.sort(key=lambda one: (one[2], one[1], one[0].method))
    figure = Figure(figsize=(8.5, max(5.0, 0.19 * len(drawn) + 0.5)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("symlog", linthresh=1e3)
    axes.set_yscale("symlog", linthresh=_threshold([far for *_, far in drawn]))
    for row, sent, far in drawn:
        axes.plot([sent], [far], "o", color=GREEN if row.method in REFERENCES else GREY if row.method == BASE else BLUE)
    axes.set_ylim(bottom=0)
    lines = []
    for number, (some, place) in enumerate(near_ones(axes, [(sent, far) for _, sent, far in drawn]), 1):
        axes.annotate(str(number), place, (5, 3), textcoords="offset points", fontsize=8)
        lines += [f"{number} {_label(drawn[one][0].method)}" for one in some]
    key = "\n".join(lines)
    axes.annotate(key, (1.02, 1.0), xycoords="axes fraction", va="top", fontsize=8)
    axes.set(xlabel="bytes sent, both ways", ylabel=f"{FAR[measure]}, relative", title=title)
    return figure


def near_ones(axes: Axes, points: Sequence[tuple[float, float]]) -> list[tuple[list[int], tuple[float, float]]]:
    """Points that share a label since theirs would overlap: their numbers, and where it stands."""
    seen = axes.transData.transform(points) - axes.transAxes.transform((0, 0))
    seen /= axes.transAxes.transform((1, 1)) - axes.transAxes.transform((0, 0))
    groups: list[list[int]] = []
    for number, own in enumerate(seen):
        near = (group for group in groups if (abs(seen[group[0]] - own) < (NEAR_X, NEAR_Y)).all())
        group = next(near, None)
        if group is None:
            groups.append([number])
        else:
            group.append(number)
    return [(group, points[group[0]]) for group in groups]


def curves(result: BenchResult, measure: str, title: str) -> Figure | None:
    """A measure over the values that were swept, a line for every method."""
    at = {one["name"]: one["x"] for one in result.plain["experiment"]["settings"] if one["x"] is not None}
    groups = dict.fromkeys(name.rpartition(" ")[0] for name in at)
    lines = [(group, name) for group in groups for name in dict.fromkeys(row.method for row in result.rows)]
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    count = 0
    for group, method in lines:
        points = [
            (at[row.setting], row.means[measure])
            for row in result.rows
            if row.method == method
            and row.setting in at
            and measure in row.means
            and row.setting.rpartition(" ")[0] == group
        ]
        if points and count < MOST_CURVES:
            _curve(axes, sorted(points, key=lambda one: one[0]), " ".join(filter(None, (group, method))), count)
            count += 1
    if not count:
        return None
    values = [value for value in at.values() if value > 0]
    if values and max(values) / min(values) > 50:
        axes.set_xscale("log")
    axes.set(xlabel=result.plain["experiment"]["sweep"], ylabel=title)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _curve(axes: Axes, points: Sequence[tuple[float, Any]], label: str, number: int) -> None:
    x, y = [one[0] for one in points], [one[1].value for one in points]
    error = [one[1].error or 0.0 for one in points]
    axes.errorbar(x, y, error, fmt=STYLES[number % len(STYLES)], color=COLOURS[number % len(COLOURS)], label=label)


def png(figure: Figure) -> bytes:
    """The figure as PNG, the same bytes for the same numbers."""
    with rc_context(SETTINGS):
        content = BytesIO()
        figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def _reference(rows: Sequence[TableRow]) -> TableRow | None:
    return next((row for name in REFERENCES for row in rows if row.method == name and row.means), None)


def _label(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def _threshold(values: Sequence[float]) -> float:
    """Below this an axis is linear: what is exact lies at zero."""
    above = [value for value in values if value > 1e-6]
    return 10.0 ** math.floor(math.log10(min(above))) if above else 1e-6
