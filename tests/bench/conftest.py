"""A small experiment on digits, and where it is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit.bench.cells import BenchPlace
from probekit.bench.reading import experiment_of, merged
from probekit.bench.results import BenchResult, result_of
from probekit.bench.running import BenchRun

SMALL: dict[str, Any] = {
    "name": "small",
    "seeds": [0],
    "data": {"set": "digits", "backbone": "pixels:8", "rows": 500, "test_rows": 200},
    "poison": {"trigger": "square:size=2"},
    "model": {"ridge": 0.001, "trainer": "fedavg:rounds=20,local_steps=5"},
}

Bench = Callable[..., BenchResult]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all experiments here share: pictures are encoded once."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture
def bench(shelf: Path) -> Bench:
    """The outcome of the small experiment with changes."""

    def run(**changes: Any) -> BenchResult:
        work = BenchRun(experiment_of(merged(SMALL, changes)), BenchPlace(shelf))
        work.run()
        return result_of(work)

    return run
