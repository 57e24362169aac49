"""Rounds of FedAvg that are done, kept beside a run while it is trained: a kill loses seconds."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from probekit.arrays import Array
from probekit.errors import WireError
from probekit.files import ASIDE, make_folder, read_limited, remove_files, write_bytes
from probekit.records import dump, parse, record

SECONDS = 10.0
"""Between two writings."""
MAX_BYTES = 1 << 34


@record("run/rounds")
@dataclass(frozen=True, eq=False)
class RoundsDone:
    """The parameters after so many rounds. training: the digest of what determines them."""

    training: str
    rounds: int
    params: Array


class SavedRounds:
    """The file of a training that is under way; `erase` and the training's end remove it."""

    def __init__(self, target: Path, training: bytes) -> None:
        """target: the folder that the training will write; training: what determines it."""
        self.training = hashlib.sha256(training).hexdigest()
        self.path = target.with_name(f"{ASIDE}{target.name}-rounds-{self.training[:8]}")
        self.written = time.monotonic()

    def read(self) -> tuple[int, Array] | None:
        """The rounds that are done, and the parameters after them."""
        try:
            done = parse(read_limited(self.path, MAX_BYTES), RoundsDone, max_bytes=MAX_BYTES)
        except (OSError, WireError):
            return None
        return (done.rounds, done.params) if done.training == self.training else None

    def write(self, rounds: int, params: Array) -> None:
        if time.monotonic() - self.written < SECONDS:
            return
        make_folder(self.path.parent)
        write_bytes(self.path, dump(RoundsDone(self.training, rounds, params)))
        self.written = time.monotonic()

    def remove(self) -> None:
        """Those of trainings with other options, too, which were killed before this one."""
        pattern = f"{self.path.name.rpartition('-')[0]}-*"
        remove_files(self.path.parent.glob(pattern))
