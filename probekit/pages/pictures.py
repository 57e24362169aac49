"""The pictures of a report, drawn from its plain values: SVG, the same bytes for the same values.

Colours are Okabe and Ito's, which colour-blind people can tell apart. Nothing global is changed: figures are made
without pyplot, and settings hold while a picture is written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#6E6E6E"
COLOURS = {"before": ORANGE, "trained": BLUE, "after": BLUE, "retrained": GREEN}
HATCHES = {"before": "//", "trained": "", "after": "", "retrained": ".."}
SETTINGS: Any = {
    "svg.hashsalt": "probekit",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "hatch.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor"), "white"),
}
CIRCLE = {"marker": "o", "color": BLUE, "markersize": 8}
INFLUENCES: dict[str, tuple[str, tuple[bool, ...], dict[str, Any]]] = {
    "exactly (leave-one-out)": ("distance", (False,), CIRCLE),
    "forgotten since": ("distance", (True,), {**CIRCLE, "markerfacecolor": "white"}),
    "bound": ("bound", (False, True), {"marker": "|", "color": ORANGE, "markersize": 13, "markeredgewidth": 3}),
}
"""What is drawn of clients that are here and clients that were forgotten since, by its label."""
MOST_BARS, GROUPED, NUMBERED, LABELLED = 30, 12, 15, 40
LONGEST = 18

SHADES = ListedColormap([(0.0, 0x72 / 255, 0xB2 / 255, share / 255) for share in range(256)])
"""From nothing to blue: what lies below shows through, be it light or dark."""

Plain = Mapping[str, Any]


@dataclass(frozen=True)
class Picture:
    """An SVG, and what it shows in words."""

    key: str
    alt: str
    svg: str


def drawn(figures: Iterable[tuple[str, str, Figure]]) -> tuple[Picture, ...]:
    """Figures with their keys and words as SVG."""
    found = []
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the viewer's font may well have it
        for key, alt, figure in figures:
            text = StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            found.append(Picture(key, alt, text.getvalue()))
    return tuple(found)


def report_figures(report: Plain) -> Iterator[tuple[str, str, Figure]]:
    """Every picture that the report of a run has values for, with its key and what it shows in words."""
    if report["comparison"]:
        yield "comparison", "Each measure before, after and retrained", comparison(report["comparison"])
    if any(_positive(one["distance"], one["bound"]) for one in report["stages"]):
        yield "distance", "Distance to retraining and its bound, by state", distances(report["stages"])
    if clients := report["influence"]["clients"]:
        yield "influence", "How far the head moves without each client", influence(clients)
    for place, one in enumerate(report["judged"], start=1):
        name = one["name"]
        if one["margins"] is not None:
            yield f"margins_{place}", f"Margins of {name} against the lead needed", margins(one)
        yield f"classes_{place}", f"Accuracy of each class on {name}", classes(one)
        yield f"confusion_{place}", f"True against given classes on {name}", confusion(one)


def comparison(measures: Sequence[Plain]) -> Figure:
    """Bars of every measure, a group for each, with intervals; the difference to retraining stands below."""
    heads = list(measures[0]["heads"])
    figure, axes = _figure(max(5.5, 1.5 + 2.4 * len(measures)), 3.8)
    shares = {label: [one["heads"][label] or {"value": None} for one in measures] for label in heads}
    places = _bars(axes, {label: [one["value"] or 0.0 for one in every] for label, every in shares.items()}, 0.8)
    for label, every in shares.items():
        for x, share in zip(places[label], every, strict=True):
            if share["value"] is not None:
                reach = [[share["value"] - share["low"]], [share["high"] - share["value"]]]
                axes.errorbar(x, share["value"], yerr=np.maximum(reach, 0), color="black", capsize=3, linewidth=1)
                _note(axes, f"{share['value']:.1%}", (x, share["high"]), (0, 3), ha="center")
    axes.set_xticks(range(len(measures)), [_group(one) for one in measures])
    axes.set_xlim(-0.55, len(measures) - 0.45)
    _shares(figure, axes)
    return figure


def _group(one: Plain) -> str:
    name = _label(one["measure"], 60).replace(" on ", "\non ", 1).replace(", ", ",\n", 1)
    apart = one["difference_to_retraining"]
    return name if apart is None else f"{name}\n|after - retrained| = {100 * apart:.2f} points"


def distances(stages: Sequence[Plain]) -> Figure:
    """The measured distance of every state to its retrained head, and the bound, on a log scale."""
    figure, axes = _figure(max(5.5, 1.8 + 0.9 * len(stages)), 3.6)
    values = [value for one in stages for value in (one["distance"], one["bound"]) if _positive(value)]
    floor = 10.0 ** (math.floor(math.log10(min(values))) - 1)
    for x, one in enumerate(stages):
        distance, bound = one["distance"], one["bound"]
        if distance is not None:
            axes.plot(x, max(distance, floor), "o", color=BLUE, markersize=7)
            shown = "0: the same bits" if distance == 0 else f"{distance:.3g}"
            _note(axes, shown, (x, max(distance, floor)), (9, -3))
        if _positive(bound):
            axes.plot(x, bound, "_", color=ORANGE, markersize=22, markeredgewidth=3)
            _note(axes, f"{bound:.3g}", (x, bound), (0, 6), ha="center")
        if distance is not None and _positive(bound):
            axes.plot([x, x], [max(distance, floor), bound], color=GREY, linewidth=1, zorder=0)
    axes.set(yscale="log", ylim=(floor / 3, max(values) * 30), ylabel="distance in parameters (log scale)")
    _decades(axes.yaxis)
    axes.set_xticks(range(len(stages)), [f"state {one['state']}\n{_label(one['method'])}" for one in stages])
    axes.set_xlim(-0.6, len(stages) - 0.4)
    axes.grid(axis="y", linewidth=0.4)
    axes.plot([], [], "o", color=BLUE, label="measured distance to retraining")
    axes.plot([], [], "_", color=ORANGE, markersize=14, markeredgewidth=3, label="proven bound")
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def influence(clients: Sequence[Plain]) -> Figure:
    """How far the head moves without each client: exactly, and at most."""
    shown = [one for place, one in enumerate(clients) if place < MOST_BARS or one["forgotten_since"]]
    shown = shown[: 2 * MOST_BARS][::-1]
    figure, axes = _figure(6.5, 1.5 + 0.28 * len(shown))
    for label, (name, kinds, style) in INFLUENCES.items():
        drawn = [(one[name], place) for place, one in enumerate(shown) if one["forgotten_since"] in kinds]
        points = np.array([point for point in drawn if _positive(point[0])]).reshape(-1, 2)
        if len(points):
            axes.plot(*points.T, linestyle="", label=label, **style)
    values = [one[name] for one in shown for name in ("distance", "bound") if _positive(one[name])]
    if values:
        axes.set(xscale="log", xlim=(min(values) / 2, max(values) * 2))
        _decades(axes.xaxis)
    axes.set_yticks(range(len(shown)), [_label(one["client"]) for one in shown])
    axes.set(ylim=(-0.6, len(shown) - 0.4), ylabel="client")
    axes.set_xlabel("how far the head moves without the client (log scale)")
    axes.grid(axis="both", linewidth=0.4)
    if len(clients) > len(shown):
        axes.set_title(f"{len(shown)} of {len(clients)} clients: those that matter most, and the forgotten")
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def margins(judged: Plain) -> Figure:
    """Each row's lead against the lead that makes it certain: above the line its class is proven."""
    found = judged["margins"]
    points = np.array(found["points"]).reshape(-1, 2)
    figure, axes = _figure(6.0, 4.2)
    lead, needed = np.maximum(points, _least(points)).T
    sure = points[:, 0] > points[:, 1]
    size = 8 if len(points) > 300 else 16
    axes.scatter(needed[sure], lead[sure], size, color=BLUE, alpha=0.6, linewidths=0, label="certain")
    axes.scatter(needed[~sure], lead[~sure], size + 6, color=ORANGE, marker="x", linewidths=1, label="not proven")
    low, high = min(lead.min(), needed.min()) / 2, max(lead.max(), needed.max()) * 2
    axes.plot([low, high], [low, high], color="black", linewidth=1)
    top = high if lead.max() < needed.max() else lead.max() * 2
    axes.set(xscale="log", xlim=(needed.min() / 2, needed.max() * 2))
    axes.set(yscale="log", ylim=(min(lead.min(), needed.max()) / 2, top))
    for axis in (axes.xaxis, axes.yaxis):
        _decades(axis)
    axes.set(xlabel="lead that is needed: what both scores can be off", ylabel="lead over the closest rival")
    some = "" if len(points) == found["rows"] else f" ({len(points)} drawn)"
    axes.set_title(f"{found['certified']} of {found['rows']} rows are certain{some}")
    figure.legend(loc="outside upper right", ncols=2, markerscale=1.5)
    return figure


