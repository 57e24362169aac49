"""A third backend, registered here and known to nothing else, goes through every verb, by `Run` and by the flags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit import Run, registry
from probekit.cache import DiskStore
from tests.cli.conftest import Command
from tests.cli.conftest import command as command
from tests.shelves import Shelve
from tests.shelves import shelve as shelve
from tests.toy.probekit_toy import ToyBackend, ToyHead, ToyProblem

RIDGE = 0.05


@pytest.fixture(autouse=True)
def toy(shelve: Shelve) -> Iterator[None]:
    """The backend, for as long as a test lasts; and sets to train and test on."""
    registry.problems.register("toy")(ToyBackend)
    shelve("rows", rows=160)
    shelve("test", rows=60, seed=5)
    yield
    del registry.problems._registered["toy"]


def minimum(run: Run, clients: str) -> NDArray[np.float64]:
    """The minimum of these clients' loss, by a dense solve."""
    head = run.head()
    assert isinstance(head, ToyHead)
    problem = ToyProblem(head.directions, head.classes)
    embeddings, partition = run.folder.embeddings(run.store), run.folder.partition()
    rows = np.concatenate([partition.clients[name] for name in clients])
    features = problem.features(embeddings.to_numpy()[rows])
    targets = np.eye(len(head.classes))[embeddings.labels[rows]]
    system = features.T @ features / len(rows) + RIDGE * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(system, features.T @ targets / len(rows)))


def predict_by_hand(run: Run, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores of the run's head."""
    head = run.head()
    assert isinstance(head, ToyHead)
    return np.asarray(np.cos(rows.astype(np.float64) @ head.directions) @ head.params)


def test_a_run_of_it_is_trained_unlearned_verified_evaluated_and_reported(store: DiskStore, tmp_path: Path) -> None:
    run = Run.train("run", "rows", backend="toy", clients=4, server_share=0.25, ridge=RIDGE, store=store)
    assert np.abs(run.head().params - minimum(run, "0123")).max() < 1e-5
    done = run.unlearn("2", method="fedremoval-pcg:20", test="test")
    assert np.abs(run.head().params - minimum(run, "013")).max() < 1e-8
    assert done.certificate.bounds.weights is not None
    assert float(np.linalg.norm(run.head().params - minimum(run, "013"))) <= done.certificate.bounds.weights
    assert "The cosine features are taken as computed." in done.certificate.assumptions
    assert run.verify(test="test").intact
    found = run.evaluate("test")
    test = store.open("test")
    right = np.argmax(predict_by_hand(run, test.to_numpy()), axis=1)
    assert found.results[0].accuracy.hits == int((right == test.labels).sum())
    written = run.report(["test"]).write(tmp_path / "report")
    assert written["stages"][-1]["distance"] == pytest.approx(0, abs=1e-6)
    run.unlearn("1", method="retrain")
    assert np.abs(run.head().params - minimum(run, "03")).max() < 1e-6
    run.purge()
    assert Run.open("run", store=store).state == 3


def test_the_command_line_serves_it_without_a_word_of_it(command: Command, store: DiskStore) -> None:
    cache = ("--cache", store.root, "--json")
    train = (
        "train",
        "rows",
        "--backend",
        "toy",
        "--clients",
        4,
        "--server-share",
        0.25,
        "--ridge",
        RIDGE,
        "--run",
        "run",
    )
    trained = command(*train, *cache)
    assert (trained.code, trained.value["kind"]) == (0, "toy head")
    forgotten = command("unlearn", "run", "--client", "2", "--test", "test", *cache)
    assert (forgotten.code, forgotten.value["method"]) == (0, "retrain"), forgotten.err
    assert command("verify", forgotten.value["certificate"], "--run", "run", *cache).code == 7
    assert command("evaluate", "run", "test", *cache).code == 0
    assert command("report", "run", "--test", "test", *cache).code == 0
    refused = command("unlearn", "run", "--client", "1", "--method", "exact", *cache)
    assert (refused.code, "needs" in refused.value["error"]["message"]) == (2, True)
    refused = command(*train[:-1], "other", "--network", "cnn", *cache)
    assert (refused.code, "--network is no option of the backend toy" in refused.value["error"]["message"]) == (2, True)
