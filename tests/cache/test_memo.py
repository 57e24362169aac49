"""The memo knows unchanged files, and forgets rather than err."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from probekit.cache import Cache

DECODER = "decoder 1"
SAMPLE = b"\x07" * 32


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change time cannot be set: let everything older than 50 ms count as settled."""
    monkeypatch.setattr("probekit.cache.memo.SETTLED_NANOSECONDS", 50_000_000)


def old_file(path: Path, content: bytes = b"picture") -> Path:
    path.write_bytes(content)
    time.sleep(0.06)
    return path


def remember(cache: Cache, path: Path, sample_id: bytes = SAMPLE) -> None:
    key = cache.memo.key(path, DECODER)
    assert key is not None
    cache.memo.remember(key, sample_id)


def lookup(cache: Cache, path: Path, decoder: str = DECODER) -> bytes | None:
    return cache.memo.lookup(cache.memo.key(path, decoder))


def test_a_file_is_known_in_the_next_process(cache: Cache, tmp_path: Path) -> None:
    path = old_file(tmp_path / "a.png")
    assert lookup(cache, path) is None
    remember(cache, path)
    assert lookup(cache, path) == SAMPLE
    assert lookup(Cache(cache.root), path) is None
    cache.memo.flush()
    assert lookup(Cache(cache.root), path) == SAMPLE
    assert lookup(Cache(cache.root), path, "decoder 2") is None


def test_relative_paths_mean_the_same_file(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "a.png")
    remember(cache, path)
    monkeypatch.chdir(tmp_path)
    assert lookup(cache, Path("a.png")) == SAMPLE


def test_a_changed_file_is_not_known(cache: Cache, tmp_path: Path) -> None:
    path = old_file(tmp_path / "a.png")
    status = path.stat()
    remember(cache, path)
    old_file(path, b"PICTURE")  # of the same size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    time.sleep(0.06)
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert cache.memo.key(path, DECODER) is not None
    assert lookup(cache, path) is None


def test_a_copy_or_a_moved_file_is_not_known(cache: Cache, tmp_path: Path) -> None:
    path = old_file(tmp_path / "a.png")
    remember(cache, path)
    shutil.copy2(path, tmp_path / "b.png")
    time.sleep(0.06)
    assert lookup(cache, tmp_path / "b.png") is None
    path.rename(tmp_path / "c.png")
    time.sleep(0.06)
    assert lookup(cache, tmp_path / "c.png") is None
    assert lookup(cache, path) is None


def test_a_fresh_file_and_one_from_the_future_are_not_trusted(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "a.png")
    os.utime(path, (time.time() + 3600, time.time() + 3600))
    time.sleep(0.06)
    assert cache.memo.key(path, DECODER) is None
    os.utime(path, (1, 1))  # an old mtime, but a fresh ctime
    monkeypatch.setattr("probekit.cache.memo.SETTLED_NANOSECONDS", 2_000_000_000)
    assert cache.memo.key(path, DECODER) is None


@pytest.mark.parametrize("place", [3, 40, -1])
def test_a_damaged_memo_counts_as_empty(cache: Cache, tmp_path: Path, place: int) -> None:
    path = old_file(tmp_path / "a.png")
    remember(cache, path)
    cache.memo.flush()
    content = bytearray((cache.root / "memo").read_bytes())
    content[place] ^= 1
    (cache.root / "memo").write_bytes(content)
    again = Cache(cache.root)
    assert lookup(again, path) is None
    remember(again, path)
    again.memo.flush()
    assert lookup(Cache(cache.root), path) == SAMPLE


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 97])
def test_any_bytes_in_its_place_count_as_empty(
    cache: Cache, tmp_path: Path, content: bytes
) -> None:
    path = old_file(tmp_path / "a.png")
    cache.root.mkdir()
    (cache.root / "memo").write_bytes(content)
    assert lookup(cache, path) is None


def test_two_processes_add_to_one_memo(cache: Cache, tmp_path: Path) -> None:
    first = old_file(tmp_path / "a.png")
    second = old_file(tmp_path / "b.png")
    other = Cache(cache.root)
    assert lookup(other, second) is None
    remember(cache, first)
    remember(other, second, b"\x08" * 32)
    cache.memo.flush()
    other.memo.flush()
    assert lookup(Cache(cache.root), first) == SAMPLE
    assert lookup(Cache(cache.root), second) == b"\x08" * 32


def test_the_oldest_are_dropped(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probekit.cache.memo.MAX_FILES", 2)
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths:
        remember(cache, old_file(path))
    cache.memo.flush()
    assert [lookup(Cache(cache.root), path) for path in paths] == [None, SAMPLE, SAMPLE]
    assert (cache.root / "memo").stat().st_size == 32 + 2 * 64
