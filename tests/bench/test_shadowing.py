"""Shadows of an experiment: closed forms are what calls give, and retraining stands at the floor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probekit.bench.cells import BenchPlace, opened
from probekit.bench.forgetting import unlearned
from probekit.bench.reading import experiment_of, merged
from probekit.bench.running import BenchRun
from probekit.bench.shadowing import ShadowTables
from probekit.evaluation.shadows import random_draws
from tests.bench.conftest import SMALL, Bench

CLOSED = {"poison": {"trigger": ""}, "model": {"ridge": 0.01, "trainer": "closed-form", "options": {"view": "l2"}}}


@pytest.mark.parametrize(
    ("spec", "form"), [("nothing", "nothing"), ("exact", "exact"), ("retrain", "exact"), ("fedremoval", "one-step")]
)
def test_closed_forms_are_what_calls_give(shelf: Path, spec: str, form: str) -> None:
    run = BenchRun(experiment_of(merged(SMALL, CLOSED)), BenchPlace(shelf))
    scenario = opened(run.place, run.lines()[0].keys[0])
    tables = ShadowTables(scenario)
    draws = random_draws(len(tables.pool), count=4)
    assert tables.closed(spec, unlearned(scenario, spec)) == form
    np.testing.assert_allclose(tables.table(spec, draws, form), tables.table(spec, draws), atol=1e-7)


def test_other_methods_options_and_trainers_are_called(shelf: Path) -> None:
    run = BenchRun(experiment_of(merged(SMALL, CLOSED)), BenchPlace(shelf))
    scenario = opened(run.place, run.lines()[0].keys[0])
    for spec in ("fedremoval-line", "fedremoval:f2l2"):
        assert ShadowTables(scenario).closed(spec, unlearned(scenario, spec)) == ""
    rounds = BenchRun(experiment_of(SMALL), BenchPlace(shelf))
    assert ShadowTables(opened(rounds.place, rounds.lines()[0].keys[0])).closed("nothing") == ""


def test_retraining_is_at_the_floor_and_shadows_are_counted(bench: Bench) -> None:
    metrics = ["membership", "shadows"]
    found = bench(methods=["fedremoval"], metrics=metrics, shadows=8, closed_shadows=24, **CLOSED)
    rows = {row.method: row for row in found.rows if row.means}
    assert {name: row.mean("shadows") for name, row in rows.items()} == {
        **dict.fromkeys(("nothing", "exact", "retrain", "fedremoval"), 24),
        "neggrad": 8,
    }
    exact, nothing = rows["exact"], rows["nothing"]
    assert exact.mean("klom") == exact.mean("klom_floor") == rows["retrain"].mean("klom")
    assert (nothing.mean("klom") or 0) > (exact.mean("klom") or 1)
    for name in ("ulira_auc", "rmia_auc"):
        low, value, high = (nothing.mean(f"{name}{end}") or 0 for end in ("_low", "", "_high"))
        assert 0 < low < value < high <= 1
