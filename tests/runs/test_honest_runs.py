"""Honest runs of random rows and options: whatever was trained and forgotten, nothing is false."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import EmbeddingSet, Run
from probekit.errors import ProbekitError
from tests.runs.examples import make_run

OPTIONS: list[dict[str, Any]] = [
    {},
    {"ridge": 1e-3},
    {"ridge": 0.1, "intercept": "penalized"},
    {"ridge": 0.1, "intercept": "penalized", "keep": "nothing"},
    {"intercept": "penalized"},
    {"normalize": "l2"},
    {"keep": "nothing"},
    {"keep": "statistics,gradients", "ridge": 0.01, "server_share": 0.2},
    {"head": "logistic", "C": 1.0},
    {"head": "logistic", "ridge": 0.01, "keep": "nothing"},
    {"head": "logistic", "C": 0.1, "normalize": "l2"},
    {"method": "fedavg:rounds=3,epochs=1", "ridge": 0.1, "keep": "statistics"},
    {"method": "fedavg:rounds=2", "keep": "history", "head": "logistic", "ridge": 0.1},
]
METHODS = ("auto", "auto", "exact", "retrain", "fedremoval", "rounds:1e-3")


def random_rows(random: np.random.Generator, count: int, width: int, scale: float) -> EmbeddingSet:
    """Classes or targets; rows that are few, far from zero, repeated, or constant in a column."""
    rows = random.normal(size=(count, width)) + random.choice([0, 1, 5]) * random.normal(size=width)
    rows *= scale
    if random.random() < 0.2:
        rows[:, 0] = rows[0, 0]
    if random.random() < 0.2:
        rows[count // 2 :] = rows[: count - count // 2]
    dtype = random.choice(["float32", "float64", "float16"])
    labels = random.integers(0, 3, count)
    labels[:3] = np.arange(3)
    patients = [str(value) for value in random.integers(0, 9, count)]
    targets = random.normal(size=(count, 2)) if random.random() < 0.15 else None
    return EmbeddingSet.from_numpy(
        rows.astype(dtype), None if targets is not None else labels, targets=targets,
        columns={"patient": patients}
    )  # fmt: skip


def exit_codes(seed: int, root: Path) -> list[int]:
    """Of a run, after a request, and after an erasure; nothing where a step is refused."""
    random = np.random.default_rng(seed)
    options = dict(OPTIONS[seed % len(OPTIONS)])
    count = int(random.integers(25, 200))
    width = int(random.integers(2, 24))
    scale = float(random.choice([1e-2, 1.0, 30.0]))
    rows = random_rows(random, count, width, scale)
    codes = []
    try:
        run = make_run(root / "run", rows, clients=int(random.integers(2, 6)), test=None, **options)
        codes.append(run.verify(fingerprint=run.fingerprint).exit_code)
        leaving = str(random.choice(list(run.newest.rows.counts())))
        request = {"client": leaving} if random.random() < 0.6 else {"where": "patient=3"}
        run.unlearn(**request, method=str(random.choice(METHODS)))
        codes.append(run.verify(fingerprint=run.fingerprint).exit_code)
        leaving = str(random.choice(list(run.newest.rows.counts())))
        run.erase(client=leaving)
        codes.append(Run(run.folder, cache=run.cache).verify().exit_code)
    except ProbekitError:  # a method that is not possible here, or too few rows
        pass
    return codes


@pytest.mark.parametrize("seed", range(26))
def test_nothing_is_false(tmp_path: Path, seed: int) -> None:
    assert set(exit_codes(seed, tmp_path)) <= {0, 7}


@pytest.mark.slow
def test_nothing_of_many_more_is_false(tmp_path: Path) -> None:
    found = Counter(
        code for seed in range(100, 500) for code in exit_codes(seed, tmp_path / str(seed))
    )
    assert found[6] == 0
    assert found[0] > found[7] > 0
    assert found.total() > 800
