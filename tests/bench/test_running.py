"""Experiments end to end on digits: what is measured, what is kept, what is computed again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import linalg

from probekit import registry
from probekit.bench import cells, forgetting
from probekit.bench.cells import BenchPlace
from probekit.bench.judging import VECTOR_STREAM
from probekit.bench.reading import experiment_of, merged
from probekit.bench.results import result_of
from probekit.bench.running import BenchRun
from probekit.bench.tables import markdown
from probekit.bench.tuning import best, trials
from probekit.bench.writing import write
from tests.bench.conftest import SMALL, Bench
from tests.conftest import tree


def test_the_table_holds_what_must_stand_in_every_table(bench: Bench) -> None:
    found = bench(methods=["fedremoval-line"])
    names = [row.method for row in found.of("small")]
    wanted = [name for name in ("exact", "retrain", "retrain-fedavg", "neggrad") if name in registry.methods.names()]
    assert names == ["nothing", *wanted, "fedremoval-line"]
    exact, nothing, fedavg = (found.row("small", name) for name in ("exact", "nothing", "retrain-fedavg"))
    assert exact.mean("distance") == pytest.approx(0, abs=1e-9)
    assert fedavg.mean("distance_fedavg") == 0
    assert nothing.mean("backdoor") is not None
    assert (nothing.mean("backdoor") or 0) > 0.3 > (fedavg.mean("backdoor") or 0)
    assert exact.facts["storage"] > 0
    assert (fedavg.facts["retained_online"], fedavg.facts["target_online"]) == (True, False)


def test_means_over_seeds_have_a_standard_error(bench: Bench) -> None:
    found = bench(methods=["exact"], seeds=[0, 1])
    one = found.row("small", "nothing").means["accuracy"]
    apart = [cell["numbers"]["accuracy"] for cell in found.plain["lines"][0]["cells"]]
    assert one.seeds == 2
    assert one.value == pytest.approx(np.mean(apart))
    assert one.error == pytest.approx(np.std(apart, ddof=1) / np.sqrt(2))


@pytest.mark.parametrize(
    "request_", [{"what": "samples", "size": 5, "stream": 3}, {"what": "class"}, {"what": "client", "stream": 2}]
)
@pytest.mark.parametrize("choice", ["random", "high-influence"])
def test_every_kind_of_request(bench: Bench, request_: dict[str, Any], choice: str) -> None:
    found = bench(methods=["exact"], request={**request_, "choice": choice}, poison={"trigger": ""})
    row = found.row("small", "exact")
    assert row.errors == ()
    assert row.mean("distance") == pytest.approx(0, abs=1e-9)
    assert (found.row("small", "nothing").mean("distance") or 0) > 1e-4


def test_the_ridge_of_the_removal_alone(bench: Bench) -> None:
    found = bench(methods=["fedremoval"], model={"removal_ridge": 1.0})
    usual = bench(methods=["fedremoval"])
    assert found.row("small", "retrain").mean("distance") == 0  # what all are measured by is not touched
    assert found.row("small", "fedremoval").mean("distance") != usual.row("small", "fedremoval").mean("distance")


def test_computed_once_and_written_to_the_same_bytes(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of(merged(SMALL, {"methods": ["fedremoval"], "seeds": [3], "tune": {"budget": 2}}))
    first = BenchRun(experiment, BenchPlace(shelf))
    assert first.estimate().missing
    first.run()
    write(result_of(first), tmp_path / "one")
    monkeypatch.setattr(cells, "_measured", None)  # whoever computes again fails
    second = BenchRun(experiment, BenchPlace(shelf))
    assert second.estimate().missing == 0
    second.run()
    write(result_of(second), tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert {"result.json", "tables.md", "tables.csv", "tables.tex", "bars-small.svg", "bars-small.png"} <= set(
        tree(tmp_path / "one")
    )


@dataclass(frozen=True)
class Planted:
    """A method that does what a test wants."""

    name: ClassVar[str] = "planted"
    needs: ClassVar[tuple[Any, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[frozenset[str]] = frozenset()
    tunable: ClassVar[dict[str, tuple[Any, ...]]] = {"how": ("nan", "same", "fail", "best"), "more": (0.0, 1.0)}

    how: str = "nan"
    more: float = 0.0

    def unlearn(self, removal: Any) -> Any:
        """A wrong answer, or retraining's."""
        if self.how == "fail":
            raise RuntimeError("a bug of its own")
        if self.how == "best":
            found = registry.methods.get("retrain-fedavg")().unlearn(removal)
            return removal.finish(self, params=found.trained_after.params)
        return removal.finish(self, params=removal.params * (np.nan if self.how == "nan" else 1.0))


