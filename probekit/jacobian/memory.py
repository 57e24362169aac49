"""How much memory a computation will take, predicted before it runs, and how much is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from probekit.errors import InputError

MEMORY = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
SHARE = 0.8
"""Of the free memory that a plan may use."""


@dataclass(frozen=True)
class Prediction:
    """The bytes that a computation will hold at most, by what holds them."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        named = ", ".join(f"{name} {size_text(size)}" for name, size in self.parts.items())
        return f"{size_text(self.total)} ({named})"

    def require(self, free: int, *, remedy: str) -> None:
        """Refuse what does not fit."""
        if self.total > free:
            raise InputError(f"This needs {self} of memory, and {size_text(free)} is to be had. {remedy}")


def size_text(size: float) -> str:
    """Bytes as a person reads them."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.3g} {unit}"
    return f"{size:.0f} B"


def free_memory(device: torch.device) -> int:
    """The bytes that may be used on a device: most of what is free there now."""
    if device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(device)[0])
    return int(SHARE * min(_available(), _allowed()))


def _available() -> int:
    """What the machine has left."""
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 2**31


def _allowed() -> int:
    """What is left of this process group's limit, if it has one."""
    try:
        return int((GROUP / "memory.max").read_text()) - int((GROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
