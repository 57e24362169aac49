"""Progress of long work: a callable that the library calls and the command line draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """`done` of `total` items of a stage ("encoding", "reading"), and a note beside it."""

    stage: str
    done: int
    total: int | None = None
    note: str = ""


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Shows nothing."""
