"""Removals that are not left half done: what one will do is written down before it begins, and struck out at its end.

A journal is one file in the folder that the removal changes, a cache or a run. While it is there, every other command
on that folder refuses; the same command finishes what it says, from whatever step it had come to.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from probekit.errors import UnfinishedError
from probekit.files import PRIVATE, read_json, remove_file, storing, sweep, write_json
from probekit.values import Json

JOURNAL = "purge.json"
MOST_BYTES = 2**32
"""The size of a journal that is read at all: it lists every row that goes."""


def begin(folder: Path, plan: Mapping[str, Json]) -> dict[str, Any]:
    """Write down what will be done; from here on it will be. Gives the plan with its name and time."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    plan = {"operation": secrets.token_hex(8), "begun": now, **plan}
    write_json(folder / JOURNAL, plan, mode=PRIVATE)
    return plan


def pending(folder: Path) -> dict[str, Any] | None:
    """What was begun in a folder and is not finished."""
    path = folder / JOURNAL
    found: dict[str, Any] | None = read_json(path, MOST_BYTES) if path.exists() else None
    return found


def strike(folder: Path) -> None:
    """All of it is done."""
    remove_file(folder / JOURNAL)


def reached(step: str) -> None:
    """Called after every step of a removal: the place where a test can end the process."""


def refuse(folder: Path) -> None:
    """Refuse a folder in which a removal is under way or was interrupted."""
    plan = pending(folder)
    if plan is not None:
        raise UnfinishedError(
            f"In {folder} a removal began at {plan['begun']} and is not finished. If no other process is at it, "
            f"finish it first: {plan['command']}"
        )


def lock_of(root: Path) -> FileLock:
    """The one lock of a cache. A thread that has it may take it again."""
    return FileLock(str(root.absolute() / ".lock"), is_singleton=True)


@contextmanager
def changing(root: Path, *, removing: bool = False) -> Iterator[None]:
    """Held for the moments in which a cache changes; leftovers of a killed process are swept.

    Refuses while a removal is unfinished, except to the one that is `removing`.
    """
    with storing(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = lock_of(root)
        with lock:
            if lock.lock_counter == 1:
                if not removing:
                    refuse(root)
                sweep(root, "*", "rows/*", "rows/*/*")
            yield


def check_ready(root: Path) -> None:
    """Refuse a cache with an unfinished removal to everybody but the one who is at it."""
    if (root / JOURNAL).exists() and not lock_of(root).is_locked:
        refuse(root)
