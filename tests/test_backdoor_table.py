"""The table of methods against one poisoned client, on small made-up rows."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.federated.message import Ask
from probekit.models.serving import predict
from tests.unlearning.conftest import embedding_set

SCRIPT = Path(__file__).parent.parent / "examples" / "05_backdoor_table.py"
SHARES = (0.05, 0.2)
METHODS = ("fedremoval", "fedremoval:f2l2", "fedremoval-line", "fedremoval-pcg:1", "fedremoval-pcg:25")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("backdoor_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["backdoor_table"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sets(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Clean and triggered sets: the trigger moves every embedding along one direction."""
    store = DiskStore(tmp_path_factory.mktemp("cache"))
    every = embedding_set(900, 12, 4)
    moved = every.to_numpy() + 6.0 * np.eye(12)[-1]
    pasted = replace(every, spec=replace(every.spec, trigger="square:test"), embeddings=moved)
    for part, rows in zip(("train", "test"), np.split(np.arange(900), [600]), strict=True):
        for ending, one in (("", every), ("-triggered", pasted)):
            found = one.select(rows)
            store.save(found.spec, found.ids, found.to_numpy())
            store.sets.give_name(f"made-{part}{ending}", store.seal(found).digest)
    return script.Sets.opened(store, "made")


@pytest.fixture(scope="module")
def case(script: ModuleType, sets: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return script.make_case(
        sets, tmp_path_factory.mktemp("runs"), clients=4, share=max(SHARES), view="raw", ridge=1e-3, rounds=5
    )


@pytest.fixture(scope="module")
def rows(script: ModuleType, case: Any) -> list[Any]:
    return list(script.rows_of(case, SHARES, alone=script.ALONE, by_server=METHODS))


def test_only_the_last_client_is_poisoned(case: Any, sets: Any) -> None:
    bad = case.partition.clients["3"]
    rest = np.setdiff1d(np.arange(600), bad)
    assert (case.embeddings.labels[bad] == 0).all()
    assert np.array_equal(case.embeddings.to_numpy()[bad], sets.train_triggered.to_numpy()[bad])
    assert np.array_equal(case.embeddings.to_numpy()[rest], sets.train.to_numpy()[rest])
    assert np.array_equal(case.embeddings.labels[rest], sets.train.labels[rest])


def test_smaller_server_sets_are_fair_parts_of_the_largest(script: ModuleType, case: Any) -> None:
    small, large = (script.server_set(case, share) for share in SHARES)
    assert (len(small.rows), len(large.rows)) == (30, 120)
    assert set(small.rows) < set(large.rows) == set(case.partition.server)
    counts = np.bincount(case.embeddings.labels[small.rows], minlength=4)
    assert counts.max() - counts.min() <= 1
    block = case.embeddings.to_numpy()[small.rows]
    assert np.allclose(small.statistics.gram[:-1, :-1], block.T @ block)
    with pytest.raises(InputError, match="smaller share"):
        script.server_set(case, 0.5)


def test_every_method_has_its_row(rows: list[Any]) -> None:
    wanted: list[tuple[str, int | None]] = [
        ("before", None),
        ("exact", None),
        ("retrain", None),
        ("retrain-fedavg", None),
    ]
    wanted += [(name, number) for number in (30, 120) for name in METHODS]
    assert [(row.method, row.server_rows) for row in rows] == wanted


def test_exact_removal_is_retraining_and_the_backdoor_goes(rows: list[Any]) -> None:
    before, exact, retrained = rows[:3]
    assert before.backdoor_others > 0.6
    assert retrained.backdoor_others < 0.5
    assert retrained.distance == 0
    assert exact.distance < 1e-10
    seen = ("accuracy", "backdoor_all", "backdoor_others", "certified")
    assert [getattr(exact, name) for name in seen] == [getattr(retrained, name) for name in seen]
    assert exact.certified > 0.99
    assert (exact.up, exact.down) == (0, 0)


def test_rounds_bring_the_head_to_retraining(rows: list[Any]) -> None:
    by_name = {(row.method, row.server_rows): row for row in rows}
    for number in (30, 120):
        assert by_name["fedremoval-pcg:25", number].distance < 1e-6
        assert by_name["fedremoval-pcg:25", number].certified > 0.99
    assert by_name["fedremoval", 120].distance < by_name["before", None].distance


def test_what_is_sent_is_counted(case: Any, rows: list[Any]) -> None:
    sent = {row.method: (row.up, row.down, row.rounds) for row in rows if row.server_rows != 30}
    params = {"params": case.trained.params}
    about: dict[str, Any] = {"problem": case.trained.problem.digest, "job": "", "number": 1}
    down = 3 * Ask("gradient", params, **about).size  # the parameters to three retained clients
    up = sum(one.size for one in case.online.ask("gradient", params).each())
    assert up == pytest.approx(3 * 13 * 4 * 8, rel=0.5)
    near = partial(pytest.approx, abs=30)  # a question says its number, of one digit or two
    assert sent["fedremoval"] == sent["fedremoval:f2l2"] == (up, near(down), 1)
    line = sent["fedremoval-line"]
    assert up < line[0] < up + 3 * 200
    assert line[1:] == (near(down + 3 * Ask("form", params, **about).size), 2)
    assert sent["fedremoval-pcg:1"] == (3 * up, near(3 * down), 3)
    statistics = sum(one.size for one in case.online.ask("statistics").each())
    assert statistics == pytest.approx(3 * 8 * (13 * 14 // 2 + 13 * 4 + 4), rel=0.5)
    assert sent["retrain"] == (statistics, 3 * Ask("statistics", **about).size, 1)
    assert sent["retrain-fedavg"][0] > 5 * up
    assert sent["retrain-fedavg"][2] == 1 + 5 + 2  # the rate, the rounds, the residual at both ends


def test_no_more_is_certified_than_is_true(script: ModuleType, case: Any, sets: Any, rows: list[Any]) -> None:
    truth = predict(case.retrained.trained_after.head, sets.test)
    for number, share in enumerate(SHARES):
        server = script.server_set(case, share)
        for row in rows[4 + number * len(METHODS) :][: len(METHODS)]:
            head = script.forget(case, row.method, server=server).trained_after.head
            agreed = float((predict(head, sets.test) == truth).mean())
            assert row.certified_by_gradient <= row.certified <= agreed


def test_the_table_reads_as_markdown(script: ModuleType, case: Any, rows: list[Any]) -> None:
    lines = script.markdown(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert {line.count("|") for line in lines} == {len(script.COLUMNS) + 1}
    assert "| exact |  |" in lines[3]
    told = script.preamble(case, "made-up", SHARES)
    assert "480 rows of 12 numbers, 120 of them poisoned; ridge 0.001" in told
    assert "Server set of 5%: 30 rows, effective dimension 13: too few for one step." in told
    assert "Server set of 20%: 120 rows, effective dimension 13: enough for one step." in told


def test_the_script_reads_sets_by_name(
    script: ModuleType, sets: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--datasets made --clients 3 --server-shares 0.1 --methods fedremoval-line --rounds 2 --view raw --json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--cache", str(sets.store.root), *flags.split()])
    script.main()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["method"] for one in told] == ["before", "exact", "retrain", "retrain-fedavg", "fedremoval-line"]
    assert {(one["dataset"], one["clients"]) for one in told} == {("made", 3)}
    assert told[-1]["server_rows"] == 60
