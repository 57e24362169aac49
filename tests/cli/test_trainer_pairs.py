"""KNOT, SIFU and the methods from history through the command line and `Run`, on a head and on a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.federated.trained import Trained
from probekit.runs.folder import RunFolder
from probekit.runs.run import Run
from tests.cli.conftest import Command

COMMON = ("--clients", 4, "--server-share", 0.3, "--ridge", 0.05, "--rounds", 3, "--local-steps", 2, "--run", "one")
NETWORK = ("--backend", "jvp", "--pretrain-epochs", 1, "--subset", 1, "--learning-rate", 0.01)
HISTORY = ("--method", "fedavg", "--keep-history")
PAIRS = {
    "knot": ("knot:clusters=3,assign=random", "knot"),
    "sifu": ("sifu:share=0.01,psi=exact", "sifu:epsilon=none"),
}


def trained(path: str) -> Trained:
    return RunFolder.open(Path(path)).trained()


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair(command: Command, extracted: str, name: str) -> None:
    training, unlearning = PAIRS[name]
    assert command("train", extracted, *COMMON, "--method", training).code == 0
    assert RunFolder.open(Path("one")).config["method"] == training
    assert trained("one").kept[name].about == {"0", "1", "2", "3"}
    Run.open("one").fork("two")
    asked = command("unlearn", "one", "--client", "1", "--method", unlearning, "--json")
    assert asked.code == 0, asked.message
    done = Run.open("two").unlearn(client="1", method=unlearning)
    assert done.unlearned is not None
    assert asked.value["head"] == Run.open("two").head().digest == done.unlearned.trained_after.head.digest
    assert trained("one").kept[name].about == {"0", "2", "3"}
    again = command("unlearn", "one", "--client", "2", "--method", name, "--json")
    assert again.code == 0, again.message
    after = trained("one")
    assert after.kept[name].about == {*after.counts} == {"0", "3"}
    assert command("verify", "one").code in (0, 7)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_on_a_network(command: Command, extracted: str, name: str) -> None:
    training, unlearning = PAIRS[name]
    assert command("train", extracted, *COMMON, *NETWORK, "--method", training).code == 0
    before = trained("one").head.digest
    asked = command("unlearn", "one", "--client", "1", "--method", unlearning, "--json")
    assert asked.code == 0, asked.message
    assert asked.value["head"] != before
    assert trained("one").kept[name].about == {"0", "2", "3"}


def test_methods_from_history(command: Command, extracted: str) -> None:
    assert command("train", extracted, *COMMON, *HISTORY).code == 0
    for client, method in enumerate(("fedaccum", "federaser:ratio=1", "fedrecover")):
        asked = command("unlearn", "one", "--client", client, "--method", method, "--json")
        assert asked.code == 0, asked.message
        history = trained("one").history
        assert history is not None
        assert str(client) not in history.about  # one after the other, each on the renewed history
    last = trained("one").history
    assert last is not None
    assert last.about == {"3"}


def test_methods_from_history_on_a_network(command: Command, extracted: str) -> None:
    assert command("train", extracted, *COMMON, *NETWORK, *HISTORY).code == 0
    asked = command("unlearn", "one", "--client", 0, "--method", "federaser", "--json")
    assert asked.code == 0, asked.message
    asked = command("unlearn", "one", "--client", 1, "--method", "fedrecovery:sigma=0.01", "--json")
    assert asked.code == 0, asked.message
    assert "sigma 0.01" in asked.value["note"]
    assert trained("one").history is None
    refused = command("unlearn", "one", "--client", 2, "--method", "fedrecovery")
    assert refused.code == 2
    assert "the history of rounds" in refused.message
