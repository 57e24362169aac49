"""A head against the retained loss by the verifier's own route: between which numbers each claim's truth lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.doubled import Doubled, product_error
from probekit.certificates.second import ROUNDING, TINY, SecondLoss
from probekit.linear.lapack import linalg

Array = NDArray[np.float64]

NEAR = 2.0**-10
"""From where, against the linear term, a gradient is so small that the minimum is looked for from there."""
REFINEMENTS = 3
INVERSE_STEPS = 30
ROOM = 1 + 2.0**-40
"""Of a norm that was computed in float64: more than it can be off by."""


@dataclass(frozen=True)
class Range:
    """Between which numbers something lies; no `high`: nothing is known from above."""

    low: Fraction
    high: Fraction | None

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {_short(self.low)}"
        low, high = _short(self.low), _short(self.high)
        return low if low == high else f"{low} to {high}"

    def times(self, factor: Fraction) -> Range:
        """The range of that many times as much."""
        return Range(self.low * factor, None if self.high is None else self.high * factor)


@dataclass(frozen=True, eq=False)
class Gradient:
    """H W - B at some parameters, and how far each class's may be off."""

    value: Doubled
    error: Array

    @cached_property
    def sizes(self) -> tuple[Array, Array]:
        """The norm of each class's, at least and at most."""
        found, room = np.asarray(np.linalg.norm(self.value.high, axis=0)), 1 + (len(self.value.high) + 8) * ROUNDING
        return np.maximum(found / room - self.error, 0.0), found * room + self.error

    @property
    def norm(self) -> tuple[float, float]:
        """The norm of all together, at least and at most."""
        room = 1 + (len(self.error) + 8) * ROUNDING
        low, high = (float(np.linalg.norm(one)) for one in self.sizes)
        return low / room, high * room


