"""What tables and pictures show of an outcome: bounds, intervals, published tables, labels that do not overlap."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from probekit.bench.cells import BenchPlace
from probekit.bench.leaderboard import page
from probekit.bench.pictures import near_ones
from probekit.bench.published import beside
from probekit.bench.reading import experiment_of, merged, tuned_as
from probekit.bench.results import BenchResult, mean, result_of
from probekit.bench.running import BenchRun
from probekit.bench.tables import comma_separated, latex, markdown, setup
from probekit.errors import InputError, NotFoundError
from tests.bench.conftest import SMALL, Bench


def outcome(small: BenchResult, **numbers: list[float]) -> BenchResult:
    """The same with these measures of doing nothing, a value for every seed."""
    line = dict(small.plain["lines"][0])
    seeds = range(len(next(iter(numbers.values()))))
    line["cells"] = [{"numbers": {name: values[seed] for name, values in numbers.items()}} for seed in seeds]
    table = beside("unlearning_cost_per_epoch.mnist")
    return BenchResult({**small.plain, "lines": [line], "beside": [table]})


def test_rounds_that_hit_the_most_are_a_lower_bound_everywhere(bench: Bench) -> None:
    small = bench(methods=["exact"])
    capped = outcome(small, relearn_rounds=[20.0])
    assert "| ≥ 20.0 |" in markdown(capped)
    assert r"$\geq$ 20.0" in latex(capped)
    [line] = [one for one in csv.DictReader(io.StringIO(comma_separated(capped))) if one["measure"] == "relearn_rounds"]
    assert (line["mean"], line["bound"]) == ("20.0", "lower")
    some = outcome(small, relearn_rounds=[3.0, 20.0])
    assert "≥ 11.5 ± 8.5" in markdown(some)
    assert "≥" not in markdown(outcome(small, relearn_rounds=[3.0, 19.0]))
    assert mean([20.0, 20.0]) == mean([20.0, 20.0], 21)


def test_one_seed_shows_the_interval_and_several_their_error(bench: Bench) -> None:
    small = bench(methods=["exact"])
    ends = {"ulira_tpr": [0.2], "ulira_tpr_low": [0.15], "ulira_tpr_high": [0.25]}
    assert "20.0 (15.0 to 25.0)" in markdown(outcome(small, **ends))
    assert "20.0 ± 0.0" in markdown(outcome(small, **{name: 2 * values for name, values in ends.items()}))


def test_a_table_of_the_paper_stands_below(bench: Bench) -> None:
    found = outcome(bench(methods=["exact"]), accuracy=[0.5])
    assert "| yes | 322281 | 4.19 | 0.2 | 0 |" in markdown(found)
    assert r"yes & 322281 & 4.19 & 0.2 & 0 \\" in latex(found)
    lines = [one for one in csv.DictReader(io.StringIO(comma_separated(found))) if "published" in one["setting"]]
    assert [one["mean"] for one in lines if one["measure"] == "GFLOP"] == ["30.1", "4.19"]
    with pytest.raises(NotFoundError, match="have no table"):
        beside("unlearning_cost_per_epoch.minst")


def test_points_that_are_near_share_a_label() -> None:
    axes = Figure().add_subplot()
    points = [(0.0, 0.0), (0.01, 0.005), (0.5, 0.5), (1.0, 1.0), (0.0, 0.5)]
    for point in points:
        axes.plot(*point, "o")
    found = near_ones(axes, points)
    assert [numbers for numbers, _ in found] == [[0, 1], [2], [3], [4]]
    assert np.allclose(found[0][1], points[0])


def test_a_page_has_published_figures_beside_what_they_count(bench: Bench) -> None:
    told = {"source": "Somebody, 2020", "values": {"fedremoval": [[80.5, 0.25], 3]}}
    text = page(bench(methods=["fedremoval"], published=told), "a.json", "b.md")
    assert "probekit bench leaderboard a.json b.md" in text
    head, line = (next(one for one in text.splitlines() if word in one) for word in ("| method |", "| fedremoval |"))
    assert "backdoor, as the paper %" in head
    assert head.endswith("| published accuracy % | published backdoor % | with |")
    assert line.endswith("| 80.5 ± 0.25 | 3 |  |")
    assert "published" not in page(bench(methods=["fedremoval"]), "a.json", "b.md")


def test_a_baseline_with_options_stands_for_itself(bench: Bench) -> None:
    rows = bench(methods=["neggrad:rounds=2"]).of("small")
    assert [row.method for row in rows if row.method.startswith("neggrad")] == ["neggrad:rounds=2"]


def test_what_tuning_chose_elsewhere_is_taken_over(bench: Bench, shelf: Path) -> None:
    before = bench(methods=["cf"], tune={"budget": 4})
    chosen = before.row("small", "cf").spec
    again = tuned_as(experiment_of(merged(SMALL, {"methods": ["cf"], "seeds": [1]})), before.plain, "before.json")
    work = BenchRun(again, BenchPlace(shelf))
    work.run()
    found = result_of(work)
    assert found.row("small", "cf").spec == chosen
    assert [line["tried"] for line in found.plain["lines"]] == [[] for _ in found.plain["lines"]]
    assert "4 settings of each method, defaults first, tried in before.json" in setup(found)[1]
    with pytest.raises(InputError, match="tuned none of other"):
        tuned_as(experiment_of(merged(SMALL, {"name": "other"})), before.plain, "before.json")
