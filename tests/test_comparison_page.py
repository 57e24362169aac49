"""docs/comparison.md, and the pages of outcomes that it points to, say what their JSON says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from probekit.bench.leaderboard import page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTCOMES = ("networks", "networks-full", "probes", "deviations")


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("_comparison")


def test_every_figure_of_the_page_was_measured(comparison: Any) -> None:
    """Wanted: what `python benchmarks/_comparison.py` writes."""
    text = comparison.TEXT.read_text()
    assert len(comparison.PLACE.findall(text)) > 60
    assert comparison.PAGE.read_text() == comparison.filled(text)
    rest = comparison.PLACE.sub("", text)
    assert "{" not in rest


@pytest.mark.parametrize("name", OUTCOMES)
def test_pages_of_outcomes_are_what_their_json_says(comparison: Any, name: str) -> None:
    source, to = f"docs/{name}.json", f"docs/leaderboard-{name}.md"
    assert (DOCS / f"leaderboard-{name}.md").read_text() == page(comparison.outcome(name), source, to)


def test_what_was_promised_was_run(comparison: Any) -> None:
    """Three seeds on a fifth of the rows, one on all, two probes; fifteen methods, six settings of each."""
    networks, full, probes = (comparison.outcome(name) for name in OUTCOMES[:3])
    for result, seeds in ((networks, [0, 1, 2]), (full, [0]), (probes, [0, 1, 2])):
        about = result.plain["experiment"]
        assert about["tune"]["budget"] == 6
        assert about["seeds"] == seeds
    whole = {one["name"]: one["data"]["rows"] for one in full.plain["experiment"]["settings"]}
    assert whole == {"mnist": 1.0, "fashion-mnist": 1.0}
    assert {one["data"]["rows"] for one in networks.plain["experiment"]["settings"]} == {0.2}
    sets = ("mnist", "fashion-mnist", "cifar10")
    for result, settings in (
        (networks, [*sets, *(f"{name} linearized" for name in sets)]),
        (full, sets[:2]),
        (probes, ["probe fashion-mnist", "probe cifar10"]),
    ):
        for setting in settings:
            able = [row for row in result.of(setting) if row.means and row.method != "nothing"]
            assert len(able) >= 15, setting
