"""`probekit cache`, from looking to erasing."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from probekit.cache import DiskStore
from tests.cli.conftest import Command


def shard(store: DiskStore) -> Path:
    """The one file of rows of a small cache."""
    [path] = sorted(store.root.glob("rows/*/shards/*.safetensors"))
    return path


def test_an_empty_cache_says_how_to_fill_it(command: Command) -> None:
    outcome = command("cache", "ls")
    assert outcome.code == 0
    assert "probekit extract" in outcome.out
    assert command("cache", "ls", "--json").value["sets"] == []


def test_ls_shows_sets_with_all_their_names(command: Command, extracted: str, backbone: str, dataset: str) -> None:
    command("extract", dataset, "-b", backbone, "--name", "again", "-q")
    [found] = command("cache", "ls", "--json").value["sets"]
    assert found["names"] == ["again", "tiny"]
    assert (found["rows"], found["dimension"], found["source"]) == (30, 48, dataset)
    shown = command("cache", "ls").out
    assert "again, tiny" in shown
    assert "30" in shown


def test_info_tells_classes_clients_and_rows(command: Command, extracted: str) -> None:
    value = command("cache", "info", extracted, "--json", "--rows").value
    assert value["classes"] == {"0": 10, "1": 10, "2": 10}
    assert value["clients"] == ["c0", "c1", "c2", "c3", "c4"]
    assert value["spec"]["view"] == "cells"
    assert [row["row"] for row in value["samples"]] == list(range(30))
    assert value["samples"][7]["client"] == "c2"
    shown = command("cache", "info", extracted, "--rows").out
    assert "spec weights" in shown
    assert value["samples"][7]["id"][:12] in shown
    by_digest = command("cache", "info", value["digest"][:10], "--json").value
    assert by_digest["digest"] == value["digest"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "tin"],
        ["rm", "tin", "--yes"],
        ["export", "tin", "somewhere"],
        ["verify", "--encode", "2", "--set", "tin"],
        ["purge", "--client", "c1", "--set", "tin", "--yes"],
    ],
)
def test_an_unknown_set_is_not_found(command: Command, extracted: str, arguments: list[str]) -> None:
    outcome = command("cache", *arguments, "--json")
    assert outcome.code == 3
    assert "tiny" in outcome.value["error"]["message"]


def test_verify_reads_every_file(command: Command, extracted: str) -> None:
    outcome = command("cache", "verify", "--json")
    assert outcome.code == 0
    assert outcome.value["sound"] is True
    assert "0 problems" in command("cache", "verify").out


def test_a_corrupt_shard_is_named_repaired_and_encoded_again(
    command: Command, extracted: str, backbone: str, dataset: str
) -> None:
    path = shard(DiskStore())
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    found = command("cache", "verify", "--json")
    assert found.code == 4
    assert path.name in found.value["problems"][0]["where"]
    assert "--repair" in found.value["problems"][0]["remedy"]
    assert command("cache", "verify", "--repair", "-q").code == 4
    again = command("extract", dataset, "-b", backbone, "--json", "--name", extracted).value
    assert again["encoded"] == 30
    assert command("cache", "verify", "-q").code == 0


def test_a_shard_cut_short_is_a_corrupt_cache(command: Command, extracted: str) -> None:
    path = shard(DiskStore())
    path.write_bytes(path.read_bytes()[:200])
    outcome = command("cache", "export", extracted, "out", "--json")
    assert outcome.code == 4
    assert "probekit cache verify --repair" in outcome.value["error"]["message"]


@pytest.mark.parametrize("command_line", [["cache", "ls"], ["cache", "verify"], ["cache", "info", "tiny"]])
def test_a_newer_schema_is_left_alone(command: Command, extracted: str, command_line: list[str]) -> None:
    (DiskStore().root / "probekit.json").write_text(json.dumps({"schema": 2}))
    outcome = command(*command_line, "--json")
    assert outcome.code == 4
    assert "newer probekit" in outcome.value["error"]["message"]


def test_rows_encoded_again_are_compared(command: Command, extracted: str, dataset: str) -> None:
    outcome = command("cache", "verify", "--encode", "7", "--set", extracted, "--json")
    assert outcome.code == 0, outcome.message
    assert outcome.value["encoded"]["rows"] == 7
    assert outcome.value["encoded"]["passed"] is True
    with np.load(dataset.removeprefix("npz:")) as file:
        arrays = dict(file)
    arrays["images"] = arrays["images"] // 2
    np.savez(dataset.removeprefix("npz:"), **arrays)
    changed = command("cache", "verify", "--encode", "7", "--set", extracted, "--json")
    assert changed.code == 4
    assert changed.value["encoded"]["changed_samples"] == 7


def test_encoding_again_needs_a_set(command: Command, extracted: str) -> None:
    outcome = command("cache", "verify", "--encode", "2", "--json")
    assert outcome.code == 2
    assert "--set" in outcome.value["error"]["message"]


def test_a_drawer_of_one_set_is_emptied_by_rm(command: Command, extracted: str) -> None:
    value = command("cache", "rm", extracted, "--json").value
    assert value["rows"] == 30
    assert command("cache", "ls", "--json").value["sets"] == []


def test_rm_asks_first(command: Command, extracted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    refused = command("cache", "rm", extracted)
    assert refused.code == 130
    assert "--yes" in refused.message
    assert command("cache", "info", extracted, "-q").code == 0
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    assert command("cache", "purge", "--client", "c1").code == 0
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert command("cache", "rm", extracted).code == 130
    assert command("cache", "rm", extracted, "--yes").code == 0
    assert command("cache", "info", extracted, "-q").code == 3


def test_rm_keeps_rows_on_request_and_removes_a_whole_spec(
    command: Command, extracted: str, backbone: str, dataset: str
) -> None:
    spec = command("cache", "info", extracted, "--json").value["spec"]["digest"]
    assert command("cache", "rm", extracted, "--keep-rows", "--json").value["rows"] == 0
    assert command("extract", dataset, "-b", backbone, "--json").value["encoded"] == 0
    value = command("cache", "rm", spec[:12], "--json").value
    assert value["rows"] == 30
    assert len(value["sets"]) == 1


def test_prune_takes_what_no_set_uses(command: Command, extracted: str) -> None:
    command("cache", "rm", extracted, "--keep-rows", "-y", "-q")
    assert command("cache", "prune", "--dry-run", "--json").value["rows"] == 30
    assert command("cache", "prune", "--json").value["rows"] == 30
    assert command("cache", "prune", "--json").value["rows"] == 0


def test_prune_by_age(command: Command, extracted: str) -> None:
    assert command("cache", "prune", "--older-than", "1", "--json").value["sets"] == []
    assert len(command("cache", "prune", "--older-than", "0", "--json").value["sets"]) == 1


def test_purging_a_client_leaves_no_byte_of_its_rows(command: Command, extracted: str) -> None:
    made = DiskStore().open(extracted)
    doomed = [made.embeddings[row].tobytes() for row in range(1, 30, 5)]
    outcome = command("cache", "purge", "--client", "c1", "--set", extracted, "--json")
    assert outcome.code == 0
    assert outcome.value["rows"] == 6
    assert outcome.value["still_found_in"] == []
    kept = b"".join(path.read_bytes() for path in DiskStore().root.rglob("*") if path.is_file())
    assert not any(row in kept for row in doomed)
    left = command("cache", "info", extracted, "--json").value
    assert left["rows"] == 24
    assert left["clients"] == ["c0", "c2", "c3", "c4"]
    assert command("cache", "verify", "-q").code == 0


def test_purging_samples_by_id_and_by_name(command: Command, extracted: str) -> None:
    rows = command("cache", "info", extracted, "--json", "--rows").value["samples"]
    outcome = command("cache", "purge", "--samples", rows[3]["id"], "--samples", rows[4]["name"], "--json")
    assert outcome.value["rows"] == 2
    left = [row["id"] for row in command("cache", "info", extracted, "--json", "--rows").value["samples"]]
    assert left == [row["id"] for row in rows if row["row"] not in (3, 4)]


def test_a_purge_that_leaves_something_fails_its_check(
    command: Command, extracted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = DiskStore().open(extracted).embeddings[1].tobytes()
    (DiskStore().root / "forgotten-copy").write_bytes(b"before" + row + b"after")
    outcome = command("cache", "purge", "--client", "c1", "--set", extracted, "--json")
    assert outcome.code == 6
    assert any("forgotten-copy" in found for found in outcome.value["still_found_in"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 2), (["--client", "c1", "--samples", "1"], 2), (["--client", "c9"], 3), (["--samples", "feed"], 3)],
)
def test_purging_nothing_in_particular(command: Command, extracted: str, arguments: list[str], code: int) -> None:
    assert command("cache", "purge", *arguments, "--json").code == code
    assert command("cache", "info", extracted, "--json").value["rows"] == 30


@pytest.mark.parametrize("form", ["folder", "dataset"])
def test_a_set_travels_to_another_cache(command: Command, extracted: str, tmp_path: Path, form: str) -> None:
    here = DiskStore().open(extracted)
    out, there = tmp_path / "out", tmp_path / "there"
    sent = command("cache", "export", extracted, out, "--format", form, "--json")
    assert sent.code == 0
    assert sent.err == ""
    assert command("cache", "import", out, "--name", "new", "--cache", there, "--json").value["digest"] == here.digest
    arrived = DiskStore(there).open("new")
    np.testing.assert_array_equal(arrived.to_numpy(), here.to_numpy())
    assert list(arrived.clients or ()) == list(here.clients or ())
    assert command("cache", "verify", "--cache", there, "-q").code == 0


def test_an_export_does_not_write_over_anything(command: Command, extracted: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    outcome = command("cache", "export", extracted, tmp_path / "full", "--json")
    assert outcome.code == 2
    assert "new folder" in outcome.value["error"]["message"]


def test_imports_are_checked(command: Command, extracted: str, tmp_path: Path) -> None:
    assert command("cache", "import", tmp_path / "nothing", "--json").code == 3
    out = tmp_path / "out"
    command("cache", "export", extracted, out, "-q")
    (out / "link").symlink_to("/etc")
    assert command("cache", "import", out, "--json").code == 2
    (out / "link").unlink()
    [path] = out.glob("rows/*/shards/*.safetensors")
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    damaged = command("cache", "import", out, "--cache", tmp_path / "there", "--json")
    assert damaged.code == 4
    assert "nothing was imported" in damaged.value["error"]["message"]
    assert command("cache", "ls", "--cache", tmp_path / "there", "--json").value["sets"] == []


def _stop_after(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Be interrupted once a removal has come to a step."""

    def reached(here: str) -> None:
        if here == step:
            raise KeyboardInterrupt

    monkeypatch.setattr("probekit.cache.journal.reached", reached)


