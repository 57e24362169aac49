"""Rows certified from the rounds, seen by a verifier: another route from the same products, which are asked again.

How far the products are off is not taken from how they were measured: clients are asked for random mixtures of them.
If E is their error and c normal, |E c| falls below |E| / SPREAD with a chance below 0.2; in all of `MIXTURES` at once
with less than 1e-16. What is left goes through eigenvalues in the span of directions and products.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.asked_look import AskedLook
from probekit.errors import VerificationError
from probekit.federated.federation import Federation
from probekit.models.problem import ScoredRows
from probekit.unlearning.products import Products

MIXTURES = 24
SPREAD = 4.0
ROUNDING = 2.0**-53

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RoundsLook:
    """A head where clients answer, with products to bound the curvature by."""

    look: AskedLook
    params: Array
    problem: Any
    clients: Federation
    products: Products

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """Directions of length 1 and their products: those answered in float64, where there are any."""
        given = self.products
        directions, images = (np.asarray(one, np.float64) for one in (given.directions, given.images))
        if directions.shape != images.shape or directions.shape[0] != self.params.shape[0]:
            raise VerificationError(f"Products must be of {self.params.shape[0]} parameters; found {images.shape}.")
        flags = np.asarray(given.coarse, bool)
        if flags.shape == (directions.shape[1],) and not flags.all():
            directions, images = directions[:, ~flags], images[:, ~flags]
        sizes = np.linalg.norm(directions, axis=0)
        directions, images = directions / sizes, images / sizes
        if not (np.isfinite(directions).all() and np.isfinite(images).all() and directions.size):
            raise VerificationError("Products must be finite, of directions that are not zero.")
        return directions, images

    @cached_property
    def error(self) -> tuple[float, float]:
        """How far all products together are off: at least as found in some mixture, and at most."""
        directions, images = self.pairs
        count, width = directions.shape[1], self.params.shape[1]
        seed = hashlib.sha256(b"probekit verify\n" + self.products.digest.encode()).digest()
        random = np.random.default_rng(int.from_bytes(seed, "big"))
        own, least, most = self._gradient_error, 0.0, 0.0
        for _ in range(math.ceil(MIXTURES / width)):
            mixture = random.standard_normal((count, width))
            asked = directions @ mixture
            step = (float(np.linalg.norm(self.params)) or 1.0) / float(np.linalg.norm(asked))
            there = self._gradient(self.params + step * asked)
            off = np.linalg.norm((there - self.look.gradient) / step - images @ mixture, axis=0)
            size = float(np.linalg.norm(images)) * float(np.linalg.norm(mixture))
            room = 2 * own / step + 4 * (count + 8) * ROUNDING * size
            largest = float(np.linalg.norm(mixture, axis=0).max())
            least = max(least, float(off.max()) / largest - room)
            most = max(most, float(off.max()) + room)
        return least, SPREAD * most

    def _gradient(self, params: Array) -> Array:
        """Another gradient round, added up as the first was."""
        total, rows = np.zeros_like(params), sum(self.clients.counts.values())
        for one in self.clients.ask("gradient", {"params": params}, precision="float64").each():
            total = total + one.arrays["gradient"]
        return np.asarray(total / rows + self.problem.penalty(float(self.look.ridge)) * params)

    @cached_property
    def _gradient_error(self) -> float:
        """What rounding may do to a gradient at parameters of about this size."""
        rows, energy = sum(self.clients.counts.values()), float(self.look.energy) + float(self.look.ridge)
        terms = len(self.params) + rows + 64
        summing = 2.0**-24 if self.problem.arithmetic == "fast" else ROUNDING
        size = 2 * float(np.linalg.norm(self.params)) * energy + math.sqrt(energy)
        return terms * max(summing, ROUNDING) * size + float(np.linalg.norm(self.look.error))

    @cached_property
    def _space(self) -> _Space:
        directions, images = self.pairs
        if not self.look.ridge:
            raise VerificationError("Nothing holds every parameter: products alone bound no distance.")
        return _Space.of(directions, images, float(self.look.ridge), self.error[1], float(self.look.energy))

    def certain(self, block: ScoredRows) -> NDArray[np.bool_]:
        """Which rows the minimum gives the class that the head gives them."""
        top, every = block.scores.argmax(axis=1), np.arange(len(block.scores))
        leads = block.scores[every, top][:, None] - block.scores
        leads[every, top] = np.inf
        moved = self._shared(block, top) if block.rows is not None else self._apart(block, top)
        sizes = np.abs(block.scores).max(axis=1, keepdims=True)
        return np.asarray((leads > moved + 2.0**-40 * sizes).all(axis=1))

    def _shared(self, block: ScoredRows, top: NDArray[np.int64]) -> Array:
        rows, space, slope = block.rows, self._space, self.look.gradient
        assert rows is not None
        every = [
            space.moves(rows, rows @ space.span, slope[:, [one]] - slope, hidden=2 * self._gradient_error)
            for one in range(slope.shape[1])
        ]
        return np.asarray(np.stack(every)[top, np.arange(len(top))])

    def _apart(self, block: ScoredRows, top: NDArray[np.int64]) -> Array:
        assert block.images is not None
        assert block.apart is not None
        place, space, slope = np.arange(len(top)), self._space, self.look.gradient
        seen = block.images(np.hstack([space.span, slope]))
        seen = seen[place, top][:, None, :] - seen
        flat = seen.reshape(-1, seen.shape[-1])
        found = space.moves(
            None,
            flat[:, :-1],
            slope,
            hidden=self._gradient_error,
            sizes=np.ravel(block.apart),
            along=flat[:, -1:],
        )
        return np.asarray(found.reshape(seen.shape[:2]))


@dataclass(frozen=True, eq=False)
class _Space:
    """The span of directions and products, and forms there: H^-1 lies between `below` and `above` (outside of the
    span: between 0 and 1 / `floor`). `room`: what rounding may do to a form, against |a| |b| / floor."""

    span: Array
    below: Array
    above: Array
    floor: float
    room: float

    @classmethod
    def of(cls, directions: Array, images: Array, ridge: float, error: float, energy: float) -> _Space:
        count = directions.shape[1]
        span, triangle = np.linalg.qr(np.hstack([directions, images]))
        first, second = triangle[:, :count], triangle[:, count:]
        values, turns = np.linalg.eigh(first.T @ first)
        sizes = np.sqrt(np.maximum(values, 0.0))
        strayed = 2.0**-40 * (float(np.linalg.norm(second)) + energy)
        keep = sizes > max(16 * (error + strayed) / ridge, 2.0**-20)
        if not keep.any():
            raise VerificationError("No product is sure enough to bound the curvature by.")
        turn = turns[:, keep] / sizes[keep]
        basis = first @ turn
        found = second @ turn - ridge * basis
        inside = basis.T @ found
        off = (error + strayed) / float(sizes[keep].min())
        apart = float(np.linalg.norm(inside - inside.T))
        nu = 1.1 * (off + apart + strayed) + float(np.linalg.norm(basis.T @ basis - np.eye(basis.shape[1]))) * energy
        floor = ridge - 2 * nu
        if not floor > ridge / 2:
            raise VerificationError(f"The products are off by {nu:.3g}, too much for a ridge of {ridge:.3g}.")
        core, frame = np.linalg.eigh((inside + inside.T) / 2)
        if core[0] < -nu:
            raise VerificationError("The products are those of no sum of squares.")
        symmetric = found - basis @ (inside - inside.T) / 2
        root = (symmetric + nu * basis) @ frame / np.sqrt(np.maximum(core, 0) + nu + strayed)
        lowest, axes = np.linalg.eigh(root @ root.T)
        above = axes / (np.maximum(lowest - strayed, 0.0) + floor) @ axes.T
        own = basis @ frame
        below = own / (np.maximum(core, 0) + ridge + nu + strayed) @ own.T
        room = 16 * ROUNDING * (len(directions) + 4 * count) * (2 + math.sqrt(energy / floor))
        return cls(span, below, above, floor, room)

    def moves(
        self,
        rows: Array | None,
        inside: Array,
        slopes: Array,
        *,
        hidden: float,
        sizes: Array | None = None,
        along: Array | None = None,
    ) -> Array:
        """At most how far a H^-1 r goes, for rows a (by their part in the span) and the columns r of `slopes`."""
        if rows is not None:
            sizes, along = np.linalg.norm(rows, axis=1), rows @ slopes
        assert sizes is not None
        assert along is not None
        part = self.span.T @ slopes
        norms = np.linalg.norm(slopes, axis=0)
        outside = along - inside @ part
        middle = (inside @ (self.below + self.above) @ part + outside / self.floor) / 2
        gap = self.above - self.below
        rest = np.maximum(np.square(sizes) - np.einsum("nr,nr->n", inside, inside), 0) / self.floor
        wide = np.maximum(np.einsum("nr,rs,ns->n", inside, gap, inside, optimize=True) + rest, 0)
        wide = wide + self.room * np.square(sizes) / self.floor
        deep = np.einsum("rk,rs,sk->k", part, gap, part, optimize=True)
        deep = deep + np.maximum(np.square(norms) - np.einsum("rk,rk->k", part, part), 0) / self.floor
        deep = np.maximum(deep, 0) + self.room * np.square(norms) / self.floor
        high = np.maximum(np.einsum("nr,rs,ns->n", inside, self.above, inside, optimize=True) + rest, 0)
        high = high + self.room * np.square(sizes) / self.floor
        strayed = self.room * np.outer(sizes, norms) / self.floor
        strayed = strayed + hidden * np.sqrt(high / self.floor)[:, None]
        return np.asarray(middle + np.sqrt(np.outer(wide, deep)) / 2 + strayed)
