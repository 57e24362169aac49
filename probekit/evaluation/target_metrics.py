"""How good a head of several labels or real targets is: average precision, AUC, R2, with bootstrap intervals.

Every metric is over the rows that know the target. What a bootstrap draw gives depends on how often it takes each row
alone, so rows are sorted once and the draws are weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.errors import InputError
from probekit.evaluation.metrics import BOOTSTRAP_STREAM, USUAL, Estimate, Interval
from probekit.values import LABELS, Array, Indices

LEAST_DRAWS = 100
MOST_ELEMENTS = 5e7
"""Rows x targets x draws of a bootstrap: beyond it there are fewer draws, never fewer than 100."""
BATCH_ELEMENTS = 2**20
CONSTANT = 1e-12
"""A target whose squares around the mean are this small beside its squares does not vary."""


@dataclass(frozen=True)
class TargetScore:
    """One target: how many rows know it, how many of them are 1, and its metrics. None: not defined on these rows."""

    name: str
    count: int
    positive: int | None
    average_precision: Estimate | None
    auc: Estimate | None
    r2: Estimate | None


@dataclass(frozen=True)
class TargetScores:
    """All targets, and the means over those for which a metric is defined."""

    kind: str
    by_target: tuple[TargetScore, ...]
    mean_average_precision: Estimate | None
    mean_auc: Estimate | None
    mean_r2: Estimate | None


def target_scores(
    scores: Array,
    targets: Array,
    *,
    names: Sequence[str],
    kind: str,
    groups: Indices | None = None,
    interval: Interval = USUAL,
) -> TargetScores:
    """The metrics of scores (n, k) against targets, with bootstrap intervals over rows or, where given, groups."""
    if scores.shape != targets.shape or targets.shape[1] != len(names) or not len(targets):
        found = f"{scores.shape}, {targets.shape} and {len(names)} names"
        raise InputError(f"Scores and targets need rows, one shape, and a name per column; found {found}.")
    maker = _Ranking if kind == LABELS else _Explained
    makers: list[_Ranking | _Explained] = [maker.of(scores[:, k], targets[:, k]) for k in range(len(names))]
    weights = _Draws.of(len(targets), targets.shape[1], groups, interval)

    def values(weights: Array) -> Array:
        return np.array([one.values(weights) for one in makers])

    plain = values(np.ones((1, len(targets))))[:, :, 0]
    drawn = np.concatenate([values(some) for some in weights.batches()], axis=2)

    def every(some: slice) -> dict[str, Estimate | None]:
        found: dict[str, Estimate | None] = dict.fromkeys(("average_precision", "auc", "r2"))
        for number, name in enumerate(maker.names):
            shown = name.replace("_", " ")
            found[name] = weights.estimate(shown, plain[some, number], drawn[some, number].T)
        return found

    known, ones = (~np.isnan(targets)).sum(axis=0).tolist(), (targets == 1).sum(axis=0).tolist()
    each = tuple(
        TargetScore(name, known[k], ones[k] if kind == LABELS else None, **every(slice(k, k + 1)))
        for k, name in enumerate(names)
    )
    return TargetScores(kind, each, *every(slice(None)).values())


@dataclass(frozen=True, eq=False)
class _Draws:
    """How often each row is taken in every draw."""

    unit: Indices
    count: int
    interval: Interval
    grouped: bool

    @classmethod
    def of(cls, rows: int, targets: int, groups: Indices | None, interval: Interval) -> _Draws:
        unit = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
        most = max(LEAST_DRAWS, int(MOST_ELEMENTS / max(1, rows * targets)))
        return cls(unit.astype(np.int64), min(interval.draws, most), interval, groups is not None)

    def batches(self) -> Iterator[Array]:
        """Weights (draws, rows), some draws at a time."""
        generator = np.random.Generator(np.random.PCG64([self.interval.seed, BOOTSTRAP_STREAM]))
        units = int(self.unit.max(initial=-1)) + 1
        size = max(1, BATCH_ELEMENTS // max(1, len(self.unit)))

        def some(count: int) -> Array:
            taken = [np.bincount(generator.integers(units, size=units), minlength=units) for _ in range(count)]
            return np.stack(taken)[:, self.unit].astype(np.float64)

        for start in range(0, self.count, size):
            yield some(min(size, self.count - start))

    def estimate(self, name: str, values: Array, drawn: Array) -> Estimate | None:
        """The mean over the targets for which there is a value, with its interval; None: there is none."""
        there = np.isfinite(values)
        if not there.any():
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a draw in which no target has a value
            means = np.nanmean(drawn[:, there], axis=1)
        means, tail = means[np.isfinite(means)], (1 - self.interval.confidence) / 2
        low, high = (float(edge) for edge in np.quantile(means, [tail, 1 - tail])) if len(means) else (None, None)
        over = "groups" if self.grouped else "rows"
        how = f"bootstrap over {over}, {self.count} draws"
        return Estimate(name, float(values[there].mean()), low, high, self.interval.confidence, how)


@dataclass(frozen=True, eq=False)
class _Ranking:
    """Average precision and AUC from weights: the rows that know a label, from the highest score down.

    `ones` are the places of rows of 1; of each the places where its run of equal scores starts and ends, and how many
    of `ones` come before these.
    """

    order: Indices
    ones: Indices
    starts: Indices
    ends: Indices

    names = ("average_precision", "auc")

    @classmethod
    def of(cls, scores: Array, targets: Array) -> _Ranking:
        seen = np.flatnonzero(~np.isnan(targets))
        order = seen[np.argsort(-scores[seen], kind="stable")]
        falling, ones = -scores[order], np.flatnonzero(targets[order] == 1)
        starts, ends = (np.searchsorted(falling, falling[ones], side) for side in ("left", "right"))
        return cls(order, ones, starts.astype(np.int64), ends.astype(np.int64))

    def values(self, weights: Array) -> list[Array]:
        """Average precision (gain in recall x precision, over thresholds), and the chance that a row of 1 has a
        higher score than one of 0, equal scores counting half; NaN where there are none.
        """
        taken = weights[:, self.order]
        above, right = _summed(taken), _summed(own := taken[:, self.ones])
        first, last = (np.searchsorted(self.ones, one) for one in (self.starts, self.ends))
        found, seen = right[:, last], above[:, self.ends]
        precision = np.divide(found, seen, out=np.zeros(seen.shape), where=seen > 0)
        zeros = above[:, -1] - right[:, -1]
        higher = ((seen - found) + (above[:, self.starts] - right[:, first])) / 2
        wins = (own * (zeros[:, None] - higher)).sum(axis=1)
        return [_divided((own * precision).sum(axis=1), right[:, -1]), _divided(wins, right[:, -1] * zeros)]


@dataclass(frozen=True, eq=False)
class _Explained:
    """R2 from weights: 1 - squared errors / squares around the mean."""

    seen: Indices
    table: Array

    names = ("r2",)

    @classmethod
    def of(cls, scores: Array, targets: Array) -> _Explained:
        seen = np.flatnonzero(~np.isnan(targets))
        own, errors = targets[seen], np.square(scores[seen] - targets[seen])
        shifted = own - own.mean() if len(own) else own  # a variance from sums loses the digits of a large mean
        return cls(seen, np.stack([np.ones(len(own)), shifted, shifted**2, errors], axis=1))

    def values(self, weights: Array) -> list[Array]:
        """NaN where the target does not vary."""
        rows, sums, squares, errors = (weights[:, self.seen] @ self.table).T
        spread = squares - np.divide(sums**2, rows, out=np.zeros(len(rows)), where=rows > 0)
        return [1 - _divided(errors, np.where(spread > CONSTANT * squares, spread, 0.0))]


def _summed(weights: Array) -> Array:
    """Running sums, from 0 on."""
    found = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=found[:, 1:])
    return found


def _divided(one: Array, other: Array) -> Array:
    return np.asarray(np.divide(one, other, out=np.full(one.shape, np.nan), where=other > 0))
