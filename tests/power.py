"""Processes that are killed at a chosen step, and disks that lose whatever was not made safe."""

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
STEPS = ("fsync", "rename", "unlink", "rmdir", "mkdir")
"""What changes a disk, as Python's own functions call it."""


def _counted(job: Callable[[], object], last: int) -> None:
    """Do a job and die just before its step of this number."""
    done = 0

    def counting(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return step(*arguments, **named)

        return call

    for name in STEPS:
        setattr(os, name, counting(getattr(os, name)))
    job()


def _to_be_killed(job: Callable[[], object], said: Path) -> None:
    """Do a job, then say so; somebody else ends it before."""
    job()
    said.touch()


def killed_after(job: Callable[[], object], seconds: float, said: Path) -> None:
    """Do a job in a process that is killed after so many seconds, if it is still at it; `said` is there if it ended."""
    process = FORK.Process(target=_to_be_killed, args=(job, said))
    process.start()
    process.join(seconds)
    process.kill()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)


def killed_at(job: Callable[[], object], step: int) -> bool:
    """Do a job in a process that is killed just before a step; gives whether it came so far."""
    process = FORK.Process(target=_counted, args=(job, step))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


Listing = dict[int, dict[str, int]]
Contents = dict[int, bytes]


class Disk:
    """What of a folder would be left if the power failed now: names that their folder's fsync made safe, and bytes.

    A disk may do more than it must: `ahead` has, after every change of a name, all names as they are, and still only
    those bytes that were made safe.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.top, self.open = root, root.stat().st_ino, {root.stat().st_ino: os.open(root, os.O_RDONLY)}
        self.names: Listing = {}
        self.bytes: Contents = {}
        self.states: list[tuple[Listing, Contents]] = []
        self.ahead: list[tuple[Listing, Contents]] = []
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            self._see(folder)
            for path in folder.iterdir():
                if path.is_file():
                    self.bytes[path.stat().st_ino] = path.read_bytes()

    def _see(self, folder: Path) -> None:
        found = {path.name: self._hold(path) for path in folder.iterdir() if not path.is_symlink()}
        self.names[folder.stat().st_ino] = found

    def _hold(self, path: Path) -> int:
        """The number of a file, which stays its own for as long as it is open."""
        number = path.stat().st_ino
        if number not in self.open:
            self.open[number] = os.open(path, os.O_RDONLY)
            if path.is_dir():
                self.names.setdefault(number, {})
            else:
                self.bytes.setdefault(number, b"")
        return number

    def synced(self, handle: int) -> None:
        """Something was made safe."""
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if not path.is_relative_to(self.root):
            return
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            self._see(path)
        else:
            self.bytes[self._hold(path)] = path.read_bytes()
        self.states.append((dict(self.names), dict(self.bytes)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is made safe, and when."""
        sync = os.fsync

        def fsync(handle: int) -> None:
            sync(handle)
            self.synced(handle)

        def changing(change: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                change(*arguments, **named)
                self._look_ahead()

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            for name in ("rename", "unlink", "rmdir"):
                patch.setattr(os, name, changing(getattr(os, name)))
            yield

    def _look_ahead(self) -> None:
        safe, self.names = self.names, {}
        for folder in [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]:
            self._see(folder)
        if not self.ahead or self.ahead[-1][0] != self.names:
            self.ahead.append((self.names, dict(self.bytes)))
        self.names = safe
        for number in self.ahead[-1][0]:
            self.names.setdefault(number, {})

    def cut(self, state: int, *, ahead: bool = False) -> None:
        """Leave what would be there if the power had failed after this many fsyncs (`ahead`: changes of names)."""
        shutil.rmtree(self.root)
        self._write(self.root, self.top, *(self.ahead if ahead else self.states)[state])

    def _write(self, place: Path, number: int, names: Listing, contents: Contents) -> None:
        if number in names:
            place.mkdir()
            for name, child in names[number].items():
                self._write(place / name, child, names, contents)
        else:
            place.write_bytes(contents[number])

    def close(self) -> None:
        """Let the files go."""
        for handle in self.open.values():
            os.close(handle)
