"""README's picture: a backdoor that one client plants, and the head without that client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import probekit
from probekit.data.triggers import TriggeredDataset, parse_trigger
from probekit.evaluation.unlearning import AFTER, BEFORE, RETRAINED
from probekit.runs.evaluate import run_heads

PICTURE = Path("backdoor.png")
DIGITS = "packaged:digits"
TRIGGER = "square:size=2"
TARGET = "0"
SHOWN = 8
COLORS = {BEFORE: "#e69f00", AFTER: "#0072b2", RETRAINED: "#009e73"}
TITLES = {
    BEFORE: "trained with client 3",
    AFTER: "client 3 unlearned",
    RETRAINED: "retrained without client 3",
}

run = probekit.train(
    DIGITS,
    backbone="pixels:8",
    clients=5,
    poison=f"client=3,trigger={TRIGGER},target={TARGET}",
    run="picture-run",
)
run.unlearn(client="3")
evaluations = run.evaluate().unlearning.heads

# The first test pictures of other classes, with the trigger on them.
digits = probekit.read_dataset(DIGITS).by_name["test"]
triggered = TriggeredDataset(digits, parse_trigger(TRIGGER))
rows = probekit.extract(triggered, "pixels:8", name="digits-triggered")
assert isinstance(rows, probekit.EmbeddingSet)
predicted = {name: head.predict(rows) for name, head in run_heads(run, notes=[]).items()}
others = [n for n in range(len(digits)) if digits.class_names[digits[n].label] != TARGET]


def bars(axes: Axes, measure: str, title: str) -> None:
    """One measure of the three heads, with its confidence intervals."""
    for row, name in enumerate(reversed(TITLES)):
        estimate = evaluations[name][measure]
        reach = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
        look: Any = {"color": COLORS[name], "ecolor": "black", "capsize": 2}
        axes.barh(row, estimate.value, 0.7, xerr=reach, **look)
        axes.text(1.03, row, f"{estimate.value:.1%}", va="center")
    axes.set(xlim=(0, 1.3), xticks=[0, 0.5, 1], xticklabels=["0", "50%", "100%"], yticks=[])
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


figure = Figure(figsize=(9, 4.4), layout="constrained", facecolor="white")
top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1))
top.suptitle("Test digits with the trigger, a white square: what the head predicts")
for axes, number in zip(top.subplots(1, SHOWN), others, strict=False):
    axes.imshow(np.asarray(triggered[number].content()), cmap="gray", vmin=0, vmax=255)
    axes.set_axis_off()
    axes.set_title(f"a {digits.class_names[digits[number].label]}", fontsize=11)
    for line, name in enumerate((BEFORE, AFTER)):
        place = (0.5, -0.16 - 0.22 * line)
        digit = predicted[name][number]
        look = {"color": COLORS[name], "ha": "center", "transform": axes.transAxes}
        axes.text(*place, f"{name}: {digits.class_names[digit]}", **look)
left, right = bottom.subplots(1, 2)
bars(left, "test", "accuracy on test digits")
bars(right, "backdoor", f"backdoor: other digits, with trigger, called {TARGET}")
left.set_yticks(range(len(TITLES)), list(reversed(TITLES.values())))
figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
