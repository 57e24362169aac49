"""The method in examples/ keeps the promises of a method, and runs on a head and on a network, through every door."""

from __future__ import annotations

import ast
import importlib
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import registry
from probekit.errors import InputError
from probekit.federated.in_process import InProcess
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.networks import train_network
from probekit.federated.partition import partition
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.models.jvp import WholeNetwork
from probekit.models.pretraining import Pretraining
from probekit.testing import check_method
from probekit.testing.planted import planted_set
from probekit.unlearning.choice import can_unlearn, unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import SampleRef, UnlearnRequest
from probekit.values import EmbeddingSet, Partition
from tests.testing.test_federations import through_files

EXAMPLE = Path(__file__).parents[2] / "examples" / "06_own_method"
ROUNDS = FedAvg(rounds=6, local_steps=5, keep_history=True)


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """The method, registered as its entry point has it."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    stated = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    ((name, target),) = stated["project"]["entry-points"]["probekit.methods"].items()
    module, _, attribute = target.partition(":")
    monkeypatch.setitem(registry.methods._registered, name, getattr(importlib.import_module(module), attribute))
    return str(name)


def rows() -> tuple[EmbeddingSet, Partition]:
    data = planted_set(150)
    return data, partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.2, seed=1)


def trained(kind: str) -> Trained:
    data, split = rows()
    if kind == "head":
        return train(data, split, ridge=0.05, method=ROUNDS)
    options = WholeNetwork("mlp", subset=2, pretraining=Pretraining(epochs=2))
    return train_network(data, split, ridge=0.05, options=options, method=ROUNDS)


def loss(run: Trained, client: str) -> float:
    """The mean loss of a client's rows."""
    data, split = rows()
    asked = InProcess.of(run.problem, data, {client: split.clients[client]})
    found = asked.ask("gradient", {"params": run.params}, {"loss": True}).total()
    return found.values["loss"] / found.count


def test_it_is_short_and_imports_nothing_of_ours() -> None:
    [path] = EXAMPLE.glob("*.py")
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    tree = ast.parse(text)
    imported = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"dataclasses", "typing", "numpy"}


def test_it_passes_the_kit(name: str) -> None:
    checks = check_method(name)
    assert [check for check in checks if not check.passed] == []
    assert any(check.name.startswith("network") for check in checks)


@pytest.mark.parametrize("kind", ["head", "network"])
def test_the_forgotten_client_fits_worse_and_the_others_repair(name: str, kind: str) -> None:
    before, (data, split) = trained(kind), rows()
    material = Material(data, split)
    assert can_unlearn(before, material)[name] == ""
    request = UnlearnRequest(("2",))
    climbed = unlearn(before, request, method=f"{name}:rounds=0", material=material).trained_after
    done = unlearn(before, request, method=f"{name}:5,steps=20", material=material)
    after = done.trained_after
    assert loss(climbed, "2") > loss(before, "2")
    for other in after.counts:
        assert loss(after, other) < loss(climbed, other)
    assert after.history is None
    assert after.method == f"{name}:5,steps=20"
    assert done.cost.rounds == 1 + 5
    assert (done.solution.residual, done.solution.steps) == (1.0, 0)


def test_it_is_the_same_through_files(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, (data, split) = trained("head"), rows()

    def parties(make: Any) -> Material:
        left = {name: own for name, own in split.clients.items() if name != "2"}
        return Material(
            clients=make(before.problem, data, left), target=make(before.problem, data, {"2": split.clients["2"]})
        )

    near, far = (
        unlearn(before, UnlearnRequest(("2",)), method=name, material=parties(make))
        for make in (InProcess.of, through_files)
    )
    assert far.trained_after.head.digest == near.trained_after.head.digest
    assert (far.cost.up, far.cost.down, far.cost.rounds) == (near.cost.up, near.cost.down, near.cost.rounds)


def test_a_sample_is_forgotten_by_its_own_client(name: str) -> None:
    before, (data, split) = trained("head"), rows()
    sample = data.ids[int(split.clients["2"][0])]
    found = unlearn(before, UnlearnRequest(samples=(SampleRef(sample),)), method=name, material=Material(data, split))
    assert found.trained_after.counts["2"] == before.counts["2"] - 1
    assert np.linalg.norm(found.trained_after.params - before.params) > 0


def test_without_history_or_clients_it_says_what_to_keep(name: str) -> None:
    data, split = rows()
    before = train(data, split, ridge=0.05, method="closed-form")
    with pytest.raises(InputError, match="keep_history=True"):
        unlearn(before, UnlearnRequest(("2",)), method=name, material=Material(data, split))
    with pytest.raises(InputError, match="the forgotten client online"):
        unlearn(trained("head"), UnlearnRequest(("2",)), method=name, material=Material(data, split, server_only=True))
