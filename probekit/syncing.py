"""What is written made to survive a power cut: at once, or several files and folders together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

MOST_OPEN = 64
"""So many are held open before they are made safe."""

_later: ContextVar[dict[tuple[int, int], int] | None] = ContextVar("later", default=None)
"""Open files and folders that are made safe later, each once."""


@contextmanager
def together() -> Iterator[None]:
    """Make what is written meanwhile safe when this ends: a file or folder once, however often it was changed.

    For what nothing points at before: whoever dies in between leaves what the next command sweeps away.
    """
    held: dict[tuple[int, int], int] = {}
    token = _later.set(held)
    try:
        yield
        _sync(held)
    finally:
        _later.reset(token)
        for handle in held.values():
            os.close(handle)


def sync_file(handle: int) -> None:
    """Make the bytes of an open file survive a power cut."""
    held = _later.get()
    if held is None:
        os.fsync(handle)
        return
    found = os.fstat(handle)
    if (found.st_dev, found.st_ino) not in held:
        held[found.st_dev, found.st_ino] = os.dup(handle)
    if len(held) >= MOST_OPEN:
        _sync(held)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def _sync(held: dict[tuple[int, int], int]) -> None:
    while held:
        handle = held.popitem()[1]
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
