"""Files appear whole or not at all, and are read by others as what they are."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from probekit.errors import StorageError
from probekit.files import ASIDE, make_folder, new_file, new_folder, restore_folder, write_json


def test_a_read_only_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(StorageError, match="read-only"):
        write_json(tmp_path / "a.json", {})


def test_replacing_a_file_leaves_nothing_aside(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    write_json(tmp_path / "a.json", {"a": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert not list(tmp_path.glob(f"{ASIDE}*"))


def test_a_file_takes_its_place_when_all_of_it_is_written(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "a"
    with new_file(place) as handle:
        handle.write(b"one")
        assert not place.exists()
    with pytest.raises(TypeError), new_file(place) as handle:
        handle.writelines([b"two", "no bytes"])  # type: ignore[list-item]
    assert place.read_bytes() == b"one"
    assert [path.name for path in place.parent.iterdir()] == ["a"]


def _content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("aside", [None, ".aside-it"])
def test_a_folder_takes_its_place_when_all_of_it_is_written(tmp_path: Path, aside: str | None) -> None:
    place, beside = tmp_path / "deep" / "a", aside and tmp_path / "deep" / aside
    for text in ("one", "two"):
        with new_folder(place, aside=beside or None) as folder:
            (folder / text).write_text(text)
            assert not (place / text).exists()
        assert _content(place) == {text: text}
    with pytest.raises(FileNotFoundError), new_folder(place) as folder:
        (folder / "none").read_bytes()
    assert _content(place) == {"two": "two"}
    assert [path.name for path in place.parent.iterdir()] == ["a"]


def test_what_a_killed_process_left_aside_goes(tmp_path: Path) -> None:
    aside = tmp_path / ".aside-it"
    (aside / "half").mkdir(parents=True)
    with new_folder(tmp_path / "a", aside=aside) as folder:
        (folder / "whole").write_text("whole")
    assert _content(tmp_path / "a") == {"whole": "whole"}


@pytest.mark.parametrize("killed", [1, 2])
def test_a_replacement_that_is_cut_off_leaves_the_old_folder_or_the_new(
    tmp_path: Path, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, renames = tmp_path / "a", 0
    with new_folder(place) as folder:
        (folder / "one").write_text("one")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == killed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), new_folder(place) as folder:
        (folder / "two").write_text("two")
    assert _content(place) == {"one": "one"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_killed_replacement_is_undone_or_finished(tmp_path: Path) -> None:
    place, old = tmp_path / "a", tmp_path / ".old-a"
    old.mkdir()
    (old / "one").write_text("one")
    restore_folder(place)
    assert _content(place) == {"one": "one"}
    old.mkdir()
    restore_folder(place)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_files_and_folders_are_as_closed_as_what_they_stand_in(tmp_path: Path) -> None:
    """C10: by the mode that they are made with, whatever the umask is."""
    before = os.umask(0)
    try:
        for name, mode in (("open", 0o777), ("team", 0o770), ("own", 0o700)):
            (tmp_path / name).mkdir(mode)
            make_folder(tmp_path / name / "in" / "side")
            write_json(tmp_path / name / "in" / "side" / "file", {})
            with new_folder(tmp_path / name / "closed", closed=True) as aside:
                assert aside.stat().st_mode & 0o777 == 0o700
                write_json(aside / "file", {})
            modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / name / "in").rglob("*")}
            assert modes == {"side": mode, "file": mode & 0o666}
            assert (tmp_path / name / "closed" / "file").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
