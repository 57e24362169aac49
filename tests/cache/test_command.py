"""`probekit cache` from end to end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from probekit.cache import Cache
from probekit.cli.main import run
from tests.cache.examples import (
    damage,
    embedding_set,
    encoding,
    result_files,
    rows,
    save_in_pieces,
    shard_paths,
)


def call(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """A cache command with --json in the default cache; its one object."""
    assert run(["cache", *arguments, "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def filled() -> Cache:
    cache = Cache()
    cache.save("photos", embedding_set(1, 2, 3, source="./photos"))
    cache.save("more", embedding_set(3, 4))
    save_in_pieces(cache, 9)
    return cache


def test_ls(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    listed = call(capsys, "ls")
    assert listed["root"] == str(filled.root)
    assert [set_["name"] for set_ in listed["sets"]] == ["more", "photos"]
    photos = listed["sets"][1]
    assert photos["rows"] == 3
    assert photos["width"] == 4
    assert photos["labels"] == "3 classes"
    assert photos["source"] == "./photos"
    assert photos["backbone"] == "test:net"
    (usage,) = listed["encodings"]
    assert usage["digest"] == photos["encoding"] == encoding().digest
    assert usage["rows"] == 4
    assert usage["unfinished"] == 1
    assert usage["bytes"] == listed["bytes"] > 0


def test_ls_prints_tables(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "ls"]) == 0
    printed = capsys.readouterr().out
    for text in ("photos", "./photos", "test:net", encoding().digest[:12]):
        assert text in printed


def test_ls_of_an_empty_and_of_a_damaged_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "ls")["sets"] == []
    cache = Cache()
    cache.save("photos", embedding_set(1))
    damage(cache.root / "sets" / "photos.json", 0)
    damage(shard_paths(cache)[0], 3)
    listed = call(capsys, "ls")
    assert len(listed["warnings"]) == 2


def test_info(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    info = call(capsys, "info", "photos")
    assert info["rows"] == 3
    assert info["columns"] == ["key"]
    assert info["class_names"] == ["a", "b", "c"]
    assert info["encoding"]["identity"] == {"weights": "w", "view": "cls"}
    assert info["digest"] == filled.open("photos").digest
    assert run(["cache", "info", "photos"]) == 0
    assert "./photos" in capsys.readouterr().out
    error = call(capsys, "info", "photo", code=3)["error"]
    assert "photos" in error["message"]


def test_rm(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    before = result_files(filled.root)
    planned = call(capsys, "rm", "photos", "--dry-run")
    assert planned["dry_run"]
    assert planned["removed"][0]["rows"] == 2
    assert result_files(filled.root) == before
    removed = call(capsys, "rm", "photos", "--yes")
    assert removed["removed"] == planned["removed"]
    assert filled.names() == ["more"]
    np.testing.assert_array_equal(filled.open("more").to_numpy(), rows(3, 4))
    assert call(capsys, "rm", encoding().digest[:12], "-y")["removed"][0]["sets"] == ["more"]
    assert filled.entries() == []
    call(capsys, "rm", "photos", "--yes", code=3)


def test_rm_asks_first(filled: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.confirm", _refuse)
    assert run(["cache", "rm", "photos"]) != 0
    assert run(["cache", "rm", "photos", "--json"]) == 2
    assert "photos" in filled


def _refuse(*arguments: Any, **options: Any) -> None:
    import click

    raise click.Abort


def test_gc(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "gc", "--dry-run")["rows"] == 1
    assert len(filled.entry(encoding()).pieces()) == 1
    with filled.working(encoding(), "extraction"):
        busy = call(capsys, "gc")
        assert busy["busy"] == [encoding().digest]
        assert busy["warnings"]
    assert call(capsys, "gc")["rows"] == 1
    assert filled.entry(encoding()).pieces() == []


def test_verify(filled: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "verify")["ok"]
    largest = max(filled.entry(encoding()).shards(), key=lambda shard: len(shard.ids))
    damage(largest.path)
    verification = call(capsys, "verify", code=4)
    assert not verification["ok"]
    assert "--repair" in verification["damages"][0]["remedy"]
    repaired = call(capsys, "verify", "--repair", code=4)
    assert repaired["damages"][0]["repaired"]
    filled.save("photos", embedding_set(1, 2, 3, source="./photos"))
    assert call(capsys, "verify")["ok"]
    np.testing.assert_array_equal(filled.open("photos").to_numpy(), rows(1, 2, 3))


def test_a_cache_of_the_old_tree_ends_with_exit_code_4(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = Cache().root
    root.mkdir(parents=True, exist_ok=True)
    (root / "probekit.json").write_text('{"schema": 1}')
    assert "--cache" in call(capsys, "ls", code=4)["error"]["message"]
