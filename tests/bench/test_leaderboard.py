"""The leaderboard is sane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probekit.bench.leaderboard import GONE, NEAR, blurred, deceptive, gaps, page, ranked
from probekit.bench.results import BenchResult, TableRow, mean
from tests.bench.conftest import Bench

METHODS = ["sga", "cf", "flipping", "pga", "not", "fedremoval", "fedremoval-line", "fedremoval-pcg"]


def test_exact_is_first_nothing_never_and_sga_forgets_the_trigger_alone(bench: Bench) -> None:
    rows = bench(methods=METHODS, seeds=[0, 1], data={"rows": None, "test_rows": None}).of("small")
    known = {row.method: row for row in rows}
    order = ranked(rows)
    first = order[0].mean("distance")
    exact, nothing, sga, goal = (known[name] for name in ("exact", "nothing", "sga", "retrain-fedavg"))
    assert first is not None
    assert exact.mean("distance") == pytest.approx(first, abs=1e-9)
    assert order[0].method != "nothing"
    far, hits, clean = nothing.mean("distance"), sga.mean("backdoor"), goal.mean("backdoor")
    assert far is not None
    assert hits == pytest.approx(clean, abs=GONE)
    assert sga.mean("distance") == pytest.approx(far, rel=NEAR)
    assert "sga" in deceptive(rows)
    assert "exact" not in deceptive(rows)
    assert "nothing" not in deceptive(rows)


def line(name: str, published: Any = None, **numbers: float) -> TableRow:
    """A line of a table with these means."""
    told = () if published is None else tuple((one, None) for one in published)
    means = {key: found for key, value in numbers.items() if (found := mean([value])) is not None}
    return TableRow("made up", name, name, means, {}, (), told)


def test_weights_do_not_rank_methods_where_retraining_is_as_far_from_itself() -> None:
    far = {"distance_fedavg": 0.5, "disagreement": 0.4, "backdoor": 0.9, "seeds_apart": 0.8}
    goal = line("retrain-fedavg", distance_fedavg=0.0, disagreement=0.0, backdoor=0.0)
    good = line("good", distance_fedavg=0.9, disagreement=0.02, backdoor=0.0)
    rows = [line("nothing", **far), good, goal]
    assert blurred(rows) == (0.8, 0.5)
    assert [row.method for row in ranked(rows)] == ["retrain-fedavg", "good", "nothing"]
    assert deceptive(rows) == []
    sharp = [line("nothing", **{**far, "seeds_apart": 0.1}), good, goal]
    assert blurred(sharp) is None
    assert [row.method for row in ranked(sharp)] == ["retrain-fedavg", "nothing", "good"]
    assert deceptive(sharp) == ["good"]
    assert blurred([line("nothing", **far, distance=0.3), good, goal]) is None  # one minimum: it is what to reach


def test_gaps_are_those_to_retraining_here_and_there() -> None:
    rows = [
        line("cf", (90.0, 30.0), accuracy=0.8, backdoor_paper=0.5),
        line("sga", accuracy=0.7, backdoor_paper=0.1),
        line("retrain-fedavg", (95.0, 10.0), accuracy=0.85, backdoor_paper=0.1),
    ]
    [(name, pairs)] = gaps(rows)
    assert name == "cf"
    np.testing.assert_allclose(pairs, [(-5.0, -5.0), (40.0, 20.0)])
    cg = TableRow("made up", "retrain-fedavg", "retrain-fedavg", {}, {}, ("no rounds",), rows[2].published, False)
    [(_, pairs)] = gaps([rows[0], cg, line("retrain", accuracy=0.9, backdoor_paper=0.0)])
    np.testing.assert_allclose(pairs, [(-10.0, -5.0), (50.0, 20.0)])
    assert gaps(rows[:2]) == []


def test_a_page_says_when_weights_tell_nothing(bench: Bench) -> None:
    found = bench(methods=["cf"])
    assert "Weights do not tell" not in page(found, "a.json", "b.md")
    lines = []
    for one in found.plain["lines"]:
        cells = [
            {**cell, "numbers": {**cell["numbers"], "seeds_apart": 9.0, "distance": None}} for cell in one["cells"]
        ]
        lines.append({**one, "cells": cells})
    text = page(BenchResult({**found.plain, "lines": lines}), "a.json", "b.md")
    assert "Weights do not tell methods apart here: retraining with another seed is 9.00 away" in text
    assert "other class than retraining %" in text
