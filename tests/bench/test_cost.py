"""A product's cost with the server's rows, and with those of all retained clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from probekit.bench.cells import Folders
from probekit.bench.cost import RETAINED, SERVER, product_costs
from probekit.bench.training import Training
from probekit.errors import InputError, SolverError
from probekit.registry import configured
from probekit.unlearning.removal import unlearn
from tests.bench.conftest import Bench

TRAIN = {"network": "mlp:16", "server_share": 0.2}
LINEARIZED = {**TRAIN, "ridge": 0.01, "pretrain_epochs": 1}
CONVENTIONAL = {**TRAIN, "linearize": False, "method": "fedavg:rounds=1,rate=0.01"}


def trained(bench: Bench, train: dict[str, Any], folder: Path) -> Training:
    (setting,) = bench.experiment.settings
    network = msgspec.structs.replace(setting, train=train)
    training = Folders(folder, bench.folders.cache).training(network, 0)
    training.train()
    return training


def test_a_product_costs_its_rows_and_a_round_of_the_retained_clients(
    bench: Bench, tmp_path: Path
) -> None:
    training = trained(bench, LINEARIZED, tmp_path)
    measured = product_costs(training)
    costs = measured["product"]
    assert isinstance(costs, dict)
    server: Any = costs[SERVER]
    retained: Any = costs[RETAINED]
    counts = training.run.newest.all_rows.counts()
    rows = sum(counts.values()) - counts[training.client]
    assert (server["rows"], server["rounds"], server["bytes"]) == (60, 0, 0)
    assert (retained["rows"], retained["rounds"]) == (rows, 1)
    assert retained["GFLOP"] / server["GFLOP"] == pytest.approx(rows / 60)
    weights = (64 + 1) * 16 + (16 + 1) * 10
    clients = len(counts) - 1
    assert retained["bytes"] >= clients * 3 * 4 * weights  # parameters, a vector, the product
    steps = measured["products of a step"]
    solver = f"fedremoval:cg,tolerance=1e-6,steps={steps}"  # one less does not reach it
    removal = training.removal()
    unlearn(configured(solver), removal)
    with pytest.raises(SolverError, match="1e-06"):
        unlearn(configured(solver.replace(f"{steps}", f"{int(str(steps)) - 1}")), removal)
    # forward twice and back twice, but from the first layer no further back
    assert server["GFLOP"] >= 2 * 60 * 3 * (64 * 16 + 16 * 10) / 1e9
    assert server["GFLOP"] <= 2 * 60 * 6 * (64 * 16 + 16 * 10) / 1e9


def test_what_has_no_such_product_is_refused(bench: Bench, tmp_path: Path) -> None:
    (setting,) = bench.experiment.settings
    for training in (
        bench.folders.training(setting, 0),
        trained(bench, CONVENTIONAL, tmp_path),
    ):
        with pytest.raises(InputError, match="linearized"):
            product_costs(training)