def test_failures_stand_in_the_table_with_their_sentence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.methods._registered, "planted", Planted)
    found = bench(methods=["planted", "planted:nan", "planted:same", "planted:fail"])
    assert found.row("small", "planted:nan").errors == found.row("small", "planted").errors  # one cell, two lines
    told = {row.method: row.errors for row in found.failed if row.method.startswith("planted")}
    assert told["planted"] == ("Unlearning by planted must end in finite parameters. Nothing was changed.",)
    assert "gave the old head back" in told["planted:same"][0]
    assert told["planted:fail"][0].startswith("RuntimeError: a bug of its own (test_running.py:")


@pytest.mark.parametrize("aim", ["oracle", "blind"])
def test_tuning_takes_the_best_of_an_equal_budget(
    bench: Bench, shelf: Path, aim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.methods._registered, "planted", Planted)
    changes: dict[str, Any] = {"methods": ["planted"], "tune": {"budget": 8, "aim": aim}, "seeds": [0, 1]}
    found = bench(**changes)
    left = BenchRun(experiment_of(merged(SMALL, changes)), BenchPlace(shelf)).estimate()
    assert left.missing == 0  # what was chosen is looked for, not the defaults
    row = found.row("small", "planted")
    assert row.spec.startswith("planted:best")
    assert row.mean("distance_fedavg") == pytest.approx(0, abs=1e-12)
    [line] = [one for one in found.plain["lines"] if one["method"] == "planted"]
    assert len(line["tried"]) == 8
    assert row.means["accuracy"].seeds == 2


def test_trials_begin_with_what_was_asked_and_are_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.methods._registered, "planted", Planted)
    assert trials("planted", 1) == ("planted",)
    assert trials("planted", 3) == trials("planted", 4)[:3]
    assert trials("planted", 99)[0] == "planted"
    assert len(set(trials("planted", 99))) == 8
    assert set(trials("planted:same", 99)) == {"planted:same", "planted:same,more=1.0"}
    assert best({"a": None, "b": 0.2, "c": 0.1, "d": 0.1}) == "c"


@pytest.mark.slow
def test_processes_give_what_one_process_gives(shelf: Path, tmp_path: Path) -> None:
    experiment = experiment_of(merged(SMALL, {"methods": ["fedremoval"], "seeds": [4]}))
    many, alone = BenchRun(experiment, BenchPlace(shelf)), BenchRun(experiment, BenchPlace(tmp_path))
    many.run(jobs=2)
    alone.run()
    timed = ("seconds", "training_seconds")

    def numbers(run: BenchRun) -> list[dict[str, Any]]:
        lines = result_of(run).plain["lines"]
        every = [cell["numbers"] for line in lines for cell in line["cells"] if "numbers" in cell]
        return [{name: value for name, value in one.items() if name not in timed} for one in every]

    assert numbers(many) == numbers(alone)


def test_measures_that_are_asked_for(bench: Bench) -> None:
    metrics = ["utility", "distance", "divergence", "clients", "membership", "certified", "relearn", "shadows"]
    found = bench(
        methods=["fedremoval"], metrics=metrics, shadows=8, model={"trainer": "fedavg:rounds=4,local_steps=5"}
    )
    nothing, exact, step = (found.row("small", name) for name in ("nothing", "exact", "fedremoval"))
    fedavg = found.row("small", "retrain-fedavg")
    assert all(not row.errors for row in (nothing, exact, step, fedavg))
    assert exact.mean("certified") == 1
    assert fedavg.mean("tow") == 1
    assert fedavg.mean("js") == pytest.approx(0, abs=1e-12)
    assert fedavg.mean("klom") == fedavg.mean("klom_floor")
    assert (nothing.mean("klom") or 0) > (nothing.mean("klom_floor") or 0)
    assert (nothing.mean("js") or 0) > 0
    assert nothing.mean("relearn_rounds") == 0
    assert (fedavg.mean("relearn_rounds") or 0) > 0
    assert 0 <= (step.mean("ulira_auc") or -1) <= 1
    assert (nothing.mean("rmia_auc") or 0) > (fedavg.mean("rmia_auc") or 1)


def test_time_is_estimated_by_what_cells_alike_took(shelf: Path) -> None:
    def run(*seeds: int) -> BenchRun:
        made = experiment_of(merged(SMALL, {"methods": ["fedremoval"], "seeds": list(seeds)}))
        return BenchRun(made, BenchPlace(shelf))

    run(11).run()
    before = run(11, 12).estimate().seconds
    for path in (shelf / "bench" / "cells").rglob("*.json"):
        cell = json.loads(path.read_text())
        if (cell["method"], cell["seed"]) == ("fedremoval", 11):
            path.write_text(json.dumps({**cell, "cpu_seconds": 1000.0}))
    assert 990 < run(11, 12).estimate().seconds - before < 1000


