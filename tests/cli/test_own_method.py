"""The method in examples/ through the command line and through `Run`, on a head and on a network."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from probekit import registry
from probekit.runs.run import Run
from tests.cli.conftest import Command

EXAMPLE = Path(__file__).parents[2] / "examples" / "06_own_method"


@pytest.mark.parametrize("backend", ["embeddings", "jvp"])
def test_a_method_of_ones_own(command: Command, extracted: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    method = importlib.import_module("probekit_pga").ProjectedAscent
    monkeypatch.setitem(registry.methods._registered, "example-pga", method)
    options = ["--pretrain-epochs", 1] if backend == "jvp" else []
    options += ["--backend", backend, "--clients", 3, "--server-share", 0.3, "--ridge", 0.05]
    rounds = ["--method", "fedavg", "--rounds", 3, "--keep-history"]
    assert command("train", extracted, *options, *rounds, "--run", "one").code == 0
    Run.open("one").fork("two")
    asked = command("unlearn", "one", "--client", "1", "--method", "example-pga:2", "--json")
    assert asked.code == 0, asked.message
    done = Run.open("two").unlearn(client="1", method="example-pga:2")
    assert done.unlearned is not None
    assert asked.value["head"] == Run.open("two").head().digest == done.unlearned.trained_after.head.digest
    assert asked.value["method"] == "example-pga:2"
    again = command("unlearn", "one", "--client", "2", "--method", "example-pga")
    assert again.code == 2  # what was kept of the rounds knew the forgotten client
    assert "the history of rounds" in again.message
