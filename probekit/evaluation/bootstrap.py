"""Bootstrap draws of smooth functions of sums, each with its own standard error.

Nothing is resampled row by row: rows that are alike are one kind, and a draw is a number of rows of
each kind, or of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probekit.arrays import Array, Indices, group_numbers

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DRAWS = 2000
MIN_DRAWS = 200
MAX_ELEMENTS = 3e8
"""Of all draws together; beyond it there are fewer draws."""
BATCH_ELEMENTS = 1 << 22
STREAM = 10
MULTINOMIAL_COST = 8
"""A multinomial number costs as much as drawing so many units one by one."""
ROUNDING = 1e-24
"""A variance below this share of the squared value is what rounding leaves of none."""

Statistic = Callable[[Array], tuple[Array, Array]]
"""Totals (draws, p) to values (draws,) and gradients (draws, p).

It does not change when all totals are multiplied: the gradient is orthogonal to the totals, so that
the product of a unit's features and the gradient is its influence.
"""


@dataclass(frozen=True, eq=False)
class Sums:
    """A smooth function of the sums of rows.

    features: of each kind of rows, (kinds, p), sparse or dense.
    kinds: the kind of each row, (n,); None: every row is of its own.
    """

    statistic: Statistic
    features: csr_array | Array
    kinds: Indices | None = None

    @classmethod
    def of_means(cls, values: Array) -> Sums:
        """The mean of a number of each row, (n,)."""
        return cls(mean_ratio, np.stack([values, np.ones(len(values))], axis=1))

    @property
    def value(self) -> float:
        return self.units().value

    def __len__(self) -> int:
        return int(self.features.shape[0]) if self.kinds is None else len(self.kinds)

    def units(self, groups: Indices | None = None) -> Units:
        """What is drawn: rows, those of one kind together, or groups."""
        count = len(self)
        kinds = np.arange(count) if self.kinds is None else self.kinds
        if groups is None:
            return Units(
                self.statistic,
                self.features,
                np.bincount(kinds, minlength=int(self.features.shape[0])),
            )
        from scipy.sparse import csr_array

        numbers = group_numbers(groups)
        shape = (int(numbers.max()) + 1, int(self.features.shape[0]))
        members = csr_array((np.ones(count), (numbers, kinds)), shape=shape)
        return Units(self.statistic, members @ self.features, np.ones(shape[0], np.int64))

    def minus(self, other: Sums) -> Sums:
        """The difference of two functions of the same rows."""
        from scipy.sparse import csr_array, hstack

        pairs = [
            np.arange(len(sums)) if sums.kinds is None else sums.kinds for sums in (self, other)
        ]
        kinds, numbers = np.unique(np.stack(pairs, axis=1), axis=0, return_inverse=True)
        parts = [
            csr_array(sums.features)[kind]
            for sums, kind in zip((self, other), kinds.T, strict=True)
        ]
        width = int(self.features.shape[1])

        def difference(totals: Array) -> tuple[Array, Array]:
            value, gradient = self.statistic(totals[:, :width])
            other_value, other_gradient = other.statistic(totals[:, width:])
            return value - other_value, np.hstack([gradient, -other_gradient])

        return Sums(difference, csr_array(hstack(parts)), numbers.ravel())


@dataclass(frozen=True, eq=False)
class Units:
    """What a bootstrap draws, with replacement.

    features: (units, p); counts: how often each unit was observed.
    """

    statistic: Statistic
    features: csr_array | Array
    counts: Indices

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def evaluate(self, counts: Array) -> tuple[Array, Array]:
        """The values of draws (draws, units), and their standard errors.

        The variance is N / (N - 1) times the sum of the squared influences.
        """
        values, gradients = self.statistic(np.asarray((self.features.T @ counts.T).T))
        influence = np.asarray(self.features @ gradients.T)
        variance = np.einsum("bu,ub->b", counts, np.square(influence))
        variance = variance * self.count / max(self.count - 1, 1)
        varies = variance > ROUNDING * np.square(values)
        return values, np.where(varies, np.sqrt(variance), 0.0)

    @property
    def value(self) -> float:
        """Of what was observed."""
        return float(self.statistic(self.totals[None])[0][0])

    @property
    def error(self) -> float:
        """The standard error of what was observed."""
        return float(self.evaluate(self.counts[None].astype(np.float64))[1][0])

    @property
    def effective(self) -> float:
        """How many units the variance comes from: (sum u^2)^2 / sum u^4, u their influences."""
        influence = np.asarray(self.features @ self.statistic(self.totals[None])[1][0])
        squares = np.square(influence)
        fourth = float(self.counts @ np.square(squares))
        return float(self.counts @ squares) ** 2 / fourth if fourth > 0 else 0.0

    @property
    def totals(self) -> Array:
        """The sums of what was observed, (p,)."""
        return np.asarray(self.features.T @ self.counts, np.float64)

    def draw(self, seed: int) -> tuple[Array, Array]:
        """Values and standard errors of draws; those that are not defined are left out."""
        elements = self.features.size + len(self.counts)
        parts = [self.evaluate(counts) for counts in draw_counts(self.counts, elements, seed)]
        values, errors = (np.concatenate(part) for part in zip(*parts, strict=True))
        defined = np.isfinite(values) & np.isfinite(errors)
        return values[defined], errors[defined]


def draw_counts(counts: Indices, elements: int, seed: int) -> Iterator[Array]:
    """How often each unit is drawn, (some draws, units) at a time, as many units as were observed.

    elements: what a draw costs; there are fewer draws of many.
    """
    draws = int(min(DRAWS, max(MIN_DRAWS, MAX_ELEMENTS / elements)))
    generator = np.random.default_rng([seed, STREAM])
    total = int(counts.sum())
    width = len(counts)
    batch = max(1, BATCH_ELEMENTS // max(elements, total))
    observed = np.repeat(np.arange(width), counts)
    for start in range(0, draws, batch):
        size = min(batch, draws - start)
        if MULTINOMIAL_COST * width < total:
            yield generator.multinomial(total, counts / total, size).astype(np.float64)
            continue
        units = observed[generator.integers(0, total, (size, total))]
        units += width * np.arange(size)[:, None]
        drawn = np.bincount(units.ravel(), minlength=size * width)
        yield drawn.reshape(size, width).astype(np.float64)


def mean_ratio(totals: Array) -> tuple[Array, Array]:
    """The mean over k of (sum of numerators k) / (sum of denominators k), where that is not 0.

    The first half of the totals are the numerators.
    """
    width = totals.shape[1] // 2
    denominators = totals[:, width:]
    present = denominators > 0
    inverse = np.divide(1.0, denominators, out=np.zeros_like(denominators), where=present)
    ratios = totals[:, :width] * inverse
    columns = np.maximum(present.sum(axis=1, keepdims=True), 1)
    gradients = np.hstack([inverse, -ratios * inverse]) / columns
    return ratios.sum(axis=1) / columns[:, 0], gradients
