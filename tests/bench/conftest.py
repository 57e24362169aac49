"""A small experiment on digits, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from probekit.bench.cells import Folders
from probekit.bench.experiment import Experiment, read_experiment
from probekit.bench.run import Row, run_experiment

SMALL = """
title = "Small"
seeds = [0, 1]
tune = 2

[[settings]]
name = "few digits"
data = "packaged:digits"
backbone = "pixels:8"
rows = 300
test_rows = 150
clients = 4
trigger = "square:size=2"
published = "full_parameter.mnist"
methods = ["exact", "retrain", "fedremoval-line", "cf:rounds=3", "ferrari"]

[settings.train]
ridge = 0.01
intercept = "penalized"
method = "fedavg:rounds=20,steps=3"
server_share = 0.2
"""


@dataclass(frozen=True)
class Bench:
    experiment: Experiment
    folders: Folders
    rows: list[Row]


def small_experiment(folder: Path) -> Experiment:
    path = folder / "small.toml"
    path.write_text(SMALL)
    return read_experiment(str(path))


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("bench")
    folders = Folders(root / "work", root / "cache")
    experiment = small_experiment(root)
    return Bench(experiment, folders, run_experiment(experiment, folders))
