"""Memory and processor time of processes and all that they start, by what they do in a federation."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

INTERVAL = 0.1
TICK = os.sysconf("SC_CLK_TCK")
ROLES = {
    "flower.server": "proxy",
    "private superlink": "superlink",
    "private supernode": "supernode",
    "flower.executor": "node",
    "flower.supervisor": "supervisor",
    "files import serve": "node",
    "ray::": "worker",
    "/ray/": "ray's own",
}
"""What a command line holds, and what such a process is; all others are the server's command."""


@dataclass
class Seen:
    """What a process has taken: processor seconds before and so far, and its largest memory."""

    role: str
    before: float
    cpu: float
    megabytes: float = 0.0


@dataclass
class Watching:
    """Looks at the processes below some, while it is entered; those that were there before count from then on."""

    roots: Iterable[int] = ()
    seen: dict[int, Seen] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.look(first=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.look()

    def look(self, *, first: bool = False) -> None:
        """Look at all processes once."""
        for pid in below(self.roots):
            with suppress(OSError, ValueError, IndexError):
                cpu, line = _processor(pid), Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                one = self.seen.setdefault(pid, Seen("", cpu if first else 0.0, cpu))
                one.role = next((role for text, role in ROLES.items() if text in line), "server")
                one.cpu, one.megabytes = cpu, max(one.megabytes, _peak(pid))

    @property
    def memory(self) -> dict[str, float]:
        """The largest memory of a process, by role, in megabytes."""
        roles = {one.role for one in self.seen.values()}
        return {role: round(max(one.megabytes for one in self.seen.values() if one.role == role)) for role in roles}

    @property
    def cpu(self) -> float:
        """Processor seconds of all processes since it was entered."""
        return sum(one.cpu - one.before for one in self.seen.values())


def below(roots: Iterable[int]) -> set[int]:
    """These processes and all that they, and theirs, started."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(_stat(int(place.name))[1]), []).append(int(place.name))
    found, todo = set[int](), list(roots)
    while todo:
        one = todo.pop()
        found.add(one)
        todo += parents.get(one, [])
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may have spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _processor(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICK


def _peak(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0
