"""Bundles are read with distrust: nothing outside of them, no links, no bombs, no part more, less or changed."""

from __future__ import annotations

import contextlib
import io
import secrets
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from probekit.custody import archive
from probekit.custody.archive import LEDGER, MANIFEST, STATEMENT, SUMS, TRANSITIONS, WEIGHTS, Archive, is_archive
from probekit.custody.signatures import new_private_key, public_key_of
from probekit.errors import InputError, NotFoundError, VerificationError

PARTS = {STATEMENT: b"in plain words\n", LEDGER: b"{}", TRANSITIONS: b"[]", "certificate-0002.json": b"{}"}
WHOLE = Archive({"run": "ab"}, {**PARTS, WEIGHTS: bytes(3000), SUMS: b"12345678"})
Entries = dict[str, tuple[bytes, Mapping[str, int]]]


def entries_of(data: bytes) -> Entries:
    """Every part of an archive, and how it is packed."""
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        return {
            one.filename: (opened.read(one), {"type": one.compress_type, "attr": one.external_attr})
            for one in opened.infolist()
        }


def packed(entries: Entries, more: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    """An archive of anything."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        every = [*((name, *one) for name, one in entries.items()), *((name, data, {}) for name, data in more)]
        for name, data, how in every:
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = how.get("type", zipfile.ZIP_DEFLATED), how.get("attr", 0)
            made.writestr(info, data)
    return target.getvalue()


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    key = new_private_key()
    signed = WHOLE.signed(key)
    path.write_bytes(signed.data)
    assert Archive.read(path) == signed
    assert signed.data == WHOLE.signed(key).data  # whenever it is packed
    assert is_archive(path)
    Archive.read(path).check_signature(public_key_of(key))
    with pytest.raises(VerificationError):
        Archive.read(path).check_signature(public_key_of(new_private_key()))
    with pytest.raises(VerificationError, match="not signed"):
        WHOLE.check_signature()
    with pytest.raises(VerificationError):
        replace(signed, about={"run": "ac"}).check_signature()
    path.write_bytes(WHOLE.data)
    assert Archive.read(path).json(LEDGER) == {}
    with pytest.raises(VerificationError, match="cannot be read"):
        Archive.read(path).json(STATEMENT)
    with pytest.raises(NotFoundError):
        Archive.read(tmp_path / "none.zip")


@pytest.mark.parametrize(
    "name", ["../out.json", "/etc/passwd", "head/../../x", "C:\\x", "certificate-0002.json/", "head/", "x", "a\0b"]
)
@pytest.mark.filterwarnings("ignore:Duplicate")
def test_no_part_leaves_the_bundle(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(packed(entries_of(WHOLE.data), ((name, b"x"),)))
    with pytest.raises(VerificationError, match="is not a bundle"):
        Archive.read(path)
    assert {one.name for one in tmp_path.iterdir()} == {"bundle.zip"}


def _link(entries: Entries) -> Entries:
    return {**entries, LEDGER: (b"/etc/passwd", {**entries[LEDGER][1], "attr": 0o120777 << 16})}


def _bomb(entries: Entries) -> Entries:
    return {**entries, LEDGER: (bytes(archive.MOST_UNPACKED + 1), entries[LEDGER][1])}


def _packed_weights(entries: Entries) -> Entries:
    return {**entries, WEIGHTS: (bytes(2**20), {"type": zipfile.ZIP_DEFLATED})}


def _stored(entries: Entries) -> Entries:
    return {**entries, LEDGER: (entries[LEDGER][0], {"type": zipfile.ZIP_STORED})}


def _another_kind(entries: Entries) -> Entries:
    return {**entries, MANIFEST: (entries[MANIFEST][0].replace(b"bundle 1", b"bundle 2"), entries[MANIFEST][1])}


def _many(entries: Entries) -> Entries:
    return {**entries, **{f"certificate-{n:04d}.json": (b"{}", {}) for n in range(100)}}


@pytest.mark.parametrize(
    "change",
    [
        _link,
        _bomb,
        _packed_weights,
        _stored,
        _another_kind,
        _many,
        lambda entries: {**entries, LEDGER: (b"[]", entries[LEDGER][1])},
        lambda entries: {name: one for name, one in entries.items() if name != TRANSITIONS},
        lambda entries: {name: one for name, one in entries.items() if name != MANIFEST},
        lambda entries: {**entries, "certificate-0003.json": (b"{}", entries[LEDGER][1])},
        *(
            lambda entries, text=text: {**entries, MANIFEST: (text, entries[MANIFEST][1])}
            for text in (b"", b"[" * 9999, b"\xff", b"[]", b'{"manifest":{},"manifest":{}}', b'{"manifest":1}')
        ),
    ],
)
def test_whatever_was_changed_is_refused(tmp_path: Path, change: Callable[[Entries], Entries]) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(packed(entries_of(WHOLE.data)))
    Archive.read(path)
    path.write_bytes(packed(change(entries_of(WHOLE.data))))
    with pytest.raises(VerificationError):
        Archive.read(path)


@pytest.mark.filterwarnings("ignore:Duplicate")
def test_a_part_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(packed(entries_of(WHOLE.data), ((LEDGER, b"{}"),)))
    with pytest.raises(VerificationError, match="twice"):
        Archive.read(path)


def test_every_cut_and_flip_is_refused_or_the_same(tmp_path: Path) -> None:
    """Bytes that zip does not look at may change; no part ever does."""
    path, data = tmp_path / "bundle.zip", WHOLE.data
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(VerificationError):
            Archive.read(path)
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with contextlib.suppress(VerificationError):
            assert Archive.read(path) == WHOLE


def test_a_table_of_contents_beyond_measure_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    data = WHOLE.data
    for field, value in ((8, 65535), (10, 65535), (12, 2**31)):
        end = bytearray(data[-22:])
        end[field : field + (4 if field == 12 else 2)] = struct.pack("<L" if field == 12 else "<H", value)
        path.write_bytes(data[:-22] + bytes(end))
        with pytest.raises(VerificationError, match="table of contents"):
            Archive.read(path)


def test_what_is_too_large_is_neither_written_nor_read(tmp_path: Path) -> None:
    noise = secrets.token_bytes(1_100_000)
    large = replace(WHOLE, parts={**PARTS, LEDGER: noise})
    with pytest.raises(InputError, match="Put fewer requests into one"):
        _ = large.data
    path = tmp_path / "bundle.zip"
    path.write_bytes(packed({LEDGER: (noise, {})}))
    with pytest.raises(VerificationError, match="without head and sums"):
        Archive.read(path)
    path.write_bytes(replace(WHOLE, parts={**PARTS, WEIGHTS: noise, SUMS: noise}).data)  # which are aside
    assert Archive.read(path).parts[SUMS] == noise
