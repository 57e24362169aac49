"""Work on whole networks that is stopped halfway."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.runs import ledger
from probekit.runs.checkpoint import TrainingCheckpoint, TrainingState
from probekit.runs.folder import RunFolder
from probekit.runs.run import Run
from tests.cli.conftest import Command, Probekit
from tests.cli.networks.shop import (
    FIRST,
    FORK,
    Shop,
    certificate,
    minimum,
    network_head,
)


@pytest.mark.parametrize("place", ["certify", "train"])
def test_an_interrupted_unlearning_leaves_the_old_run(
    trained: Path, probekit: Probekit, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    with monkeypatch.context() as broken:
        if place == "certify":
            broken.setattr("probekit.runs.unlearning.certify", stop)
        else:
            broken.setattr("probekit.unlearning.methods.retrain.trained_anew", stop)
        code, _, said = probekit("unlearn", trained, "--client", "1", "--method", "retrain")
        assert (code, "Interrupted" in said) == (130, True)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    code, value, _ = probekit("unlearn", trained, "--client", "1")
    assert (code, value["state"]) == (0, 2)


FEDAVG = ("--method", "fedavg", "--rounds", "8", "--local-steps", "3")


def interrupt(monkeypatch: pytest.MonkeyPatch, probekit: Probekit, *arguments: object, after: int) -> None:
    """Stop a training after so many rounds (0: after pretraining)."""
    original = TrainingCheckpoint.save

    def stop(file: TrainingCheckpoint, state: TrainingState) -> None:
        original(file, state)
        if after <= (state.rounds.rounds if state.rounds is not None else 0):
            raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("probekit.runs.checkpoint.EVERY", 0.0)
        broken.setattr(TrainingCheckpoint, "save", stop)
        assert probekit("train", "grey", *FIRST, *arguments, "--run", "r")[0] == 130
    assert not Path("r").exists()
    assert Path(".r.training").is_file()


@pytest.mark.parametrize("after", [0, 5])
def test_an_interrupted_training_goes_on_where_it_was(
    probekit: Probekit, shop: Shop, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    interrupt(monkeypatch, probekit, after=after)
    monkeypatch.setattr("probekit.models.jvp.pretrain", None)
    code, value, said = probekit("train", "grey", *FIRST, "--run", "r")
    assert code == 0, said
    assert f"Going on after {f'round {after}' if after else 'its pretraining'}, where" in said
    assert not Path(".r.training").exists()
    head, wanted = network_head(Path("r")), minimum(Path("r"), shop.store, 1)
    assert head.network.digest == network_head(shop.root / "run").network.digest
    assert np.linalg.norm(head.params - wanted) <= 1e-4 * np.linalg.norm(wanted)
    assert value["residual"] <= 1e-6
    assert value["rounds"] > after


def test_fedavg_goes_on_to_the_same_bits(probekit: Probekit, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, probekit, *FEDAVG, after=3)
    code, value, said = probekit("train", "grey", *FIRST, *FEDAVG, "--run", "r")
    assert (code, value.get("rounds"), "after round 3" in said) == (0, 8, True), said
    code, whole, _ = probekit("train", "grey", *FIRST, *FEDAVG, "--run", "whole")
    assert np.array_equal(network_head(Path("r")).params, network_head(Path("whole")).params)
    for name, sent in whole["traffic"].items():  # a question says its number, so its bytes depend on what came before
        assert (sent["up"], sent["rounds"]) == (value["traffic"][name]["up"], value["traffic"][name]["rounds"])
        assert abs(sent["down"] - value["traffic"][name]["down"]) < 100


def test_another_training_begins_anew(probekit: Probekit, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, probekit, after=5)
    code, _, said = probekit("train", "grey", *FIRST, "--pretrain-epochs", "2", "--run", "r")
    assert (code, "Going on" in said) == (0, False), said
    Path(".s.training").write_bytes(b"not tensors")
    code, _, said = probekit("train", "grey", *FIRST, "--run", "s")
    assert (code, "Going on" in said) == (0, False), said
    assert not [*Path().glob(".*.training")]


def test_more_rounds_may_be_asked_for_and_none_may_be_left(probekit: Probekit, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, probekit, after=5)
    code, value, said = probekit("train", "grey", *FIRST, "--method", "cg", "--rounds", "4", "--run", "r")
    assert code == 0, said
    assert 1e-6 < value["residual"] < 1


def test_purging_removes_an_unfinished_training(
    trained: Path, probekit: Probekit, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, probekit, after=5)
    left = trained.parent / ".run.training"
    Path(".r.training").rename(left)
    assert probekit("unlearn", trained, "--client", "1", "--method", "fedremoval:dual")[0] == 0
    code, value, said = probekit("purge", trained)
    assert (code, left.exists()) == (0, False), said
    assert ".run.training" in value["removed"]


def _killed(path: Path, root: Path, before: str) -> None:
    """Forget a client and die at a step of the writing."""
    import probekit.runs.folder as runs

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(runs if before == "sync_folder" else ledger, before, die)
    Run.open(path, store=DiskStore(root)).unlearn("1", method="fedremoval:dual")


@pytest.mark.parametrize("before", ["sync_folder", "append"])
def test_killed_while_writing_the_run_is_the_old_one(
    trained: Path, probekit: Probekit, shop: Shop, before: str
) -> None:
    process = FORK.Process(target=_killed, args=(trained, shop.cache, before))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    opened = RunFolder.open(trained)
    assert opened.state == 1
    assert opened.head().digest == network_head(trained).digest
    code, value, said = probekit("unlearn", trained, "--client", "1")
    assert (code, value.get("state")) == (0, 2), said
    assert probekit("verify", certificate(trained), "--run", trained)[0] == 7


@pytest.mark.parametrize(
    ("name", "words"), [("train", ("--backend", "--network-weights", "py:module:factory")), ("unlearn", ("dual|pcg",))]
)
def test_help_names_the_options_of_networks(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, words: Sequence[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = command(name, "--help")
    assert found.code == 0
    assert all(word in found.out for word in ("whole network", *words))
