"""The ledger: what was entered is read back, and any change to it is noticed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.custody.chain import Chain
from probekit.errors import VerificationError
from probekit.runs import ledger
from probekit.runs.ledger import FIRST, Event, LedgerEntry

EVENTS = st.builds(
    Event,
    st.text(min_size=1, max_size=8),
    st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=2),
    st.dictionaries(st.text(max_size=4), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
)


def written(path: Path, events: list[Event]) -> list[LedgerEntry]:
    """A ledger of these events."""
    entries: list[LedgerEntry] = []
    for number, event in enumerate(events):
        entry = ledger.follow(entries[-1] if entries else None, event, {"state": number + 1})
        ledger.append(path, entry)
        entries.append(entry)
    return entries


@given(st.lists(EVENTS, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_entries_are_read_as_they_were_written(events: list[Event]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger.jsonl"
        entries = written(path, events)
        assert ledger.read(path, entries[-1].digest) == entries
        assert [entry.number for entry in entries] == list(range(1, len(events) + 1))


@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_is_noticed(events: list[Event], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger.jsonl"
        tip = written(path, events)[-1].digest
        content = bytearray(path.read_bytes())
        where = data.draw(st.integers(0, len(content) - 1))
        content[where] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(VerificationError):
            ledger.read(path, tip)


def test_the_chain_is_sha256_of_canonical_json(tmp_path: Path) -> None:
    """What README promises to other programs: each line's digest can be recomputed with any JSON library."""
    path = tmp_path / "ledger.jsonl"
    written(path, [Event("train", {"set": "é"}), Event("unlearn", {}, {"client": "7"})])
    previous = FIRST
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        stated, before = fields.pop("digest"), fields.pop("previous")
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        body = hashlib.sha256(text.encode()).digest()
        assert hashlib.sha256(b"probekit.link.v1" + bytes.fromhex(before) + body).hexdigest() == stated
        assert before == previous
        previous = stated


def test_the_chain_is_shown_without_its_entries(tmp_path: Path) -> None:
    """Whoever noted an entry sees that the tip follows from it, and nothing of what other entries say."""
    entries = written(tmp_path / "ledger.jsonl", [Event("train"), Event("unlearn"), Event("purge")])
    chain = Chain(entries[0].anchor, tuple(bytes.fromhex(one.body) for one in entries[1:]))
    assert chain.tip == entries[-1].anchor
    chain.demand([entries[1].anchor])


def test_entries_of_format_1_are_read_and_followed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    old = LedgerEntry(1, "2026-01-01T00:00:00+00:00", "train", {}, {"state": 1}, {}, FIRST)
    assert "format" not in json.loads(old.line)
    text = {name: value for name, value in json.loads(old.line).items() if name != "digest"}
    assert old.digest == hashlib.sha256(json.dumps(text, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    ledger.append(path, old)
    new = ledger.follow(old, Event("unlearn"), {"state": 2})
    ledger.append(path, new)
    assert ledger.read(path, new.digest) == [old, new]


def test_a_missing_last_entry_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entries = written(path, [Event("train"), Event("unlearn")])
    path.write_bytes(entries[0].line)
    with pytest.raises(VerificationError, match="1 entries and none is"):
        ledger.read(path, entries[1].digest)


def test_a_missing_middle_entry_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entries = written(path, [Event("train"), Event("unlearn"), Event("unlearn")])
    path.write_bytes(entries[0].line + entries[2].line)
    with pytest.raises(VerificationError, match="Entry 2"):
        ledger.read(path, entries[2].digest)


def test_a_missing_ledger_is_told(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="is missing"):
        ledger.read(tmp_path / "ledger.jsonl", FIRST)


@pytest.mark.parametrize("tail", [b"", b'{"action":"unl', b"\0\0\0\n", b"{}\n"])
def test_what_a_killed_process_left_is_dropped(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    entries = written(path, [Event("train"), Event("unlearn")])
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    tip = entries[-1].digest
    assert ledger.read(path, tip) == entries
    assert ledger.beyond(path, tip) is None
    ledger.cut(path, tip)
    assert path.read_bytes() == whole


def test_an_entry_beyond_the_known_one_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entries = written(path, [Event("train"), Event("unlearn")])
    assert ledger.beyond(path, entries[0].digest) == entries[1]
    ledger.cut(path, entries[0].digest)
    assert path.read_bytes() == entries[0].line