def classes(judged: Plain) -> Figure:
    """The accuracy of each class: for every head or, of many classes, of the current head where it is worst."""
    heads = list(judged["by_class"])
    current = next(label for label in heads if label != "before")
    every = judged["by_class"][current]
    order = list(range(len(every)))
    if len(order) > GROUPED:
        heads = [current]
        order.sort(key=lambda k: (every[k]["value"] is None, every[k]["value"]))
        order = order[:MOST_BARS]
    names = [_label(every[k]["name"]) for k in order]
    height = 3.4 + (1.2 if _turned(names) else 0.0)
    figure, axes = _figure(max(5.5, 1.5 + 0.22 * len(order) * (len(heads) + 1)), height)
    _bars(axes, {label: [judged["by_class"][label][k]["value"] or 0.0 for k in order] for label in heads}, 0.84)
    axes.set_xticks(range(len(order)), names, **_turned(names))
    axes.set_xlabel("class")
    if len(order) < len(every):
        axes.set_title(f"the worst {len(order)} of {len(every)} classes")
    _shares(figure, axes)
    return figure


def confusion(judged: Plain) -> Figure:
    """True classes down, given ones across; shares of each true class in colour, counts in the cells."""
    names, counts = judged["confusion"]["classes"], np.array(judged["confusion"]["counts"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(9.0, max(4.2, 1.8 + 0.36 * len(names)))
    figure, axes = _figure(side + 1.3, side)
    figure.set_layout_engine("compressed")
    image = axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, interpolation="nearest")
    if len(names) <= NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                dark = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=dark)
    step = max(1, math.ceil(len(names) / LABELLED))
    shown = [_label(name) for name in names[::step]]
    axes.set_xticks(range(0, len(names), step), shown, **_turned(shown))
    axes.set_yticks(range(0, len(names), step), shown)
    axes.set(xlabel="given class", ylabel="true class")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class", format=PercentFormatter(1))
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(min(width, 16.0), height), layout="constrained")
    return figure, figure.add_subplot()


