"""Files and folders that are made safe together."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from probekit import syncing
from probekit.files import make_folder, write_text


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was made safe, in order."""
    found: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        found.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_together_each_is_made_safe_once_and_at_the_end(tmp_path: Path, synced: list[str]) -> None:
    place = tmp_path / "place"
    with syncing.together():
        make_folder(place)
        for name in ("a", "b", "b"):
            write_text(place / name, name)
        assert synced == []
    assert sorted(name.split(" ")[0] for name in synced) == sorted(["a", "b", "b", "place", tmp_path.name])
    synced.clear()
    write_text(place / "c", "c")
    assert synced[1:] == ["place"]  # afterwards at once again


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_what_failed_is_left_unsafe_and_closed(tmp_path: Path, synced: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        _failing(tmp_path)
    assert synced == []
    assert _held(tmp_path) == 0


def _failing(place: Path) -> None:
    with syncing.together():
        write_text(place / "a", "a")
        assert _held(place) > 0
        raise ZeroDivisionError


def _held(place: Path) -> int:
    """How many files of this folder, and the folder itself, are open: others open and close theirs meanwhile."""
    found = 0
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += handle.readlink().is_relative_to(place)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_no_more_are_held_open_than_so_many(tmp_path: Path, synced: list[str]) -> None:
    most = 0
    with syncing.together():
        for number in range(3 * syncing.MOST_OPEN):
            write_text(tmp_path / str(number), "")
            most = max(most, _held(tmp_path))
    assert syncing.MOST_OPEN // 2 < most <= syncing.MOST_OPEN
    assert len(synced) > 3 * syncing.MOST_OPEN
    assert _held(tmp_path) == 0
