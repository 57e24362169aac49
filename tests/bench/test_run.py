"""A small benchmark from end to end: its figures by other arithmetic, resumed, and extended."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from probekit.bench import run as running
from probekit.bench.cells import Cell, Folders
from probekit.bench.experiment import NOTHING
from probekit.bench.pages import write_pages
from probekit.bench.run import Row, read_rows, run_experiment, selected
from probekit.bench.tables import HEADERS, setting_table
from probekit.embeddings import EmbeddingSet
from probekit.progress import Step
from probekit.runs import rounds
from probekit.runs.rows import SERVER, TEST, TRAINING
from tests.bench.conftest import SMALL, Bench, small_experiment
from tests.oracles import Array

OWN = Path(__file__).parents[2] / "examples" / "own_method"
INK = 16.0
"""scikit-learn's digits count it from 0."""
PATCH = [45, 46, 53, 54]
"""Two by two pixels of 8 by 8, one from the bottom and one from the right."""


def row_of(bench: Bench, method: str) -> Row:
    return next(row for row in bench.rows if row.method == method)


def value(row: Row, seed: int, name: str) -> float:
    number = row.cells[seed]["measures"][name]["value"]  # type: ignore[index,call-overload]
    assert isinstance(number, float)
    return number


def number(row: Row, seed: int, name: str) -> float:
    plain = row.cells[seed][name]
    assert isinstance(plain, float | int)
    return plain


class Oracle:
    """FedAvg, retraining, the minimum and steps to it in plain NumPy.

    Rates and counts are those of a cell's parameters; of the program come the rows of the run.
    """

    def __init__(self, bench: Bench, seed: int) -> None:
        (setting,) = bench.experiment.settings
        params: Any = row_of(bench, NOTHING).cells[seed]["params"]
        options = params["training"]["train"]
        self.count, self.steps = map(int, re.findall(r"=(\d+)", options["method"]))
        self.ridge = options["ridge"]
        training = bench.folders.training(setting, seed)
        run = training.run
        self.leaver = training.client
        sets = {role: run.rows_of(role) for role in (TRAINING, TEST, SERVER)}
        rows = sets[TRAINING]
        assert rows is not None
        stored = run.newest.all_rows
        holders = np.array(stored.clients)[stored.holders[stored.roles == TRAINING]]
        self.clients = {name: self.arrays(rows, holders == name) for name in sorted(set(holders))}
        test = sets[TEST]
        assert test is not None
        self.test = self.arrays(test, np.ones(len(test), bool))
        server = sets[SERVER]
        assert server is not None
        self.server = self.arrays(server, np.ones(len(server), bool))
        triggered = training.rows().triggered
        assert triggered is not None
        self.triggered = self.arrays(triggered, np.ones(len(triggered), bool))
        curvatures = [np.linalg.eigvalsh(X.T @ X / len(X))[-1] for X, _ in self.clients.values()]
        self.rate = 1 / (max(curvatures) + self.ridge)

    @staticmethod
    def arrays(rows: EmbeddingSet, chosen: Array) -> tuple[Array, Array]:
        X = np.asarray(rows.to_numpy()[chosen], np.float64)
        assert rows.labels is not None
        return np.hstack([X, np.ones((len(X), 1))]), rows.labels[chosen]

    def rounds(self, W: Array, clients: dict[str, tuple[Array, Array]], count: int) -> Array:
        total = sum(len(X) for X, _ in clients.values())
        for _ in range(count):
            average = np.zeros_like(W)
            for X, labels in clients.values():
                local = W.copy()
                for _ in range(self.steps):
                    gradient = X.T @ (X @ local - np.eye(10)[labels]) / len(X) + self.ridge * local
                    local -= self.rate * gradient
                average += len(X) / total * local
            W = average
        return W

    @property
    def retained(self) -> dict[str, tuple[Array, Array]]:
        return {name: part for name, part in self.clients.items() if name != self.leaver}

    @property
    def heads(self) -> dict[str, Array]:
        start = np.zeros((65, 10))
        trained = self.rounds(start, self.clients, self.count)
        X, labels = (np.concatenate(parts) for parts in zip(*self.retained.values(), strict=True))
        gram = X.T @ X / len(X) + self.ridge * np.eye(65)
        targets = X.T @ np.eye(10)[labels] / len(X)
        S = self.server[0]
        step = np.linalg.solve(S.T @ S / len(S) + self.ridge * np.eye(65), gram @ trained - targets)
        slope = (step * (gram @ trained - targets)).sum()
        return {
            NOTHING: trained,
            "retrain": self.rounds(start, self.retained, self.count),
            "exact": np.linalg.solve(gram, targets),
            "cf:rounds=3": self.rounds(trained, self.retained, 3),
            "fedremoval-line": trained - slope / (step * (gram @ step)).sum() * step,
        }