def _note(axes: Axes, text: str, at: tuple[float, float], off: tuple[int, int], **how: Any) -> None:
    axes.annotate(text, at, off, textcoords="offset points", fontsize=9, **how)


def _bars(axes: Axes, values: Mapping[str, Sequence[float]], room: float) -> dict[str, Any]:
    """Bars of each head side by side, in a group for each value; gives where they stand."""
    width, places = room / len(values), {}
    for place, (label, every) in enumerate(values.items()):
        x = places[label] = np.arange(len(every)) + (place - (len(values) - 1) / 2) * width
        look: Any = {"color": COLOURS[label], "hatch": HATCHES[label], "edgecolor": "white", "label": label}
        axes.bar(x, every, 0.92 * width, **look)
    return places


def _shares(figure: Figure, axes: Axes) -> None:
    """A vertical axis of shares, with room for what stands on the bars, and a legend of the heads, if several."""
    if len(axes.get_legend_handles_labels()[0]) > 1:
        figure.legend(loc="outside upper left", ncols=4)
    axes.set(yticks=[0, 0.25, 0.5, 0.75, 1.0], ylim=(0, 1.12), ylabel="share of rows")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", linewidth=0.4)


def _positive(*values: float | None) -> bool:
    return any(value is not None and value > 0 for value in values)


def _least(points: Any) -> float:
    """What stands for zero where a scale is logarithmic."""
    above = points[points > 0]
    return float(above.min()) / 2 if len(above) else 1e-18


def _decades(axis: Axis) -> None:
    """Labels in plain digits on a logarithmic axis: at every power of ten or, of few, between them too."""
    low, high = axis.get_view_interval()
    few = high < 300 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _turned(names: Sequence[str]) -> dict[str, Any]:
    """How labels stand that would run into each other."""
    long = max(map(len, names), default=0) > 4
    return {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}


def _label(name: object, most: int = LONGEST) -> str:
    """A name as a label: one line, not too long (names differ at their ends), no mathematics."""
    flat = " ".join(str(name).split())
    half = most // 2
    cut = flat if len(flat) <= most else f"{flat[: most - half - 1]}…{flat[-half:]}"
    return cut.replace("$", r"\$")
