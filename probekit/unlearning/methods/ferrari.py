"""Ferrari (Gu et al., NeurIPS 2024): the target alone makes its outputs blind to a feature, by noise on its place.

On a linear head the gradient of E |W^T d| / |d| lies in the span of d: W shrinks there and nowhere else. The public
code takes the noisy side for constant (`detach`): its gradient is x (W^T d)^T / (|W^T d| |d|), whose mean over d and -d
is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.models.fitting import Noise
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import averaged, fits, local_plan
from probekit.values import Array

PAIRS = "pairs"
"""By which name pairs of inputs are kept: arrays "with" and "without" the feature, row by row."""
SPACES = ("picture", "embedding")
PLACE = (
    "the feature's place (`ferrari:region=ROW:COLUMN:SIDE` of a picture, or `region=FIRST:END` of the inputs), or "
    "pairs with and without it"
)


@dataclass(frozen=True)
class Ferrari:
    """`steps` of the forgotten clients against how much outputs move with the inputs of a `region`.

    region: ROW:COLUMN:SIDE of a square picture (rows of pixels), or FIRST:END of the inputs; empty: kept pairs.
    space: "picture" (inputs between 0 and 1), or "embedding" (heads only: noise in units of each column's spread).
    `draws`, `low`, `high`: noise for each row and its size. `reduce=sum` is the public code's, whose step grows with
    the batch; `detach`, too, takes the noisy side for constant there.
    """

    name: ClassVar[str] = "ferrari"
    source: ClassVar[str] = "Gu et al., NeurIPS 2024"
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rate": (0.0003, 0.001, 0.003, 0.01, 0.1, 1.0)}

    region: str = ""
    space: str = "picture"
    steps: int = 100
    batch: int = 128
    rate: float = 0.01
    draws: int = 20
    low: float = 0.05
    high: float = 1.0
    reduce: str = "mean"
    detach: bool = False

    def __post_init__(self) -> None:
        if self.space not in SPACES or self.reduce not in ("mean", "sum"):
            found = f"{self.space} and {self.reduce}"
            raise InputError(f"ferrari takes space picture or embedding, reduce mean or sum; found {found}.")
        if min(self.steps, self.batch, self.draws) < 1 or not 0 < self.low <= self.high:
            raise InputError("ferrari takes steps, a batch and draws of 1 or more, and 0 < low <= high.")
        if self.region and not (numbers := self._numbers()):
            raise InputError(f"A region is ROW:COLUMN:SIDE or FIRST:END; found {self.region!r} {numbers or ''}".strip())

    @property
    def needs(self) -> tuple[Any, ...]:
        """The target; of the feature its place or pairs; and, in embedding space, a head."""
        place = () if self.region else (("kept", PAIRS, PLACE),)
        heads = (("problem", "statistics"),) if self.space == "embedding" else ()
        return (*heads, ("target", "fit"), *place)

    def unlearn(self, removal: Removal) -> Unlearned:
        """What the forgotten clients' steps come to."""
        noise = Noise(self.draws, self.low, self.high, self.space == "embedding", self.reduce, self.detach)
        how: Any = {"steps": self.steps, "batch": self.batch, "rate": self.rate, "optimiser": "sgd"}
        plan = local_plan(removal, **how, ridge=0.0, noise=noise)
        counts = removal.target.counts
        params = averaged(removal, fits(removal.target, removal.params, plan, **self._moved(removal)), counts)
        flops = 8 * self.steps * min(self.batch, max(counts.values())) * self.draws * params.size
        return removal.finish(self, params=params, flops=flops, note="The retained clients were not asked.")

    def _moved(self, removal: Removal) -> dict[str, Array]:
        """Which inputs are moved, and how."""
        if not self.region:
            kept = removal.before.kept[PAIRS].arrays
            return {"pairs": np.asarray(kept["with"] - kept["without"], np.float64)}
        head: Any = removal.before.head
        size, numbers = head.dimension, self._numbers()
        found = np.zeros(size)
        if len(numbers) == 2:
            found[numbers[0] : numbers[1]] = 1.0
        else:
            (row, column, side), (channels, width) = numbers, _square(size)
            found.reshape(channels, width, width)[:, row : row + side, column : column + side] = 1.0
        if not found.any():
            raise InputError(f"The region {self.region} holds none of the {size} inputs. Choose one that does.")
        return {"region": found}

    def _numbers(self) -> tuple[int, ...]:
        """The region's numbers; empty where it has none."""
        parts = self.region.split(":")
        return tuple(map(int, parts)) if len(parts) in (2, 3) and all(one.isdigit() for one in parts) else ()


def _square(size: int) -> tuple[int, int]:
    """Channels and side of a square picture of so many numbers."""
    for channels in (1, 3):
        side = math.isqrt(size // channels)
        if channels * side * side == size:
            return channels, side
    raise InputError(f"Rows of {size} numbers are no square picture of 1 or 3 channels. Give region=FIRST:END.")