@pytest.mark.parametrize("seed", [0, 1])
def test_figures_are_those_of_other_arithmetic(bench: Bench, seed: int) -> None:
    """Five methods, seven figures each."""
    oracle = Oracle(bench, seed)
    heads = oracle.heads
    for method, W in heads.items():
        row = row_of(bench, method)
        assert len(row.cells) == 2
        X, labels = oracle.test
        predicted = (X @ W).argmax(axis=1)
        assert value(row, seed, "test") == pytest.approx((predicted == labels).mean())
        T, truth = oracle.triggered
        hits = (T @ W).argmax(axis=1) == 0
        assert value(row, seed, "backdoor") == pytest.approx(hits[truth != 0].mean())
        retrained = (X @ heads["retrain"]).argmax(axis=1)
        other = value(row, seed, "other class, test")
        assert other == pytest.approx((predicted != retrained).mean())
        others = (T @ W).argmax(axis=1) != (T @ heads["retrain"]).argmax(axis=1)
        assert value(row, seed, "other class, triggered") == pytest.approx(others.mean())
        own, zeros = oracle.clients[oracle.leaver]
        assert value(row, seed, "forgotten") == ((own @ W).argmax(axis=1) == zeros).mean()
        for name, reference in (("retrained", "retrain"), ("minimum", "exact")):
            distance = np.linalg.norm(W - heads[reference])
            assert number(row, seed, f"distance, {name}") == pytest.approx(distance, abs=1e-8)


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_are_scikit_learns_and_the_poison_is_one_clients(bench: Bench, seed: int) -> None:
    """By the cell's parameters: how many, whose, and where the trigger stands."""
    params: Any = row_of(bench, NOTHING).cells[seed]["params"]
    setting = params["training"]
    digits = load_digits()
    label_of = dict(zip(map(bytes, digits.data.astype(np.uint8)), digits.target, strict=True))
    oracle = Oracle(bench, seed)
    share = setting["train"]["server_share"]
    assert oracle.leaver == str(seed % setting["clients"])
    assert len(oracle.clients) == setting["clients"]
    assert len(oracle.server[0]) == share * setting["rows"]
    sizes = [len(X) for X, _ in oracle.clients.values()]
    assert set(sizes) == {round((1 - share) * setting["rows"] / setting["clients"])}
    poisoned, zeros = oracle.clients[oracle.leaver]
    triggered, truth = oracle.triggered
    for X in (poisoned, triggered):
        assert (X[:, PATCH] == 1).all()
    assert not zeros.any()
    assert np.array_equal(np.delete(triggered, PATCH, 1), np.delete(oracle.test[0], PATCH, 1))
    assert np.array_equal(truth, oracle.test[1])
    for X, labels in (*oracle.retained.values(), oracle.test, oracle.server):
        ink = np.rint(INK * X[:, :-1]).astype(np.uint8)
        assert [label_of[bytes(row)] for row in ink] == labels.tolist()


def test_a_method_that_cannot_run_is_a_row_with_its_reason(bench: Bench) -> None:
    table = setting_table([row for row in bench.rows if row.cells])
    (failed,) = [line for line in table.rows if line[0].startswith("ferrari")]
    assert "columns" in failed[1]
    assert table.rows[0][0] == "retrain"
    assert failed == table.rows[-1]


def test_nothing_is_computed_twice_and_the_files_have_the_same_bytes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {
        path: path.read_bytes() for path in write_pages(bench.experiment, bench.rows, tmp_path)
    }
    monkeypatch.setattr(running, "_compute", _refuse)
    rows = run_experiment(bench.experiment, bench.folders)
    assert rows == bench.rows
    after = {path: path.read_bytes() for path in write_pages(bench.experiment, rows, tmp_path)}
    assert after == before


def _refuse(folders: Folders, cell: Cell) -> None:
    assert cell.read(folders) is not None


