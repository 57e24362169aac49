"""Runs across clients elsewhere on the command line: what is printed, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probekit.cache import DiskStore
from probekit.federated.federation import Missing
from probekit.runs import federation
from tests.cli.conftest import Command
from tests.runs.parties import PlayedParty
from tests.runs.test_elsewhere import rows as rows
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def party(rows: Any, store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedParty:
    """Clients that the folder `hospitals` names."""
    (tmp_path / "hospitals").mkdir()
    made = PlayedParty(rows, name=str(tmp_path / "hospitals"))
    found = dict.fromkeys((tmp_path / "hospitals", tmp_path / "moved"), made)
    opened = type("Parties", (), {"party_at": staticmethod(found.__getitem__)})
    monkeypatch.setattr(federation, "import_module", lambda name: opened)
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "operator"))
    return made


def test_a_run_is_trained_and_unlearned_across_a_folder(party: PlayedParty, command: Command, tmp_path: Path) -> None:
    party.faults[("b", 1)] = Missing("late", "it did not answer in time.")
    done = command("train", "--federation", "hospitals", "--ridge", "0.01", "--at-least", "3", "--timeout", "5")
    assert done.code == 0, done.message
    assert "without b" in done.out
    assert "late: it did not answer in time." in done.out
    run = "runs/hospitals-closed-form"
    value = command("unlearn", run, "--client", "a", "--json").value
    assert (value["retained"], value["missing"]) == ({"c": 45, "d": 23}, {})
    party.faults.clear()
    (tmp_path / "hospitals").rename(tmp_path / "moved")
    done = command("unlearn", run, "--client", "c", "--method", "retrain")
    assert done.code == 3
    assert "There is no federation" in done.message
    assert "--federation" in done.message
    done = command("unlearn", run, "--client", "c", "--method", "retrain", "--federation", "moved")
    assert done.code == 0, done.message
    done = command("verify", f"{run}/states/0003/certificate.json", "--run", run)
    assert done.code in (0, 7), done.message


def test_who_is_awaited_is_said_and_the_same_command_goes_on(party: PlayedParty, command: Command) -> None:
    party.awaited = 1
    words = ("train", "--federation", "hospitals", "--ridge", "0.01", "--keep", "gradients", "--run", "run")
    done = command(*words)
    assert done.code == 3
    assert "waits for b" in done.message
    party.awaited = None
    assert command(*words).code == 0
    party.awaited = 2
    again = ("unlearn", "run", "--client", "d")
    assert command(*again).code == 3
    party.awaited = None
    assert command(*again).code == 0
    assert len({job for job, *_ in party.log}) == 2


def test_what_is_missing_or_too_much_is_said(party: PlayedParty, command: Command) -> None:
    for words, said in (
        (("train",), "name a set of the cache, or clients elsewhere with --federation"),
        (("train", "rows", "--federation", "hospitals"), "found the set rows. Leave it out"),
        (("train", "--federation", "hospitals", "--server-share", "0.1"), "--server-share is for a set of the cache"),
        (("train", "--federation", "hospitals", "--at-least", "0"), "--at-least"),
    ):
        done = command(*words)
        assert done.code == 2
        assert said in done.message


def test_runs_elsewhere_are_compared_exported_and_bundled(
    party: PlayedParty, shelve: Shelve, store: DiskStore, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelve("test", rows=60, dimension=12, seed=1)
    monkeypatch.setenv("PROBEKIT_CACHE", str(store.root))
    for name, method in (("one", "closed-form"), ("two", "fedavg")):
        done = command("train", "--federation", "hospitals", "--ridge", "0.01", "--run", name, "--method", method)
        assert done.code == 0, done.message
    assert command("unlearn", "one", "--client", "a").code == 0
    for words in (
        ("compare", "one", "two", "--test", "test"),
        ("export", "one", "head"),
        ("bundle", "one"),
        ("evaluate", "one", "test"),
        ("report", "one", "--test", "test"),
        ("prove", "one", "--client", "b"),
        ("audit", "influence", "one"),
        ("purge", "one", "--yes"),
    ):
        done = command(*words)
        assert done.code in (0, 7), (words, done.message)
    done = command("audit", "duplicates", "one")
    assert done.code == 3
    assert "its rows lie with the clients" in done.message
