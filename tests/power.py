"""Processes that are killed at a chosen step, and disks that lose what was not synced."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FORK = multiprocessing.get_context("fork")
STEPS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
"""What changes a disk, as Python's own functions call it."""

TIMEOUT = 120


def _run_until(job: Callable[[], object], last: int) -> None:
    """Run a job and die just before its step of this number."""
    done = 0

    def counting(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return step(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(os, name, counting(getattr(os, name)))
    job()


def killed_at(job: Callable[[], object], step: int) -> bool:
    """Run a job in a process that is killed just before a step; whether it came that far."""
    process = FORK.Process(target=_run_until, args=(job, step))
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def killed_after(job: Callable[[], object], seconds: float) -> bool:
    """Run a job in a process that is killed after some seconds; whether it was still running."""
    process = FORK.Process(target=job)
    process.start()
    process.join(seconds)
    process.kill()
    process.join(TIMEOUT)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


Names = dict[int, dict[str, int]]
Contents = dict[int, bytes]


class Disk:
    """What would be left of a folder if the power failed: synced names and synced bytes.

    A disk may do more than it must: `ahead` has, after every change of a name, all names as they
    are, and still only the bytes that were synced.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = root.stat().st_ino
        self.handles = {self.top: os.open(root, os.O_RDONLY)}
        self.names: Names = {}
        self.contents: Contents = {}
        self.states: list[tuple[Names, Contents]] = []
        self.ahead: list[tuple[Names, Contents]] = []
        for folder in self._folders():
            self._list(folder)
            for path in folder.iterdir():
                if path.is_file():
                    self.contents[path.stat().st_ino] = path.read_bytes()

    def _folders(self) -> list[Path]:
        return [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]

    def _list(self, folder: Path) -> None:
        children = [path for path in folder.iterdir() if not path.is_symlink()]
        self.names[folder.stat().st_ino] = {path.name: self._hold(path) for path in children}

    def _hold(self, path: Path) -> int:
        """The inode of a file; held open, so that no other file gets its number."""
        inode = path.stat().st_ino
        if inode not in self.handles:
            self.handles[inode] = os.open(path, os.O_RDONLY)
            if path.is_dir():
                self.names.setdefault(inode, {})
            else:
                self.contents.setdefault(inode, b"")
        return inode

    def _synced(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if not path.is_relative_to(self.root):
            return
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            self._list(path)
        else:
            self.contents[self._hold(path)] = path.read_bytes()
        self.states.append((dict(self.names), dict(self.contents)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record every state that a power cut could leave."""
        sync = os.fsync

        def fsync(handle: int) -> None:
            sync(handle)
            self._synced(handle)

        def renaming(change: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                change(*args, **kwargs)
                self._look_ahead()

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            for name in ("rename", "replace", "unlink", "rmdir"):
                patch.setattr(os, name, renaming(getattr(os, name)))
            yield

    def _look_ahead(self) -> None:
        synced = self.names
        self.names = {}
        for folder in self._folders():
            self._list(folder)
        if not self.ahead or self.ahead[-1][0] != self.names:
            self.ahead.append((self.names, dict(self.contents)))
        self.names = synced
        for inode in self.ahead[-1][0]:
            self.names.setdefault(inode, {})

    def cut(self, state: int, *, ahead: bool = False) -> None:
        """Leave what would be there after this many fsyncs (`ahead`: changes of names)."""
        names, contents = (self.ahead if ahead else self.states)[state]
        shutil.rmtree(self.root)
        self._restore(self.root, self.top, names, contents)

    def _restore(self, path: Path, inode: int, names: Names, contents: Contents) -> None:
        if inode not in names:
            path.write_bytes(contents[inode])
            return
        path.mkdir()
        for name, child in names[inode].items():
            self._restore(path / name, child, names, contents)

    def close(self) -> None:
        for handle in self.handles.values():
            os.close(handle)