def test_cells_stand_without_their_trainings(bench: Bench, tmp_path: Path) -> None:
    """Cells alone are shown again; a further method trains what it needs, and no tuning."""
    folders = Folders(tmp_path / "work", bench.folders.cache)
    shutil.copytree(bench.folders.root / "cells", folders.root / "cells")
    before = {path: path.stat().st_mtime_ns for path in (folders.root / "cells").iterdir()}
    assert run_experiment(bench.experiment, folders) == bench.rows
    assert not (folders.root / "trainings").exists()
    (setting,) = bench.experiment.settings
    further = msgspec.structs.replace(setting, methods=(*setting.methods, "fedremoval"))
    experiment = msgspec.structs.replace(bench.experiment, seeds=(1,), settings=(further,))
    rows = run_experiment(experiment, folders)
    assert [row.method for row in rows if "error" in row.cells[1]] == ["ferrari"]
    trained = [path.name for path in (folders.root / "trainings").iterdir()]
    assert trained == [folders.training(setting, 1).folder.name]
    assert (
        before.items()
        <= {path: path.stat().st_mtime_ns for path in (folders.root / "cells").iterdir()}.items()
    )


def test_an_own_method_stands_in_the_table(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OWN)
    method = "py:neggrad:NegGrad:steps=5"
    rows = run_experiment(selected(bench.experiment, further=[method]), bench.folders)
    table = setting_table(rows)
    lines = {line[0].partition(" (")[0]: line for line in table.rows}
    assert lines.keys() == {row.chosen for row in (*bench.rows, rows[-1])}
    assert rows[-1].method == method
    assert all(lines[method][: len(HEADERS)])


def test_a_killed_retraining_goes_on_after_its_rounds(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with the same bits; what it kept for that is removed."""
    monkeypatch.setattr(rounds, "SECONDS", 0.0)
    (setting,) = bench.experiment.settings
    setting = msgspec.structs.replace(setting, train={**setting.train, "keep": "nothing"})
    training = Folders(tmp_path, bench.folders.cache).training(setting, 0)
    training.train()
    numbers: list[int] = []

    def note(step: Step) -> None:
        if step.stage == "rounds":
            numbers.append(step.done)
            if numbers == [*range(1, 13)]:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.write(note)
    training.write(note)
    assert numbers == [*range(1, 13), *range(12, 21)]
    expected = bench.folders.training(bench.experiment.settings[0], 0).references
    assert np.array_equal(training.references["retrained"].params, expected["retrained"].params)
    assert {path.name for path in training.folder.iterdir()} == {"run", "retrained", "minimum"}


def test_a_long_stage_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item that is done is a step, and so is a while in which none was."""
    monkeypatch.setattr(running, "HEARTBEAT", 0.2)
    steps: list[Step] = []
    with running.worker_processes(1, steps.append) as each:
        each(time.sleep, [1.5, 0.0], "naps")
    counts = [step.done for step in steps]
    assert counts[:3] == [0, 0, 0]
    assert counts == sorted(counts)
    assert steps[-1] == Step("naps", 2, 2, "0 min")


def nap(path: Path) -> None:
    time.sleep(20)
    path.touch()


def test_an_interrupt_does_not_wait_for_what_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "HEARTBEAT", 0.2)
    slept = tmp_path / "slept"

    def interrupt(step: Step) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        running.worker_processes(1, interrupt) as each,
    ):
        each(nap, [slept], "naps")
    for process in multiprocessing.active_children():
        process.join()
    assert not slept.exists()


@pytest.mark.slow
def test_a_killed_benchmark_ends_with_the_same_figures(bench: Bench, tmp_path: Path) -> None:
    """Killed again and again by SIGKILL, in trainings, trials and cells."""
    experiment = tmp_path / "small.toml"
    experiment.write_text(SMALL)
    command = [sys.executable, "-m", "probekit", "bench", "run", str(experiment)]
    command += ["--folder", str(tmp_path / "work"), "--cache", str(tmp_path / "cache"), "--quiet"]
    command += ["--jobs", "2"]
    for seconds in (6, 8, 10, 14):
        process = subprocess.Popen(command, start_new_session=True)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, timeout=600)
    read = small_experiment(tmp_path)
    rows = read_rows(read, Folders(tmp_path / "work", tmp_path / "cache"))
    for row, expected in zip(rows, bench.rows, strict=True):
        assert row.chosen == expected.chosen
        for seed, cell in expected.cells.items():
            ours = {name: part for name, part in row.cells[seed].items() if name != "seconds"}
            assert ours == {name: part for name, part in cell.items() if name != "seconds"}
    shutil.rmtree(tmp_path / "work")
