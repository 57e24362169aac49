"""The pages of the leaderboard and of membership are what their JSON says."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.bench.leaderboard import page, ranked
from probekit.bench.results import read_result

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_its_json_says() -> None:
    result = read_result(DOCS / "leaderboard.json")
    assert (DOCS / "leaderboard.md").read_text() == page(result, "docs/leaderboard.json", "docs/leaderboard.md")
    for setting in result.settings:
        order = [row.method for row in ranked(result.of(setting))]
        distances = [row.mean("distance") for row in ranked(result.of(setting))]
        assert order[0] != "nothing"
        assert distances[order.index("exact")] == pytest.approx(distances[0], abs=1e-9)
    assert "no evidence" in (DOCS / "leaderboard.md").read_text()


def test_the_page_of_membership_is_what_its_json_says() -> None:
    result = read_result(DOCS / "membership.json")
    assert (DOCS / "membership.md").read_text() == page(result, "docs/membership.json", "docs/membership.md")
    probe, called = result.settings
    closed = {row.method: row for row in result.of(probe) if row.means}
    for name in ("nothing", "exact", "retrain", "fedremoval"):
        assert closed[name].mean("shadows") == 200
    assert {row.mean("shadows") for row in result.of(called) if row.means} == {64}
    assert closed["exact"].mean("klom") == closed["exact"].mean("klom_floor")
    low, high = (closed["exact"].mean(f"ulira_auc_{end}") or 0 for end in ("low", "high"))
    assert low < 0.5 < high  # who was forgotten exactly cannot be told
    assert (closed["nothing"].mean("ulira_auc_low") or 0) > high
    assert [row.method for row in ranked(result.of(probe))][-1] != "exact"
    assert len(ranked(result.of(called))) >= 15
