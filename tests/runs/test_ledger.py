"""The ledger: what was entered is read back, and any change to it is noticed."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.custody.chain import Chain
from probekit.errors import InputError, VerificationError
from probekit.runs import ledger
from probekit.runs.ledger import FIRST, Event, LedgerEntry
from probekit.values import canonical, digest

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
    file = ledger.LedgerFile(path)
    assert file.beyond(tip) is None
    file.cut(tip)
    assert path.read_bytes() == whole


def test_an_entry_beyond_the_known_one_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entries = written(path, [Event("train"), Event("unlearn")])
    file = ledger.LedgerFile(path)
    assert file.beyond(entries[0].digest) == entries[1]
    for tip, left in ((entries[1].digest, entries), (entries[0].digest, entries[:1])):
        file.cut(tip)
        assert path.read_bytes() == b"".join(one.line for one in left)
        assert file.entries(tip) == ledger.read(path, tip) == left


def sealed(**changes: Any) -> tuple[bytes, str]:
    """A first line of somebody who recomputes every digest, and its digest."""
    made = ledger.follow(None, Event("train"), {"state": 1})
    fields = {name: one for name, one in vars(made).items() if name not in ("format", "openings")} | changes
    return canonical({**fields, "digest": digest(fields)}).encode(), digest(fields)


SPELT: dict[str, Callable[[bytes], bytes]] = {
    "a key twice": lambda line: line.replace(b'{"action":', b'{"action":"purge","action":', 1),
    "a key twice inside": lambda line: line.replace(b'{"state":1', b'{"state":2,"state":1', 1),
    "spaces": lambda line: line.replace(b'":', b'": '),
    "escapes": lambda line: line.replace(b"train", b"tra\\u0069n"),
    "a further line": lambda line: line + b"\r",
    "another digest": lambda line: re.sub(rb'"digest":"[0-9a-f]+"', b'"digest":1', line),
}


@pytest.mark.parametrize("how", SPELT)
def test_an_entry_in_other_bytes_is_not_the_one_that_was_written(tmp_path: Path, how: str) -> None:
    """C12: whoever reads the first of two keys sees another entry than the one that the chain holds."""
    path = tmp_path / "ledger.jsonl"
    entry = written(path, [Event("train")])[0]
    line = path.read_bytes().removesuffix(b"\n")
    path.write_bytes(SPELT[how](line) + b"\n")
    assert path.read_bytes() != line + b"\n"
    with pytest.raises(VerificationError, match="not the one that was written"):
        ledger.read(path, entry.digest)


def test_hostile_lines_are_refused(tmp_path: Path) -> None:
    """C12: nesting, bytes that are no text, half a character, and fields of another kind."""
    path = tmp_path / "ledger.jsonl"
    nested: Any = []
    for _ in range(100):
        nested = [nested]
    kinds: list[dict[str, Any]] = [
        {"details": nested},
        {"outputs": []},
        {"outputs": {"state": "1"}},
        {"inputs": None},
        {"action": 1},
    ]
    garbage = (b"[" * 200_000, b'{"a":' * 50_000, b"\xff\xfe{}", b'{"action":"\\ud800"}', b"1" * 10_000, b"NaN", b"[]")
    lines = dict.fromkeys(garbage, "") | dict(sealed(**one) for one in kinds)
    for line, tip in lines.items():
        path.write_bytes(line + b"\n")
        with pytest.raises(VerificationError):
            ledger.read(path, tip)


def test_a_ledger_beyond_all_sizes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """C12: a file of 100 MB takes no half a minute; and no entry is added that could not be read again."""
    path = tmp_path / "ledger.jsonl"
    entry = written(path, [Event("train")])[0]
    with path.open("r+b") as handle:
        handle.truncate(100 * 2**20)
    with pytest.raises(VerificationError, match="104857600 bytes"):
        ledger.read(path, entry.digest)
    with pytest.raises(InputError, match="Train a new run"):
        ledger.append(path, ledger.follow(entry, Event("unlearn"), {"state": 2}))
