"""Products of the retained curvature with directions, as gradient rounds measure them, and what is kept of them.

A direction is made orthogonal to those asked before, and of length 1: its product is then as sure as a gradient, and
the products with all former directions follow without a round. What was measured bounds the curvature from below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.federated.loss import CommonLoss
from probekit.federated.trained import Kept, Trained
from probekit.unlearning.removal import Removal

PRODUCTS = "products"
"""By which name a run keeps them."""
KEPT_BYTES = 2**30
"""The most that directions and products together may take to be kept."""
TURNS = 4

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Products:
    """Directions (d, m), the mean retained loss's curvature times each, and how each was measured.

    A product is (g(w + s p) - g(w)) / s: `reach` is (|w| + |w + s p|) / s, `lever` 1 / s, and `coarse` says whether
    clients answered in their own precision, not in float64. `ridge` (in mean scaling) and `counts` name the loss.
    """

    directions: Array
    images: Array
    reach: Array
    lever: Array
    coarse: NDArray[np.bool_]
    precision: str
    ridge: float
    counts: Mapping[str, int]

    @property
    def kept(self) -> Kept:
        """As a run keeps them: they know the retained clients."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("directions", "images", "reach", "lever")}
        arrays["coarse"] = self.coarse.astype(np.int64)
        plain: Any = {"precision": self.precision, "ridge": self.ridge, "counts": dict(self.counts)}
        return Kept(arrays, plain=plain, about=frozenset(self.counts))

    @cached_property
    def digest(self) -> str:
        """The sha256 of what was asked and answered."""
        made = hashlib.sha256(f"probekit products 1\n{self.directions.shape}\n".encode())
        for one in (self.directions, self.images):
            for start in range(0, len(one), 4096):
                made.update(np.ascontiguousarray(one[start : start + 4096], "<f8").tobytes())
        return made.hexdigest()

    @classmethod
    def of(cls, trained: Trained) -> Self | None:
        """Those that a run kept, where they are of its own loss: the same rows and ridge."""
        found = trained.kept.get(PRODUCTS)
        if found is None:
            return None
        plain: Any = found.plain
        ours = plain["counts"] == dict(trained.counts) and plain["ridge"] == trained.mean_ridge(trained.rows)
        if not ours or not found.arrays["directions"].shape[1]:
            return None
        return cls(**{**found.arrays, "coarse": found.arrays["coarse"] != 0}, **plain)


@dataclass(eq=False)
class Measuring:
    """The curvature as an operator, by gradient rounds from `start`; `room` columns are kept, then none."""

    start: Array
    gradient: Array
    loss: CommonLoss
    room: int
    used: int = 0
    directions: Array = field(init=False)
    images: Array = field(init=False)
    reach: Array = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.start)
        self.directions, self.images = (np.empty((size, self.room), order="F") for _ in range(2))
        self.reach = np.empty(self.room)

    @property
    def scale(self) -> float:
        """How far to go: as long as the parameters are, so that no digits are lost in the difference."""
        return float(np.linalg.norm(self.start)) or 1.0

    def matvec(self, direction: Array) -> Array:
        """The curvature applied to a direction: one round."""
        length = float(np.linalg.norm(direction))
        if not length:
            return np.zeros_like(direction)
        width = direction.shape[1]
        if self.used + width > min(self.room, len(direction)):
            return self._asked(direction, self.scale / length)
        basis, images = self.directions[:, : self.used], self.images[:, : self.used]
        inside = basis.T @ direction
        fresh, triangle = np.linalg.qr(direction - basis @ inside)
        again = basis.T @ fresh  # what rounding left of the former directions
        inside += again @ triangle
        fresh, second = np.linalg.qr(fresh - basis @ again)
        image = self._asked(fresh, self.scale)
        part = slice(self.used, self.used + width)
        sizes = (np.linalg.norm(one, axis=0) for one in (self.start, self.start + self.scale * fresh))
        self.directions[:, part], self.images[:, part] = fresh, image
        self.reach[part] = sum(sizes) / self.scale
        self.used += width
        return np.asarray(images @ inside + image @ (second @ triangle))

    def dense(self) -> Array | None:
        """Never formed."""
        return None

    def _asked(self, direction: Array, scale: float) -> Array:
        return np.asarray((self.loss.gradient(self.start + scale * direction) - self.gradient) / scale)


def room_for(removal: Removal, rounds: int) -> int:
    """How many columns of products are kept of so many rounds: all, or none where that takes too much.

    Classes must share their curvature, or be one column.
    """
    size, width = removal.problem.shape
    shared = width == 1 or ("statistics" in removal.problem.traits and "targets" not in removal.problem.traits)
    columns = min(rounds * width, size)
    if removal.before.statistics is not None:  # these say more
        return 0
    return columns if shared and 16 * size * columns <= KEPT_BYTES else 0


def products(removal: Removal, measured: list[Measuring]) -> Products | None:
    """What some rounds measured, in one; None: nothing was kept."""
    some = [one for one in measured if one.used]
    if not some:
        return None
    precision = next((one.loss.precision for one in some if one.loss.precision != "float64"), "float64")
    return Products(
        np.hstack([one.directions[:, : one.used] for one in some]),
        np.hstack([one.images[:, : one.used] for one in some]),
        np.concatenate([one.reach[: one.used] for one in some]),
        np.concatenate([np.full(one.used, 1 / one.scale) for one in some]),
        np.concatenate([np.full(one.used, one.loss.precision != "float64") for one in some]),
        precision,
        removal.ridge,
        dict(removal.counts),
    )


def top_directions(squares: Any, count: int) -> Array:
    """The directions, at most so many, in which the server's own rows curve most; always the same ones."""
    size = squares.shape[0]
    count = min(count, size)
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((size, count)))[0]
    width = squares.shape[1]
    for _ in range(TURNS):  # subspace iteration: near is enough, products are true along any direction
        turned = [_padded(squares, block[:, first : first + width]) for first in range(0, count, width)]
        block = np.linalg.qr(np.hstack(turned))[0]
    return np.asarray(block)


def _padded(squares: Any, some: Array) -> Array:
    """The product with fewer columns than the problem has."""
    width = some.shape[1]
    whole = np.zeros((len(some), squares.shape[1]))
    whole[:, :width] = some
    return np.asarray(squares.product(whole)[:, :width])
