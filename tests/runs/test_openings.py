"""What stands sealed in the ledger: opened while it may be, erased by purge, and worth nothing to whoever guesses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.custody.seals import opened as is_open
from probekit.errors import CorruptError, InputError, VerificationError
from probekit.runs import ledger
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import Event
from probekit.runs.rows import request_of
from probekit.values import canonical
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

SECRET = Event("unlearn", {"head": "a" * 64, "state": 1}, {"request": {"clients": ["Ann"]}, "method": "exact"})


@pytest.fixture
def trained(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run of four clients that kept everything."""
    shelve("rows", rows=160)
    Run.train(tmp_path / "run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    return tmp_path / "run"


def texts(run: Path) -> str:
    """Everything that a run's folder says in words."""
    return "".join(path.read_text("latin-1") for path in sorted(run.rglob("*")) if path.is_file())


def test_the_file_shows_seals_and_the_reader_values(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, SECRET, {"state": 2, "head": "b" * 64})
    ledger.append(path, entry)
    line = path.read_text()
    assert "Ann" not in line
    assert "a" * 64 not in line
    assert "b" * 64 not in line
    assert '"method":"exact"' in line
    [found] = ledger.read(path, entry.digest)
    assert found == entry
    assert found.details["request"] == {"clients": ["Ann"]}


def test_equal_values_have_unequal_seals(tmp_path: Path) -> None:
    first, second = (ledger.follow(None, SECRET, {"state": 2}) for _ in range(2))
    assert first.stored["inputs"]["head"] != second.stored["inputs"]["head"]
    salts = {one.salt for entry in (first, second) for one in entry.openings.values()}
    assert len(salts) == len(first.openings) + len(second.openings)


def test_the_chain_holds_without_openings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, first)
    second = ledger.follow(first, SECRET, {"state": 3})
    ledger.append(path, second)
    ledger.erase(path, [first, second], lambda entry, place: entry.number == 2 and place == "inputs.head")
    found = ledger.read(path, second.digest)
    assert [one.digest for one in found] == [first.digest, second.digest]
    assert [is_open(one.inputs["head"]) for one in found] == [False, True]
    assert not any(is_open(one.details["request"]) for one in found)
    with pytest.raises(InputError, match="erased by a purge"):
        request_of(found[0])
    assert [path.name for path in (tmp_path / "openings").iterdir()] == ["000002.json"]
    ledger.erase(path, found, lambda *_: False)
    ledger.erase(path, found, lambda *_: False)
    assert list((tmp_path / "openings").iterdir()) == []


def _other_value(said: Any) -> Any:
    return {**said, "inputs.head": [said["inputs.head"][0], "c" * 64]}


def _other_salt(said: Any) -> Any:
    return {**said, "inputs.head": ["0" * 64, said["inputs.head"][1]]}


def _swapped(said: Any) -> Any:
    return {**said, "inputs.head": said["details.request"], "details.request": said["inputs.head"]}


def _unsealed_place(said: Any) -> Any:
    return {**said, "inputs.state": ["0" * 64, 7]}


@pytest.mark.parametrize(
    "forge",
    [
        *(_other_value, _other_salt, _swapped, _unsealed_place),
        lambda said: [],
        lambda said: {"inputs.head": 7},
        lambda said: {"inputs.head": ["zz", 1]},
        lambda said: {"nowhere": ["0" * 64, 1]},
    ],
)
def test_forged_openings_are_refused(tmp_path: Path, forge: Callable[[Any], Any]) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, entry)
    place = tmp_path / "openings/000001.json"
    place.write_text(canonical(forge(json.loads(place.read_text()))))
    with pytest.raises(VerificationError):
        ledger.read(path, entry.digest)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 50_000])
def test_damaged_openings_are_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, entry)
    (tmp_path / "openings/000001.json").write_bytes(data)
    with pytest.raises(VerificationError, match="is damaged"):
        ledger.read(path, entry.digest)


def test_lines_with_duplicate_keys_are_refused(tmp_path: Path) -> None:
    """C12: two readers must not read two things in one line."""
    path = tmp_path / "ledger.jsonl"
    entry = ledger.follow(None, Event("train"), {"state": 1})
    path.write_bytes(entry.line.replace(b'{"action"', b'{"action":"purge","action"', 1))
    with pytest.raises(VerificationError, match="not the one that was written"):
        ledger.read(path, entry.digest)
    path.write_bytes(entry.line.replace(b'"number":1', b'"number": 1', 1))
    with pytest.raises(VerificationError, match="not the one that was written"):
        ledger.read(path, entry.digest)


def test_a_killed_process_leaves_no_openings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger.follow(None, SECRET, {"state": 2})
    ledger.append(path, first)
    second = ledger.follow(first, SECRET, {"state": 3})
    whole = path.read_bytes()
    ledger.append(path, second)
    path.write_bytes(whole)  # killed between the openings and the line
    ledger.cut(path, first.digest)
    assert [one.name for one in (tmp_path / "openings").iterdir()] == ["000001.json"]


def test_without_openings_of_its_state_a_run_does_not_open(trained: Path) -> None:
    shutil.rmtree(trained / "openings")
    with pytest.raises(CorruptError, match="no entry for state 1, or its file in openings/ is missing"):
        RunFolder.open(trained).trained()


def test_purge_erases_what_earlier_states_were(trained: Path, opened: Opened) -> None:
    """C13, C19: digests of heads and statistics that contained the forgotten."""
    run = opened(trained)
    before, statistics = run.head().digest, run.trained().statistics
    assert statistics is not None
    digests = [before, statistics["2"].digest]
    run.unlearn("2")
    assert "client 2" in run.unlearn("2").asked
    run.purge()
    entries = RunFolder.open(trained).entries()
    assert not is_open(entries[0].outputs["head"])
    assert not is_open(entries[0].outputs["trained"])
    assert not is_open(entries[1].inputs["head"])
    assert is_open(entries[1].outputs["trained"])
    assert request_of(entries[1]).clients == ("2",)  # its rows are in the cache still
    lines = (trained / "ledger.jsonl").read_text() + "".join(
        path.read_text() for path in (trained / "openings").iterdir()
    )
    assert [one for one in digests if one in lines] == []
    assert run.unlearn("1").state == 3


def test_purge_of_rows_erases_requests_and_sets(trained: Path, opened: Opened, store: DiskStore) -> None:
    """C19: a sample's id is a hash of its content, and a set's digest is one of all ids."""
    run = opened(trained)
    embeddings = run.folder.embeddings(store)
    sample = embeddings.ids[run.folder.partition().clients["1"][0]]
    digests = [sample, embeddings.digest, run.folder.partition().digest, run.head().digest]
    run.unlearn(samples=[sample])
    run.purge(rows=True)
    lines = (trained / "ledger.jsonl").read_text() + "".join(
        path.read_text() for path in (trained / "openings").iterdir()
    )
    assert [one for one in digests if one in lines] == []
    again = opened(trained)
    again.unlearn("2")
    again.purge(rows=True)
    assert len(again.trained().counts) == 3
    assert '"sealed"' in texts(trained)
