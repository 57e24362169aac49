"""Pictures of a probe, drawn from its plain values: classes, confusion, calibration, and the choice of the ridge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from probekit.pages.pictures import BLUE, GREY, ORANGE, classes, confusion

Plain = Mapping[str, Any]


def probe_figures(probe: Plain) -> Iterator[tuple[str, str, Figure]]:
    """Every picture that a probe has values for, with its key and what it shows in words."""
    if probe.get("by_class"):
        yield "classes", "Accuracy of each class", classes({"by_class": {"trained": probe["by_class"]}})
    if probe.get("confusion"):
        yield "confusion", "True against given classes", confusion(probe)
    if probe.get("calibration"):
        yield "calibration", "How often the head is right, by how sure it is", calibration(probe["calibration"])
    if probe.get("ridge_choice"):
        yield "ridge", "Error on rows left out, by ridge", ridge_choice(probe["ridge_choice"], probe["head"]["ridge"])


def calibration(found: Plain) -> Figure:
    """Accuracy against confidence in every bin; on the line, chances are what they say."""
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes, bins = figure.add_subplot(), [one for one in found["bins"] if one["count"]]
    most = max((one["count"] for one in bins), default=1)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    places = [one["confidence"] for one in bins], [one["accuracy"] for one in bins]
    axes.plot(*places, color=BLUE, linewidth=1, clip_on=False)
    axes.scatter(*places, [12 + 90 * one["count"] / most for one in bins], color=BLUE, linewidths=0, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="chance that the head gives its class", ylabel="share that is right")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    axes.grid(linewidth=0.4)
    return figure


def ridge_choice(choice: Plain, chosen: float) -> Figure:
    """The error of every ridge on rows left out, and the ridge that was chosen."""
    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(choice["ridges"], choice["squared_error"], color=BLUE, marker="o", markersize=3, linewidth=1)
    axes.axvline(chosen, color=ORANGE, linewidth=1.5, label=f"chosen: {chosen:.3g}")
    axes.set(xscale="log", yscale="log", xlabel="ridge (log scale)", ylabel="squared error on rows left out")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:.2g}")
    axes.grid(linewidth=0.4)
    figure.legend(loc="outside upper left")
    return figure
