"""Membership inference: can it be told from a head which rows it was trained on?

Two attacks: the loss of a row (low: a member), and a likelihood ratio of its errors with and without it
(LiRA, Carlini et al. 2022). For ridge heads the shadow heads of the second come in closed form: a shadow is a sum of
some parts' statistics, and training on one more row divides that row's error by 1 + h, on one fewer by 1 - h,
h = x A^-1 x. So every shadow gives, for every row, an error with and one without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import ndtri
from scipy.stats import rankdata

from probekit.errors import InputError
from probekit.evaluation.metrics import USUAL, Interval, Share, share
from probekit.linear.design import ClientStats
from probekit.linear.leaveout import LONE
from probekit.linear.ridge import penalty_of
from probekit.linear.statistics import checked_labels, columns_of
from probekit.models.heads import Head
from probekit.models.linear_problem import HeadProblem
from probekit.models.serving import scores
from probekit.values import Rows

SHADOW_STREAM = 60
RATES = (0.001, 0.01, 0.1)

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class AttackResult:
    """How well members and others are told apart: the area under the curve (0.5: not at all), and the share of
    members found at few false alarms."""

    members: int
    others: int
    auc: float
    low: float
    high: float
    confidence: float
    found: tuple[tuple[float, Share], ...]


def judge(
    members: Array,
    others: Array,
    *,
    rates: Sequence[float] = RATES,
    groups: tuple[Indices, Indices] | None = None,
    interval: Interval = USUAL,
) -> AttackResult:
    """The attack's power from its scores (high: taken for a member).

    The interval of the area is DeLong's; the share found at a false-alarm rate is that above the others' quantile.
    groups: what members, and others, belong together (a row that is judged in many heads); intervals widen with it.
    """
    if not (len(members) and len(others)):
        raise InputError(f"An attack is judged on members and others; found {len(members)} and {len(others)} rows.")
    ranks = rankdata(np.concatenate([members, others]))
    m, n = len(members), len(others)
    above = (ranks[:m] - rankdata(members)) / n  # the share of others below each member
    below = 1 - (ranks[m:] - rankdata(others)) / m
    auc = float(above.mean())
    spread = sum(float(part.var(ddof=1)) / len(part) for part in (above, below) if len(part) > 1)
    if groups is not None:  # DeLong's terms, summed within a group before they are squared
        _, unit = np.unique(np.concatenate(groups), return_inverse=True)
        terms = np.bincount(unit, weights=np.concatenate([(above - auc) / m, (below - auc) / n]))
        spread = float(np.square(terms).sum())
    reach = float(ndtri(0.5 + interval.confidence / 2)) * math.sqrt(spread)
    found = []
    for rate in rates:
        threshold = np.sort(others)[n - 1 - int(rate * n)]
        own = None if groups is None else groups[0]
        hits, name = members > threshold, f"at {rate:g} false alarms"
        found.append((rate, share(hits, name=name, groups=own, interval=interval)))
    return AttackResult(m, n, auc, max(auc - reach, 0.0), min(auc + reach, 1.0), interval.confidence, tuple(found))


def loss_scores(head: Head, rows: Rows, labels: NDArray[np.int64]) -> Array:
    """Minus the squared error of each row: members have less."""
    found = scores(head, rows)
    found[np.arange(len(labels)), checked_labels(labels, len(rows), len(head.classes))] -= 1
    return np.asarray(-np.square(found).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Shadows:
    """Heads of random shares of some parts' statistics (clients, folds), as an attacker with such data has them.

    `ridge` and `scaling` are the target's. `share` of the parts go into each of `count` shadows.
    """

    parts: Sequence[ClientStats]
    ridge: float
    scaling: str = "mean"
    count: int = 32
    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.parts) < 4 or self.count < 4 or not 0 < self.share < 1:
            raise InputError(
                "Shadows need at least 4 parts, a count of at least 4 and a share in (0, 1); found "
                f"{len(self.parts)}, {self.count} and {self.share}. Split the statistics into more parts."
            )

    def draws(self) -> list[Indices]:
        """Which parts go into each shadow."""
        generator = np.random.Generator(np.random.PCG64([self.seed, SHADOW_STREAM]))
        taken = min(max(1, round(self.share * len(self.parts))), len(self.parts) - 1)
        return [np.sort(generator.permutation(len(self.parts))[:taken]) for _ in range(self.count)]


def likelihood_scores(
    head: Head, rows: Rows, labels: NDArray[np.int64], *, shadows: Shadows, part_of: Indices | None = None
) -> Array:
    """The logarithm of how much likelier each row's errors are with it in training than without.

    `part_of` is the number of the part that holds each row (-1, or None for all: in no part).
    """
    design = shadows.parts[0].design
    labels = checked_labels(labels, len(rows), design.classes)
    part_of = np.full(len(rows), -1) if part_of is None else part_of
    seen, targets = columns_of(rows, design), np.eye(design.classes)[labels]
    inside, outside = (_Spread(targets.shape) for _ in range(2))
    for chosen in shadows.draws():
        held = np.isin(part_of, chosen)
        with_row, without = _with_and_without(shadows, chosen, seen, targets, held)
        inside.add(with_row)
        outside.add(without)
    errors = scores(head, rows) - targets
    return inside.log_density(errors) - outside.log_density(errors)


def _with_and_without(
    shadows: Shadows, chosen: Indices, seen: Array, targets: Array, held: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Each row's errors, for every class, in a shadow with it and in one without it.

    One more row divides its own error by 1 + h, one fewer by 1 - h.
    """
    total = reduce(add, (shadows.parts[int(part)] for part in chosen))
    amount = penalty_of(shadows.ridge, shadows.scaling, total.count)
    matrix = total.total_gram + np.diag(HeadProblem(total.design).penalty(amount)[:, 0])
    try:
        factor = linalg.cho_factor(matrix, lower=True)
    except linalg.LinAlgError as error:
        raise InputError("A shadow's curvature is singular. Use a ridge above 0 or larger parts.") from error
    half = linalg.solve_triangular(factor[0], seen.T, lower=True)
    leverage = np.square(half).sum(axis=0)[:, None]
    errors = seen @ linalg.cho_solve(factor, total.moment) - targets
    inside = np.where(held[:, None], errors, errors / (1 + leverage))
    outside = np.where(held[:, None], errors / np.maximum(1 - leverage, LONE), errors)
    return inside, outside


class _Spread:
    """Mean and spread of each row's errors over the shadows, added up as they come (Welford)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(shape), np.zeros(shape)

    def add(self, errors: Array) -> None:
        """One more shadow."""
        self.count += 1
        away = errors - self.mean
        self.mean += away / self.count
        self.squares += away * (errors - self.mean)

    def log_density(self, errors: Array) -> Array:
        """The log density of errors under one normal law per row and class; no spread is let vanish."""
        spread = np.sqrt(self.squares / (self.count - 1))
        spread = np.maximum(spread, 1e-3 * float(np.median(spread)) + 1e-12)
        return np.asarray((-np.log(spread) - np.square((errors - self.mean) / spread) / 2).sum(axis=1))
