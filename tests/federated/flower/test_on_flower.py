"""The whole way on Flower, as the example goes it: heads are those of clients in one process, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probekit import Run, TrainOptions
from probekit.cache import DiskStore
from probekit.federated.node_log import NodeLog
from probekit.federated.partition import partition
from probekit.federated.training import train
from probekit.runs.fitting import trainer_of
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition

pytest.importorskip("flwr")
EXAMPLE = Path(__file__).parents[3] / "examples" / "07_on_flower"
NODES = 4


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example ran to its end."""
    folder = tmp_path_factory.mktemp("on-flower")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PROBEKIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "PATH": path, "COLUMNS": "200"}
    with (folder / "log").open("w") as log:
        command = ["sh", str(EXAMPLE / "run.sh")]
        done = subprocess.run(command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (folder / "log").read_text()[-3000:]
    return folder


@pytest.mark.slow
def test_one_round_on_flower_is_one_round_here(desk: Path) -> None:
    store = DiskStore(desk / "cache")
    far = Run.open(desk / "runs" / "closed", store=store)
    near = Run.train(desk / "near", "digits", TrainOptions(clients=NODES, partition="iid", ridge=0.001), store=store)
    assert far.head(1).digest == near.head().digest
    near.unlearn("1")
    assert far.head(2).digest == near.head().digest
    assert "nothing is false" in (desk / "log").read_text().lower()


@pytest.mark.slow
def test_rounds_on_flower_are_rounds_here(desk: Path) -> None:
    store = DiskStore(desk / "cache")
    far = Run.open(desk / "runs" / "fedavg", store=store)
    rows, own = store.open("digits"), store.open("digits-test")
    parts = partition(rows.labels, "iid", clients=NODES, seed=0).clients
    both = EmbeddingSet(
        rows.spec,
        np.concatenate([rows.to_numpy(), own.to_numpy()]),
        np.concatenate([rows.labels, own.labels]),
        [*rows.ids, *own.ids],
        rows.class_names,
    )
    whole = Partition(parts, np.arange(len(rows), len(both)), len(both), "iid", 0)
    options = TrainOptions(method="fedavg", rounds=6)
    near = train(both, whole, ridge=0.001, method=trainer_of(options), keep="gradients")
    assert far.head(1).params.tobytes() == near.head.params.tobytes()
    given = Material(both, whole)
    after = unlearn(near, UnlearnRequest(("2",)), method="fedremoval-pcg:rounds=3", material=given)
    assert far.head(2).params.tobytes() == after.trained_after.head.params.tobytes()


@pytest.mark.slow
def test_every_node_wrote_down_what_it_answered(desk: Path) -> None:
    for node in (desk / "trial" / "nodes").iterdir():
        kinds = [line["asked"]["kind"] for line in NodeLog(node / "log.jsonl").lines()]
        assert kinds.count("define") >= 2
        assert "statistics" in kinds
        assert kinds.count("fit") == 6
    assert not list((desk / "trial" / "jobs").glob("*/*"))
    assert (desk / "trial" / "flower").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_what_was_answered_is_in_the_runs_and_nowhere_else(desk: Path) -> None:
    kept = Run.open(desk / "runs" / "closed", store=DiskStore(desk / "cache")).trained().statistics
    assert kept is not None
    gram = kept["0"].gram
    sent = gram[np.tril_indices(len(gram))].tobytes()
    needle = sent[len(sent) // 2 :][:64]
    assert any(needle)
    found = [path for path in (desk / "trial").rglob("*") if path.is_file() and needle in path.read_bytes()]
    assert found == []


@pytest.mark.slow
def test_nothing_runs_on_when_it_is_over(desk: Path) -> None:
    left = subprocess.run(["pgrep", "-f", str(desk)], capture_output=True, check=False)
    assert left.returncode == 1, left.stdout