@pytest.mark.parametrize("again", [["--client", "c1", "--set", "tiny"], []])
def test_an_interrupted_purge_is_finished_by_the_same_command(
    command: Command, extracted: str, monkeypatch: pytest.MonkeyPatch, again: list[str]
) -> None:
    with monkeypatch.context() as patch:
        _stop_after(patch, "set rewritten")
        assert command("cache", "purge", "--client", "c1", "--set", extracted, "--json").code == 130
    for other in (["ls"], ["info", extracted], ["prune"], ["verify"], ["rm", extracted, "--yes"]):
        refused = command("cache", *other)
        assert (refused.code, "probekit cache purge --yes" in refused.message) == (4, True)
    outcome = command("cache", "purge", *again, "--json")
    assert (outcome.code, outcome.value["rows"], outcome.value["still_found_in"]) == (0, 6, [])
    assert command("cache", "info", extracted, "--json").value["rows"] == 24


@pytest.mark.parametrize("by", ["name", "spec"])
def test_an_interrupted_rm_is_finished_by_the_same_command(
    command: Command, extracted: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    spec = command("cache", "info", extracted, "--json").value["spec"]["digest"]
    what = extracted if by == "name" else spec[:12]
    for step in ("journalled", "rows dropped"):
        with monkeypatch.context() as patch:
            _stop_after(patch, step)
            assert command("cache", "rm", what, "--json").code == 130
    refused = command("cache", "purge", "--yes")
    assert (refused.code, f"probekit cache rm {what} --yes" in refused.message) == (4, True)
    value = command("cache", "rm", what, "--json").value
    assert (value["rows"], len(value["sets"])) == (30, 1)
    assert command("cache", "ls", "--json").value["sets"] == []


def test_verify_mentions_rows_that_no_set_uses(command: Command, extracted: str) -> None:
    assert command("cache", "verify", "--json").value["unused_rows"] == 0
    command("cache", "rm", extracted, "--keep-rows", "-y", "-q")
    assert command("cache", "verify", "--json").value["unused_rows"] == 30
    assert "30 rows are used by no set: `probekit cache prune`" in command("cache", "verify").out


def test_erased_samples_are_left_out_of_the_next_extract(
    command: Command, extracted: str, backbone: str, dataset: str
) -> None:
    samples = command("cache", "info", extracted, "--json", "--rows").value["samples"]
    command("cache", "purge", "--samples", samples[3]["id"], "--yes", "-q")
    outcome = command("extract", dataset, "-b", backbone, "--json")
    assert (outcome.code, outcome.value["rows"], outcome.value["erased"]) == (0, 29, 1)
    assert "1 rows were left out: their samples were erased" in outcome.message
    assert "--restore-erased" in outcome.message
    assert command("extract", dataset, "-b", backbone, "--restore-erased", "--json").value["rows"] == 30
    assert command("extract", dataset, "-b", backbone, "--json").value["rows"] == 30


def test_runs_that_lose_their_rows_are_named(
    command: Command, extracted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert command("train", extracted, "--run", "run", "--ridge", "0.1", "--clients", "3", "-q").code == 0
    outcome = command("cache", "purge", "--client", "c1", "--json")
    assert (outcome.code, str(tmp_path / "run") in outcome.value["error"]["message"]) == (2, True)
    monkeypatch.setattr("sys.stdin", StringIO("y\nn\n"))
    refused = command("cache", "purge", "--client", "c1")
    assert (refused.code, str(tmp_path / "run") in refused.err.replace("\n", "")) == (130, True)
    monkeypatch.setattr("sys.stdin", StringIO("y\ny\n"))
    assert command("cache", "purge", "--client", "c1").code == 0
    assert command("evaluate", "run", "-q").code == 4
