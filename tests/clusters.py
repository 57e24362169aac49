"""Workers of the Ray that this process started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def workers(doing: str) -> Iterator[int]:
    """The processes of our Ray that do this now."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
            if title.startswith(f"ray::{doing}".encode()) and _parent(_parent(int(folder.name))) == os.getpid():
                yield int(folder.name)
        except (OSError, ValueError):
            continue


def kill_one(doing: str, *, seconds: float = 60.0) -> int:
    """Kill the first worker that does this; gives its number."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for number in workers(doing):
            os.kill(number, signal.SIGKILL)
            return number
        time.sleep(0.005)
    raise AssertionError(f"Nobody did {doing} for {seconds} seconds.")


def _parent(number: int) -> int:
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
