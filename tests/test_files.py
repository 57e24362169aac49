"""Files appear whole or not at all, whatever kills the process; hostile JSON is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from probekit import files
from probekit.errors import CorruptError, StorageError
from tests.power import FORK, Disk, killed_at

OLD = b"old " * 100
NEW = b"new " * 200


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fill(folder: Path, content: bytes) -> None:
    with files.new_folder(folder) as aside:
        files.write_bytes(aside / "a", content)
        files.write_bytes(aside / "b", content)


def every_step(job: Callable[[], object], check: Callable[[], None], limit: int = 60) -> int:
    """Kill the job before each of its steps; the number of steps."""
    for step in range(limit):
        if not killed_at(job, step):
            return step
        check()
    raise AssertionError(f"more than {limit} steps")


def test_a_killed_replacement_of_a_file_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def check() -> None:
        assert target.read_bytes() in (OLD, NEW)
        files.sweep(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        files.write_bytes(target, OLD)

    files.write_bytes(target, OLD)
    steps = every_step(lambda: files.write_bytes(target, NEW), check)
    assert steps >= 3  # fsync, rename, fsync
    assert target.read_bytes() == NEW


def test_a_killed_replacement_of_a_folder_is_undone_or_finished(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def check() -> None:
        files.restore_folder(target)
        files.sweep(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert contents(target) in ({"a": OLD, "b": OLD}, {"a": NEW, "b": NEW})
        fill(target, OLD)

    fill(target, OLD)
    assert every_step(lambda: fill(target, NEW), check) > 5
    assert contents(target) == {"a": NEW, "b": NEW}


def test_a_killed_removal_leaves_nothing_half_under_the_name(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def check() -> None:
        assert not target.exists() or contents(target) == {"a": OLD, "b": OLD}
        files.sweep(tmp_path)
        fill(target, OLD)

    fill(target, OLD)
    assert every_step(lambda: files.remove_folder(target), check) > 3
    assert list(tmp_path.iterdir()) == []
    files.remove_folder(target)  # nothing there: nothing to do


@pytest.mark.parametrize("ahead", [False, True])
def test_a_power_cut_leaves_the_old_or_the_new_file(tmp_path: Path, ahead: bool) -> None:
    root = tmp_path / "disk"
    files.write_bytes(root / "a", OLD)
    disk = Disk(root)
    with disk.watching():
        files.write_bytes(root / "a", NEW)
        files.write_bytes(root / "deep" / "b", NEW)
    states = disk.ahead if ahead else disk.states
    assert len(states) >= (2 if ahead else 5)
    seen = set()
    for state in range(len(states)):
        disk.cut(state, ahead=ahead)
        seen.add((root / "a").read_bytes())
        deep = root / "deep" / "b"
        assert not deep.exists() or deep.read_bytes() == NEW
    assert seen <= {OLD, NEW}
    assert (root / "a").read_bytes() == NEW
    disk.close()


def test_the_simulated_disk_loses_what_was_not_synced(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    files.write_bytes(root / "a", OLD)
    disk = Disk(root)
    with disk.watching():
        (root / "careless").write_bytes(NEW)
        files.sync_folder(root)
    disk.cut(-1)
    assert (root / "careless").read_bytes() == b""
    disk.close()


def write_half(target: Path) -> None:
    with files.new_file(target) as file:
        file.write(b"half")
        raise RuntimeError


def fill_half(target: Path) -> None:
    with files.new_folder(target) as folder:
        (folder / "half").touch()
        raise RuntimeError


def test_a_failing_body_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a"
    files.write_bytes(target, OLD)
    with pytest.raises(RuntimeError):
        write_half(target)
    with pytest.raises(RuntimeError):
        fill_half(tmp_path / "folder")
    assert contents(target.parent) == {"a": OLD}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_sweep_looks_everywhere_and_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside, OLD)
    root = tmp_path / "root"
    deep = root / "x" / "y"
    deep.mkdir(parents=True)
    (deep / f"{files.ASIDE}file").touch()
    (deep / f"{files.ASIDE}folder" / "inside").mkdir(parents=True)
    (deep / f"{files.ASIDE}link").symlink_to(outside)
    (deep / "stays").touch()
    files.sweep(root)
    assert [path.name for path in deep.iterdir()] == ["stays"]
    assert contents(outside) == {"a": OLD, "b": OLD}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_full_and_read_only_disks_are_storage_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError) as caught:
        files.write_json(tmp_path / "a.json", {})
    assert str(tmp_path) in str(caught.value)
    assert caught.value.exit_code == 4
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_a_disk_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.write_json(tmp_path / "a.json", {})


def test_files_are_as_closed_as_their_folder(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name, mode in (("open", 0o777), ("team", 0o770), ("private", 0o700)):
            (tmp_path / name).mkdir(mode)
            target = tmp_path / name / "in" / "side" / "file"
            files.write_bytes(target, b"")
            assert target.parent.stat().st_mode & 0o777 == mode
            assert target.stat().st_mode & 0o777 == mode & 0o666
    finally:
        os.umask(before)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_json_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    target = tmp_path_factory.mktemp("json") / "a.json"
    files.write_json(target, value)
    assert files.read_json(target) == value


HOSTILE = {
    "repeated key": b'{"a": 1, "a": 2}',
    "repeated key inside": b'[{"b": {"a": 1, "a": 2}}]',
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "half of a character": b'["\\ud800"]',
    "half as a key": b'{"\\udfff": 1}',
    "no UTF-8": b'["\xff"]',
    "cut": b'{"a": [1, 2',
    "empty": b"",
    "huge number": b"1" * 5000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_damage(tmp_path: Path, name: str) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(HOSTILE[name])
    with pytest.raises(CorruptError) as caught:
        files.read_json(target)
    assert str(target) in str(caught.value)


@given(st.data())
def test_mutated_json_is_read_or_damage(data: st.DataObject) -> None:
    content = bytearray(json.dumps({"a": [1, {"b": None}], "c": "é"}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        files.parse_json(bytes(content))
    except ValueError:  # and nothing else
        return


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(CorruptError):
        files.read_json(fifo)  # would wait forever
    with pytest.raises(CorruptError):
        files.read_json(tmp_path)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would exhaust the memory
    with pytest.raises(CorruptError) as caught:
        files.read_json(large)
    assert str(1 << 40) in str(caught.value)
    with pytest.raises(CorruptError):
        files.read_limited(large, 10)


def test_a_lock_that_another_process_has_is_announced(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / ".lock")
    announced: list[str] = []
    files.acquire(lock, lambda: announced.append("free"))
    assert announced == []
    reader, writer = FORK.Pipe(duplex=False)

    def wait() -> None:
        files.acquire(FileLock(tmp_path / ".lock"), lambda: writer.send("waiting"))
        writer.send("taken")

    process = FORK.Process(target=wait)
    process.start()
    assert reader.poll(30)
    assert reader.recv() == "waiting"
    assert not reader.poll(0.2)
    lock.release()
    assert reader.poll(30)
    assert reader.recv() == "taken"
    process.join(30)


def test_digest_of_a_file_and_removal(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"abc")
    assert files.sha256_file(target).startswith("ba7816bf8f01cfea")
    target.with_name("b").symlink_to(tmp_path / "nowhere")
    files.remove_files([target, target.with_name("b"), tmp_path / "none" / "c"])
    assert not target.exists()
    assert not target.with_name("b").is_symlink()
    shutil.rmtree(tmp_path)
