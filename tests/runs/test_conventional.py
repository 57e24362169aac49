"""Runs of networks that are not linearized, through every verb, by `Run` and by the flags; and logistic heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certificate import NOT_QUADRATIC
from probekit.errors import InputError
from probekit.federated.methods.fedavg import FedAvg
from probekit.models.adam import ADAM
from probekit.models.serving import load_head, predict
from probekit.protocols import Progress
from probekit.runs.snapshot import snapshot
from tests.cli.conftest import Probekit
from tests.cli.conftest import command as command
from tests.cli.conftest import probekit as probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

HOW: dict[str, Any] = {
    "backend": "network",
    "clients": 3,
    "server_share": 0.25,
    "rounds": 3,
    "local_epochs": 1,
    "batch_size": 16,
    "learning_rate": 0.05,
    "pretrain_epochs": 2,
}


@pytest.fixture(autouse=True)
def rows(shelve: Shelve) -> None:
    """Sets to train and test on."""
    shelve("rows", rows=160)
    shelve("test", rows=60, seed=5)


def test_a_network_is_trained_unlearned_verified_evaluated_reported_and_exported(
    store: DiskStore, tmp_path: Path
) -> None:
    run = Run.train("run", "rows", store=store, **HOW)
    again = Run.train("again", "rows", store=store, **HOW)
    assert run.head().digest == again.head().digest
    plan = run.plan(client="1")
    assert plan.method == "retrain-fedavg"
    done = run.unlearn("1")
    assert done.certificate.bounds.weights is None
    assert "not quadratic" in done.certificate.bounds.why
    assert set(run.folder.trained().counts) == {"0", "2"}
    found = run.verify()
    assert (found.intact, found.proven) == (True, False)
    [distance] = [one for one in found.findings if one.name == "distance"]
    assert "not quadratic" in distance.claimed
    assert (run.evaluate("test").results[0].accuracy.value or 0) > 0.5
    assert run.evaluate("test").results[0].pretrained is not None
    value = run.report(["test"]).write(tmp_path / "report")
    assert value["stages"][-1]["distance"] == 0  # it is what retraining gives
    run.export(tmp_path / "head")
    embeddings = store.open("test")
    assert np.array_equal(predict(load_head(tmp_path / "head"), embeddings), predict(run.head(), embeddings))


def test_the_reference_of_a_state_that_was_trained_anew_is_itself(store: DiskStore) -> None:
    run = Run.train("run", "rows", store=store, **HOW)
    run.unlearn("1", method="retrain-fedavg")
    assert snapshot(run.folder, store).reference().digest == run.head().digest
    assert not (run.path / "references").exists()


def test_other_states_are_compared_with_the_runs_own_training_on_what_remains(store: DiskStore) -> None:
    run, other = (Run.train(name, "rows", store=store, **HOW) for name in ("run", "other"))
    run.unlearn("1", method="cf:rounds=1")
    other.unlearn("1", method="retrain-fedavg")
    seen = []

    def watch(stage: str) -> Callable[[Progress], None]:
        return lambda progress: seen.append((stage, progress.done))

    found = snapshot(run.folder, store).reference(watch)
    assert np.array_equal(found.params, other.head().params)
    assert seen == [("retraining", number) for number in (1, 2, 3)]
    assert snapshot(run.folder, store).reference(watch).digest == found.digest
    assert len(seen) == 3  # kept in the run's folder


def test_removal_without_rows_or_a_learning_rate_says_what_is_missing(store: DiskStore) -> None:
    with pytest.raises(InputError, match="Give `learning_rate`"):
        Run.train("run", "rows", store=store, **{**HOW, "learning_rate": None})
    run = Run.train("run", "rows", store=store, **HOW)
    with pytest.raises(InputError, match="ridge loss of a head or of a linearized network"):
        run.unlearn("1", method="fedremoval")
    with pytest.raises(InputError, match="cached rows of the retained clients"):
        run.unlearn("1", server_only=True)


def test_a_random_start_needs_no_rows_of_the_servers(store: DiskStore) -> None:
    alone = {**HOW, "server_share": 0.0, "loss": "squared", "centre": "zero"}
    one = Run.train("one", "rows", store=store, **{**alone, "pretrain_epochs": 0})
    two = Run.train("two", "rows", store=store, **{**alone, "init": "random"})
    assert not one.folder.trained().problem.knows_server
    assert not two.folder.trained().problem.knows_server
    assert one.head().digest != two.head().digest
    with pytest.raises(InputError, match="Pretraining needs the server's own rows"):
        Run.train("three", "rows", store=store, **alone)


def test_the_published_preset_trains_networks(store: DiskStore) -> None:
    how: dict[str, Any] = {"clients": 2, "preset": "f2l2", "method": "fedavg", "rounds": 2, "batch_size": 16}
    run = Run.train("run", "rows", store=store, backend="network", **how)
    trained = run.folder.trained()
    assert (trained.ridge, trained.weights) == (0.0, {"0": 0.5, "1": 0.5})
    assert not trained.problem.knows_server
    linear = Run.train("linear", "rows", store=store, backend="jvp", server_share=0.2, centre="zero", **how)
    start = linear.folder.trained().problem.start
    moved = float(np.linalg.norm(linear.head().params - start))
    assert moved > float(np.linalg.norm(start)) / 2  # it began elsewhere than at w_p
    done = linear.unlearn("1", method="fedremoval:f2l2")
    assert "400 Adam steps" in str(done.plain["note"])
    assert FedAvg.preset("f2l2-mnist").rounds == 400
    assert ADAM["f2l2-mnist"].steps == 3200


def test_by_flags(probekit: Probekit) -> None:
    flags = ("--backend", "network", "--clients", "3", "--server-share", "0.25", "--learning-rate", "0.05")
    more = ("--rounds", "2", "--pretrain-epochs", "2", "--loss", "squared")
    code, value, _ = probekit("train", "rows", *flags, *more, "--run", "run")
    assert (code, "conventional" in value["kind"]) == (0, True)
    assert not value["can_unlearn"]["exact"]["possible"]
    assert value["can_unlearn"]["retrain-fedavg"]["possible"]
    assert probekit("unlearn", "run", "--client", "1")[0] == 0
    code, value, _ = probekit("verify", "run/states/0002/certificate.json", "--run", "run")
    assert code == 7
    assert [one["claimed"] for one in value["findings"] if one["name"] == "distance"] == [NOT_QUADRATIC]


def test_a_logistic_head_is_unlearned_by_training_anew(store: DiskStore) -> None:
    run = Run.train("run", "rows", store=store, method="logistic", clients=3)
    done = run.unlearn("1")
    assert done.certificate.method == "retrain"
    assert done.certificate.bounds.weights is None
    found = run.verify()
    assert (found.intact, found.proven) == (True, False)
    with pytest.raises(InputError, match="no sufficient statistics"):
        run.unlearn("0", method="exact")