@dataclass(frozen=True, eq=False)
class SecondLook:
    """Parameters of a head, seen from the loss. `hint` is a curvature that is claimed: it is tried first."""

    loss: SecondLoss
    params: Array
    hint: float | None = None

    def gradient(self, params: Doubled) -> Gradient:
        """At some parameters (in the loss's units)."""
        matrix, high, low = self.loss.matrix, params.high, params.low
        value = matrix.at(high) + Doubled.of(matrix.high @ low) - self.loss.right
        size, terms = float(np.linalg.norm(matrix.high)), len(high)
        wide, narrow = (np.linalg.norm(one, axis=0) for one in (high, low))
        error = self.loss.error * (wide + narrow) + self.loss.right_error + product_error(matrix.high, high)
        error = error + 8 * terms * ROUNDING * size * (ROUNDING * wide + narrow) + TINY
        return Gradient(value, np.asarray(error))

    @cached_property
    def own(self) -> Doubled:
        """The head's parameters in the loss's units."""
        return Doubled.of(np.ldexp(self.params, self.loss.half))

    @cached_property
    def here(self) -> Gradient:
        """The gradient at the head."""
        return self.gradient(self.own)

    @cached_property
    def factor(self) -> Array | None:
        """A Cholesky factor, where there is one."""
        try:
            return np.asarray(np.linalg.cholesky(self.loss.matrix.high))
        except np.linalg.LinAlgError:
            return None

    def _solve(self, right: Array) -> Array:
        return np.asarray(linalg.cho_solve((self.factor, True), right, check_finite=False))

    @cached_property
    def smallest(self) -> tuple[float, float]:
        """The smallest curvature (times the weight, in the loss's units), at least and at most."""
        low, high = self.loss.floor, float(np.trace(self.loss.matrix.high)) * ROOM + self.loss.error
        if self.factor is not None:
            # any start will do that is not orthogonal to what is looked for
            vector = 1 + np.linspace(0, 0.5, len(self.loss.matrix.high))[:, None]
            for _ in range(INVERSE_STEPS):
                vector = self._solve(vector)
                vector /= np.linalg.norm(vector)
            product = self.loss.matrix.at(vector).high
            quotient = float((vector * product).sum()) / float(np.square(vector).sum())
            slack = self.loss.error + 8 * len(vector) * ROUNDING * float(np.linalg.norm(product))
            high = min(high, max(quotient, 0.0) * ROOM + slack)
            weight = float(self.loss.weight)
            exactly = 1 + 16 * ROUNDING
            tried = [] if self.hint is None else [math.ldexp(self.hint * exactly, -2 * self.loss.half) * weight]
            for one in (*tried, 0.99 * quotient, 0.5 * quotient):
                if one > low and self._at_least(one):
                    low = one
                    break
        return low, high

    def _at_least(self, curvature: float) -> bool:
        """Whether H - curvature I is positive definite: its factorisation must succeed with room for rounding."""
        matrix, size = self.loss.matrix.high, len(self.loss.matrix.high)
        strayed = 2 * (size + 4) * ROUNDING * float(np.abs(np.diag(matrix)).sum())
        taken = curvature * (1 + 16 * ROUNDING) + strayed + self.loss.error + TINY
        taken += float(np.linalg.norm(self.loss.matrix.low))
        try:
            np.linalg.cholesky(matrix - taken * np.eye(size))
        except np.linalg.LinAlgError:
            return False
        return True

    @cached_property
    def minimum(self) -> tuple[Doubled, Array] | None:
        """Where the minimum lies, and how far off each class's parameters may be; None: it is not known."""
        if self.factor is None or not self.smallest[0] > 0:
            return None
        found, slope = self.own, self.here
        if not slope.norm[1] <= NEAR * float(np.linalg.norm(self.loss.right.high)):
            slope = self.gradient(found := Doubled.of(self._solve(self.loss.right.high)))
        for _ in range(REFINEMENTS):
            found = found - Doubled.of(self._solve(slope.value.high))
            slope = self.gradient(found)
            if np.linalg.norm(slope.value.high) <= np.linalg.norm(slope.error):
                break  # what is left of it cannot be told from rounding
        off = slope.sizes[1] / self.smallest[0] * ROOM
        return (found, off) if np.isfinite(off).all() else None

    @cached_property
    def away(self) -> tuple[Array, Array] | None:
        """The head's parameters less the minimum's, and how far off each class's may be."""
        if self.minimum is None:
            return None
        found = self.own - self.minimum[0]
        return found.high, np.asarray(self.minimum[1] + 4 * ROUNDING * np.linalg.norm(found.high, axis=0) + TINY)

    @property
    def _per_row(self) -> Fraction:
        """From a gradient in the loss's units to that of the mean loss."""
        return Fraction(2) ** self.loss.half / self.loss.weight

    @property
    def _unit(self) -> Fraction:
        """From parameters in the loss's units to the head's."""
        return Fraction(2) ** -self.loss.half

    def residuals(self) -> tuple[Range, ...]:
        """The gradient's norm for each class, and last for all together."""
        low, high = self.here.sizes
        pairs = [*zip(low.tolist(), high.tolist(), strict=True), self.here.norm]
        return tuple(range_of(*pair).times(self._per_row) for pair in pairs)

    def curvature(self) -> Range:
        """The smallest curvature of the mean loss."""
        return range_of(*self.smallest).times(Fraction(4) ** self.loss.half / self.loss.weight)

    def distance(self) -> Range:
        """From the head's parameters to the minimum's."""
        low, high = self.here.norm
        found = range_of(low / self._largest / ROOM, high / self.smallest[0] * ROOM if self.smallest[0] else math.inf)
        if self.away is not None:
            size, off = float(np.linalg.norm(self.away[0])), float(np.linalg.norm(self.away[1]))
            found = _both(found, range_of(size / ROOM - off, size * ROOM + off))
        return found.times(self._unit)

    def excess(self) -> Range:
        """The mean loss above its minimum: half of <gradient, parameters - minimum>."""
        least, most = (range_of(one, one) for one in self.here.norm)
        steep = range_of(*self.smallest)
        simple = None if most.high is None or not steep.low else most.high**2 / 2 / steep.low
        largest = range_of(0.0, self._largest).high
        found = Range(least.low**2 / 2 / largest if largest else Fraction(0), simple)
        if self.away is not None:
            high, terms = self.here.norm[1], self.here.value.high * self.away[0]
            size = float(np.linalg.norm(self.away[0])) + float(np.linalg.norm(self.away[1]))
            strayed = (
                float(np.abs(terms).sum()) * (terms.size + 8) * ROUNDING + float(np.linalg.norm(self.here.error)) * size
            )
            # <g, H^-1 e> = <H^-1 g, e>: what is left of the gradient at the minimum meets the distance
            strayed += ROOM * float(np.linalg.norm(self.away[1])) * min(high, size * self.smallest[0])
            value = float(terms.sum()) / 2
            found = _both(found, range_of(value - strayed, value + strayed))
        return found.times(1 / self.loss.weight)

    def outputs(self) -> Range:
        """How far a class's score for a row of norm 1 can be from the minimum's, at the worst such row."""
        centre = None if self.loss.centre is None else np.ldexp(self.loss.centre, self.loss.half)
        reach = math.sqrt(2) if self.loss.bias else 1.0 + (0.0 if centre is None else float(np.linalg.norm(centre)))
        if self.away is None:
            high = self.distance().high
            return Range(Fraction(0), None if high is None else high * Fraction(reach * ROOM))
        away, off = self.away
        sizes = np.linalg.norm(away[:-1] if self.loss.bias else away, axis=0)
        if self.loss.bias:
            sizes = sizes + np.abs(away[-1])
        elif centre is not None:
            sizes = sizes + np.abs(centre @ away)
        strayed = (off + len(away) * ROUNDING * np.linalg.norm(away, axis=0)) * reach * ROOM
        return range_of(float((sizes / ROOM - strayed).max()), float((sizes * ROOM + strayed).max())).times(self._unit)

    def change(self, before: Array) -> Range:
        """The mean loss here less that at other parameters: half of <sum of both gradients, difference>. May be < 0."""
        other = SecondLook(self.loss, before)
        step = self.own - other.own
        slope = self.here.value + other.here.value
        terms = slope.high * step.high
        strayed = float(np.abs(terms).sum()) * (terms.size + 4) * ROUNDING
        strayed += float(np.linalg.norm(self.here.error + other.here.error)) * float(np.linalg.norm(step.high)) * ROOM
        if not math.isfinite(strayed):
            return Range(Fraction(0), None)
        middle, room = Fraction(float(terms.sum())) / 2, Fraction(strayed)
        return Range((middle - room) / self.loss.weight, (middle + room) / self.loss.weight)

    def rows(
        self, columns: Array, classes: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Array, Array]:
        """Of rows that the head gives these classes: which the minimum gives the same for certain, which another for
        certain; and how far the scores of each are from the minimum's, at least and at most.

        columns: the rows as the loss sees them, in the head's units.
        """
        if self.minimum is None or self.away is None:
            none = np.zeros(len(columns), bool)
            high = self.distance().high
            most = math.inf if high is None else float(high)
            return none, none, np.zeros(len(columns)), np.linalg.norm(columns, axis=1) * most * ROOM
        scaled = np.ldexp(columns, -self.loss.half)
        norms = np.linalg.norm(scaled, axis=1) * ROOM
        found, off = self.minimum
        sizes = np.linalg.norm(found.high, axis=0)
        scores, strayed = scaled @ found.high, np.outer(norms, off + 4 * len(sizes) * ROUNDING * sizes)
        strayed = strayed + np.outer(norms, len(found.high) * ROUNDING * sizes)
        every = np.arange(len(scores))
        leads = scores[every, classes][:, None] - scores
        doubt = strayed + strayed[every, classes][:, None]
        doubt[every, classes] = -1.0  # a class is never behind itself
        apart, unsure = np.abs(scaled @ self.away[0]), np.outer(norms, self.away[1]) * ROOM
        unsure = unsure + np.outer(norms, len(found.high) * ROUNDING * np.linalg.norm(self.away[0], axis=0))
        return (
            (leads > doubt).all(axis=1),
            (leads < -np.abs(doubt)).any(axis=1),
            (apart / ROOM - unsure).max(axis=1),
            (apart * ROOM + unsure).max(axis=1),
        )

    @property
    def _largest(self) -> float:
        return float(np.linalg.norm(self.loss.matrix.high)) * ROOM + self.loss.error + TINY


def range_of(low: float, high: float) -> Range:
    """The range between two numbers of which those that are not finite say nothing."""
    least = Fraction(low) if math.isfinite(low) and low > 0 else Fraction(0)
    return Range(least, Fraction(high) if math.isfinite(high) else None)


def _both(one: Range, other: Range) -> Range:
    highs = [each.high for each in (one, other) if each.high is not None]
    return Range(max(one.low, other.low), min(highs, default=None))


def _short(value: Fraction) -> str:
    """Six digits of a fraction of any size."""
    if not value:
        return "0"
    try:
        near = float(value)
    except OverflowError:
        near = math.inf
    if near and math.isfinite(near):
        return f"{near:.6g}"
    digits = len(str(value.numerator)) - len(str(value.denominator))
    return f"about 1e{digits:+d}"
