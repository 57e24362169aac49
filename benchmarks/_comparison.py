"""Fill docs/comparison.md from the outcomes beside it: `python benchmarks/_comparison.py`.

The text stands in docs/site/comparison.md.in. A place `{networks/mnist/cf/b:.1f}` is a mean of an outcome (outcome,
setting, method, measure), `{paper/full_parameter/mnist/CF/1:.1f}` a figure of the paper,
`{aim/networks/mnist/sga/sga:3:.0f}` what a trial of tuning came to, and `{deceptive/networks/mnist:.0f}` how many
methods have only lost their backdoor.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from probekit.bench.leaderboard import deceptive
from probekit.bench.published import figures
from probekit.bench.results import BenchResult, read_result

DOCS = Path(__file__).parents[1] / "docs"
TEXT, PAGE = DOCS / "site" / "comparison.md.in", DOCS / "comparison.md"
PLACE = re.compile(r"\{([^{}]+):(\+?)\.(\d)f\}")
MEASURES = {
    "a": ("accuracy", 100),
    "b": ("backdoor_paper", 100),
    "o": ("backdoor", 100),
    "d": ("distance", 1),
    "f": ("distance_fedavg", 1),
    "x": ("seeds_apart", 1),
}
"""Accuracy, the backdoor as the paper counts it and of others, distances, retraining from retraining."""


@cache
def outcome(name: str) -> BenchResult:
    """The outcome in docs/NAME.json."""
    return read_result(DOCS / f"{name}.json")


def figure(name: str) -> float:
    """The number that a place stands for; of two with " - " between them, the difference."""
    if " - " in name:
        first, second = map(figure, name.split(" - "))
        return first - second
    source, *path = name.split("/")
    if source == "paper":
        found: Any = figures()
        for part in path:
            found = found[int(part) if isinstance(found, list) else part]
        return float(found[0] if isinstance(found, list) else found)
    if source == "aim":
        lines = {(one["setting"], one["method"]): one["tried"] for one in outcome(path[0]).plain["lines"]}
        return 100 * float(next(one["aim"] for one in lines[path[1], path[2]] if one["spec"] == path[3]))
    if source == "deceptive":
        return len(deceptive(outcome(path[0]).of(path[1])))
    setting, method, measure = path
    key, scale = MEASURES[measure]
    value = outcome(source).row(setting, method).mean(key)
    if value is None:
        raise KeyError(f"{name} was not measured")
    return scale * value


def filled(text: str) -> str:
    """The text with every number in its place."""
    return PLACE.sub(lambda found: f"{figure(found[1]):{found[2]}.{found[3]}f}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(TEXT.read_text()))
