"""What shadows tell of a method: KLoM, and the likelihood ratio of U-LiRA; and RMIA on single heads.

KLoM (Georgiev et al., 2024): how far, for each row, the law of margins after forgetting lies from that after
retraining. Ours is the divergence of two normal laws: bins saturate where one is empty. U-LiRA (Hayes et al., 2024):
can a shadow that forgot a row be told from one that never knew it? RMIA: Zarifzadeh et al., 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.evaluation.membership import AttackResult, judge
from probekit.evaluation.metrics import USUAL, Interval
from probekit.linear.temperature import best_temperature, log_probabilities
from probekit.values.plain import Result

QUANTILES = (0.5, 0.95)
RATES = (0.01, 0.1)
LEAST_SPREAD = 1e-12

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class KlomResult(Result):
    """The divergence per row, over some rows: its mean and quantiles, beside the floor.

    `floor` is the mean of retraining against retraining on other draws: what no method can come below, but by chance.
    """

    rows: int
    shadows: int
    mean: float
    median: float
    high: float
    floor: float


@dataclass(frozen=True)
class LikelihoodAttack(Result):
    """U-LiRA over all pairs of a shadow and a row. `forgotten`: how many shadows forgot a row, on average."""

    shadows: int
    forgotten: float
    attack: AttackResult


@dataclass(frozen=True)
class RmiaResult(Result):
    """RMIA on one head, with the temperature that its scores were made chances by, and where that came from."""

    temperature: float
    calibrated_on: str
    attack: AttackResult


def gaussian_klom(unlearned: Array, retrained: Array) -> Array:
    """For each row the divergence of N(unlearned) from N(retrained), in nats, from margins (shadows, rows)."""
    for one in (unlearned, retrained):
        if one.ndim != 2 or len(one) < 4 or one.shape[1:] != unlearned.shape[1:]:
            raise InputError(
                "KLoM compares margins of the same rows under at least 4 shadows each; found "
                f"{unlearned.shape} and {retrained.shape}."
            )
    (mean, spread), (other, reference) = ((one.mean(0), _spread(one)) for one in (unlearned, retrained))
    return np.asarray(
        np.log(reference / spread) + (spread**2 + (mean - other) ** 2) / (2 * reference**2) - 0.5,
    )


def _spread(values: Array) -> Array:
    spread = values.std(axis=0, ddof=1)
    return np.asarray(np.maximum(spread, 1e-3 * float(np.median(spread)) + LEAST_SPREAD))


def klom(unlearned: Array, retrained: Array, *, again: Array, rows: Indices | None = None) -> KlomResult:
    """KLoM over rows (None: all), from margins after forgetting, of retraining, and of retraining on other draws."""
    chosen = slice(None) if rows is None else rows
    each = gaussian_klom(unlearned[:, chosen], retrained[:, chosen])
    floor = float(gaussian_klom(again[:, chosen], retrained[:, chosen]).mean())
    median, high = (float(value) for value in np.quantile(each, QUANTILES))
    return KlomResult(len(each), len(unlearned), float(each.mean()), median, high, floor)


def likelihood_attack(
    margins: Array, seen: Mapping[str, Mask], *, rates: Sequence[float] = RATES, interval: Interval = USUAL
) -> LikelihoodAttack:
    """U-LiRA: the likelihood ratio of each margin under "forgotten here" against "never known".

    margins: (shadows, rows). seen: as `shadows.masks` gives it. The shadow that is judged is left out of both means.
    A row is judged under many shadows, so intervals are over rows. So few shadows forgot one that its own spread means
    nothing: one spread is pooled over all rows of each kind, in units of what the row's margins spread where it was
    never known.
    """
    forgotten, unseen = seen["forgotten"], seen["unseen"]
    usable = (forgotten.sum(axis=0) >= 2) & (unseen.sum(axis=0) >= 3)
    if not usable.any():
        raise InputError("U-LiRA needs rows that two shadows forgot and three never knew. Draw more shadows.")
    values, forgotten, unseen = margins[:, usable], forgotten[:, usable], unseen[:, usable]
    unit = _spread_where(values, unseen)
    values = values / unit
    densities = []
    for kind in (forgotten, unseen):
        count, total = kind.sum(axis=0), np.where(kind, values, 0.0).sum(axis=0)
        mean = (total - np.where(kind, values, 0.0)) / (count - kind)  # without the shadow that is judged
        away = values - mean
        pooled = float(np.square(away[kind]).mean())
        densities.append(-np.log(pooled) / 2 - away**2 / (2 * pooled))
    ratio = densities[0] - densities[1]
    rows = np.nonzero(forgotten)[1], np.nonzero(unseen)[1]
    attack = judge(ratio[forgotten], ratio[unseen], rates=rates, groups=rows, interval=interval)
    return LikelihoodAttack(len(margins), float(forgotten.sum(axis=0).mean()), attack)


def _spread_where(values: Array, kind: Mask) -> Array:
    """The spread of each column's entries of a kind; none is let vanish."""
    count = kind.sum(axis=0)
    mean = np.where(kind, values, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.where(kind, (values - mean) ** 2, 0.0).sum(axis=0) / (count - 1))
    return np.asarray(np.maximum(spread, 1e-3 * float(np.median(spread)) + LEAST_SPREAD))


def rmia_scores(chances: Array, reference: Array, population: Array, population_reference: Array) -> Array:
    """RMIA: the share of a population's rows z with p(x) / E p(x) > p(z) / E p(z), for each row x.

    chances, population: of the true label under the attacked head; the references are means of heads without the row.
    """
    ratio, others = chances / reference, np.sort(population / population_reference)
    return np.asarray(np.searchsorted(others, ratio, side="left") / len(others))


def rmia(
    members: tuple[Array, Indices],
    others: tuple[Array, Indices],
    references: tuple[Array, Array],
    *,
    calibration: tuple[Array, Indices],
    rates: Sequence[float] = RATES,
    interval: Interval = USUAL,
) -> RmiaResult:
    """RMIA on a head: are its members told from others?

    members, others: the attacked head's scores (n, k) and labels. Half of the others, every second one, are the
    population; the rest are judged.
    references: scores of reference heads (heads, n, k) for members and for others, all trained without the row.
    calibration: scores and labels of rows that are neither; the softmax's temperature has the least log loss there.
    A squared-loss head's scores are no chances, and the attack depends on what makes them such.
    """
    if len(calibration[1]) < 2 or len(others[1]) < 2:
        raise InputError("RMIA needs two rows or more to calibrate on and two others. Give more rows.")
    temperature = best_temperature(*calibration)

    def chance(scores: Array, labels: Indices) -> Array:
        logs = log_probabilities(scores, temperature)
        return np.asarray(np.exp(np.take_along_axis(logs, labels[:, None], axis=1)[:, 0]))

    def pair(own: tuple[Array, Indices], without: Array) -> tuple[Array, Array]:
        return chance(*own), np.mean([chance(one, own[1]) for one in without], axis=0)

    (own, expected), (apart, apart_expected) = (pair(*one) for one in zip((members, others), references, strict=True))
    population = (apart[::2], apart_expected[::2])
    found, judged = rmia_scores(own, expected, *population), rmia_scores(apart[1::2], apart_expected[1::2], *population)
    attack = judge(found, judged, rates=rates, interval=interval)
    return RmiaResult(temperature, f"{len(calibration[1])} rows that are not judged", attack)