def test_interrupted_twice_it_goes_on_where_it_was(tmp_path: Path, shelf: Path) -> None:
    experiment = experiment_of(merged(SMALL, {"methods": ["fedremoval"], "seeds": [8]}))
    computed: list[str] = []

    def stop_after(number: int) -> None:
        def look(done: int, total: int, what: str) -> None:
            computed.append(what)
            if done == number:
                raise KeyboardInterrupt

        run = BenchRun(experiment, BenchPlace(shelf))
        left.append(run.estimate().missing)
        run.run(look=look)

    left: list[int] = []
    for number in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            stop_after(number)
    whole = BenchRun(experiment, BenchPlace(shelf))
    left.append(whole.estimate().missing)
    whole.run()
    assert [left[0] - one for one in left] == [0, 2, 4]
    straight = BenchRun(experiment, BenchPlace(tmp_path))
    straight.run()
    ours, theirs = (one.cells[("small", "fedremoval", 8)]["numbers"] for one in (whole, straight))
    assert ours["distance"] == theirs["distance"]


def test_a_scenarios_retrainings_are_not_computed_again(
    bench: Bench, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wanted: what calling the method gives. A cell that looks at more than parameters calls it all the same."""
    changes = {"methods": ["cf"], "seeds": [9]}
    run = BenchRun(experiment_of(merged(SMALL, changes)), BenchPlace(shelf))
    scenario = cells.opened(run.place, run.lines()[0].keys[0])
    for name in ("retrain", "retrain-fedavg"):
        called, kept = forgetting.unlearned(scenario, name), scenario.retrained[name]
        np.testing.assert_array_equal(kept.params, called.params)
        assert kept.facts == called.facts
        assert replace(kept.cost, seconds=0.0) == replace(called.cost, seconds=0.0)
    asked: list[str] = []

    def noted(scenario: Any, spec: str) -> Any:
        asked.append(spec)
        return forgetting.unlearned(scenario, spec)

    monkeypatch.setattr(cells, "unlearned", noted)
    bench(**changes)
    assert "cf" in asked
    assert not {"retrain", "retrain-fedavg"} & set(asked)
    bench(**changes, metrics=["distance", "certified"])
    assert "retrain" in asked


def test_rows_are_certified_from_the_rounds_where_a_gradient_certifies_few(bench: Bench) -> None:
    metrics = ["distance", "certified", "certified-rounds"]
    found = bench(methods=["fedremoval-pcg", "fedremoval-line"], metrics=metrics)
    rounds, line, exact = (found.row("small", name) for name in ("fedremoval-pcg", "fedremoval-line", "exact"))
    assert (rounds.mean("certified_plain") or 0) < 1 / 7
    assert (rounds.mean("certified_rounds") or 0) > 1 / 2
    assert "certified_rounds" not in line.means  # it keeps no products
    assert exact.mean("certified_plain") == 1


def test_the_curvature_that_a_step_needs(bench: Bench, shelf: Path) -> None:
    changes = {"methods": ["exact"], "metrics": ["curvature"], "model": {"trainer": "closed-form"}}
    found = {share: bench(**changes, clients={"server_share": share}).row("small", "exact") for share in (0.05, 0.6)}
    for name in ("curvature_error", "step_error"):
        assert (found[0.6].mean(name) or 9) < (found[0.05].mean(name) or 0)
    run = BenchRun(experiment_of(merged(SMALL, {**changes, "clients": {"server_share": 0.6}})), BenchPlace(shelf))
    scenario = cells.opened(run.place, run.lines()[0].keys[0])
    parts = scenario.rows.partition
    [gone] = scenario.everything.clients
    kept = np.concatenate([rows for name, rows in parts.clients.items() if name != gone])
    curvatures = []
    for rows in (kept, parts.server):
        own = scenario.rows.embeddings.embeddings[rows].astype(float)
        seen = np.hstack([own, np.ones((len(own), 1))])
        curvatures.append(seen.T @ seen / len(own))
    whole, server = curvatures
    apart = linalg.eigh(server - whole, whole + 0.001 * np.eye(len(whole)), eigvals_only=True)
    assert found[0.6].mean("curvature_error") == pytest.approx(float(abs(apart).max()), rel=1e-6)
    for name, one in (("vhv", whole), ("vhv_server", server)):
        v = np.random.Generator(np.random.PCG64([0, VECTOR_STREAM])).standard_normal(len(one))
        assert found[0.6].mean(name) == pytest.approx(v @ one @ v, rel=1e-6)


def test_a_pair_of_trainer_and_method_in_a_setting_that_its_budget_allows(bench: Bench) -> None:
    found = bench(
        methods=["guo"],
        poison={"trigger": ""},
        data={"rows": None, "test_rows": None},
        request={"what": "samples", "size": 1},
        model={"trainer": "guo:ridge=10.0", "options": {"view": "l2"}},
    )
    row = found.row("small", "guo")
    assert row.errors == ()
    assert row.facts["statement"].startswith("(1, 0.0001)-certified removal")
    assert row.facts["statement"] in markdown(found)
