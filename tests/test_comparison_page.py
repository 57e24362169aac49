"""docs/comparison.md, and the pages of outcomes that it points to, say what their JSON says."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from probekit.bench.leaderboard import page
from probekit.bench.published import figures
from probekit.bench.results import BenchResult, read_result

DOCS = Path(__file__).parents[1] / "docs"
OUTCOMES = ("networks", "networks-full", "probes", "deviations")
MEASURES = {
    "a": ("accuracy", 100),
    "b": ("backdoor_paper", 100),
    "o": ("backdoor", 100),
    "d": ("distance", 1),
    "f": ("distance_fedavg", 1),
    "s": ("disagreement", 100),
    "c": ("certified", 100),
    "x": ("seeds_apart", 1),
}
"""Accuracy, backdoor as the paper counts it and of others; distances; other class than retraining; certified; seeds."""


@cache
def outcome(name: str) -> BenchResult:
    return read_result(DOCS / f"{name}.json")


def figure(name: str) -> float:
    """`networks/mnist/cf/b`, a mean of ours; `paper/TABLE/SET/METHOD/0 or 1`, or `paper/TABLE/SET/NUMBER`."""
    source, *path = name.split("/")
    if source == "paper":
        found: Any = figures()
        for part in path:
            found = found[int(part) if isinstance(found, list) else part]
        return float(found[0] if isinstance(found, list) else found)
    setting, method, measure = path
    key, scale = MEASURES[measure]
    value = outcome(source).row(setting, method).mean(key)
    assert value is not None, name
    return scale * value


CLAIMS: list[tuple[str, tuple[str, ...]]] = []
"""Sentences of the page and the figures in them."""


@pytest.mark.parametrize(("sentence", "names"), CLAIMS, ids=[one[0][:40] for one in CLAIMS])
def test_every_figure_of_the_page_was_measured(sentence: str, names: tuple[str, ...]) -> None:
    assert sentence.format(*map(figure, names)) in (DOCS / "comparison.md").read_text()


@pytest.mark.parametrize("name", OUTCOMES)
def test_pages_of_outcomes_are_what_their_json_says(name: str) -> None:
    source, to = f"docs/{name}.json", f"docs/leaderboard-{name}.md"
    assert (DOCS / f"leaderboard-{name}.md").read_text() == page(outcome(name), source, to)


def test_what_was_promised_was_run() -> None:
    """Three seeds on a fifth of the rows, one on all, two probes; fifteen methods, six settings of each."""
    for name in OUTCOMES[:3]:
        about = outcome(name).plain["experiment"]
        assert about["tune"]["budget"] == 6
        assert about["seeds"] == ([0] if name == "networks-full" else [0, 1, 2])
    networks, full, probes = (outcome(name) for name in OUTCOMES[:3])
    whole = {one["name"]: one["data"]["rows"] for one in full.plain["experiment"]["settings"]}
    assert whole == {"mnist": 1.0, "fashion-mnist": 1.0}
    parts = {one["name"]: one["data"]["rows"] for one in networks.plain["experiment"]["settings"]}
    assert set(parts.values()) == {0.2}
    for result, settings in (
        (networks, ["mnist", "fashion-mnist", "cifar10", "mnist linearized", "fashion-mnist linearized"]),
        (full, ["mnist", "fashion-mnist"]),
        (probes, ["probe fashion-mnist", "probe cifar10"]),
    ):
        for setting in settings:
            able = [row for row in result.of(setting) if row.means and row.method != "nothing"]
            assert len(able) >= 15, setting
    assert "cifar10 linearized" in networks.settings
