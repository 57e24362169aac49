"""How far the training of a network is, in a file beside its run: what was interrupted goes on from there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from probekit.cache.matrices import map_tensors
from probekit.errors import CorruptError
from probekit.federated.federation import Traffic
from probekit.federated.trained import RoundState
from probekit.files import PRIVATE, storing
from probekit.runs import tensors
from probekit.runs.layout import checkpoint_path
from probekit.runs.options import TrainOptions
from probekit.values import Json, canonical

EVERY = 20.0
"""Seconds between two writings; the first is written at once."""
WEIGHT, PARAMS = "weight ", "params"
FREE = ("rounds", "tolerance", "at_least", "timeout")
"""What may be asked for anew without beginning anew."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """How far a training is: what the problem was made of, and where the rounds have come to (None: none is done)."""

    arrays: Mapping[str, NDArray[Any]]
    rounds: RoundState | None = None


@dataclass
class TrainingCheckpoint:
    """The file, for trainings with the same `key` only."""

    path: Path
    key: str
    _written: float = field(default=-EVERY, init=False)

    @classmethod
    def of(cls, run: Path, options: TrainOptions, rows: str) -> TrainingCheckpoint:
        """For a run with these options on rows of this digest."""
        asked = {name: value for name, value in options.plain.items() if name not in FREE}
        key = hashlib.sha256(canonical([rows, asked]).encode()).hexdigest()
        return cls(checkpoint_path(run), key)

    def load(self, note: Callable[[str], None] | None = None) -> TrainingState | None:
        """Where the same training was when it was interrupted, if it was; `note` is called with a remark on it."""
        try:
            arrays, about = map_tensors(self.path)
        except CorruptError:  # which a missing file is, too
            return None
        if about.get("key") != self.key:
            return None
        if note is not None:
            done = f"round {about['rounds']}" if PARAMS in arrays else "its pretraining"
            note(f"Going on after {done}, where this training was interrupted. To begin anew, remove {self.path}.")
        weights = {name.removeprefix(WEIGHT): value for name, value in arrays.items() if name != PARAMS}
        reached = RoundState(arrays[PARAMS], about["rounds"], Traffic(*about["sent"])) if PARAMS in arrays else None
        return TrainingState(weights, reached)

    def save(self, state: TrainingState) -> None:
        """Write it, unless that was done a moment ago."""
        reached = state.rounds
        note: dict[str, Json] = {"key": self.key, "rounds": 0, "sent": [0, 0, 0]}
        if time.monotonic() < self._written + EVERY and reached is not None:
            return
        arrays = {WEIGHT + name: value for name, value in state.arrays.items()}
        if reached is not None:
            arrays[PARAMS] = reached.params
            note |= {"rounds": reached.rounds, "sent": list(asdict(reached.sent).values())}
        with storing(self.path.parent):
            tensors.put(self.path, arrays, note, mode=PRIVATE)
        self._written = time.monotonic()

    def remove(self) -> None:
        """The training is over."""
        self.path.unlink(missing_ok=True)
