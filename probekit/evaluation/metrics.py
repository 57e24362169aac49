"""How good a head is: accuracy with intervals, per class and client, calibration, confusion, agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.lapack import special
from probekit.linear.temperature import best_temperature, log_probabilities

BOOTSTRAP_STREAM, FOLD_STREAM = 10, 11

Indices = NDArray[np.int64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """How sure an interval is: Wilson's for shares; elsewhere the percentile bootstrap, with its draws and seed."""

    confidence: float = 0.95
    draws: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"A confidence must lie between 0 and 1; found {self.confidence}.")
        if self.draws < 100 or self.seed < 0:
            raise InputError(f"An interval needs 100 draws and a seed of 0, or more; found {self.draws}, {self.seed}.")


USUAL = Interval()


@dataclass(frozen=True)
class Share:
    """A share of rows with its interval. `low` and `high` are None where there is no row, `value` too.

    `effective`: how many independent rows would tell as much; rows of one group tell less than as many others.
    """

    name: str
    count: int
    hits: int
    value: float | None
    low: float | None
    high: float | None
    confidence: float
    how: str
    effective: float | None = None


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, where there is one."""

    name: str
    value: float
    low: float | None
    high: float | None
    confidence: float
    how: str


@dataclass(frozen=True)
class Bin:
    """The rows whose confidence lies in (low, high]: how sure the head was and how often it was right."""

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """The expected calibration error, with the temperatures and bins that it depends on."""

    error: float
    log_loss: float
    brier: float
    temperatures: tuple[float, ...]
    bins: tuple[Bin, ...]
    how: str


@dataclass(frozen=True)
class Confusion:
    """How many rows of each true class (outer) were given each class (inner)."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


def share(hits: NDArray[Any], *, name: str = "all", groups: Indices | None = None, interval: Interval = USUAL) -> Share:
    """The share of true entries with its Wilson score interval, which has a width where all or none are true, too.

    hits: true or false for each row, or how often it was true. groups: what rows belong together; the interval is then
    that of `effective_rows`.
    """
    count, right = len(hits), round(float(np.sum(hits)))
    if not count:
        return Share(name, 0, 0, None, None, None, interval.confidence, "no rows")
    size = float(count) if groups is None else effective_rows(np.asarray(hits, np.float64), groups)
    low, high = wilson(right / count, size, interval.confidence)
    how = "wilson" if groups is None else "wilson over groups"
    return Share(name, count, right, right / count, low, high, interval.confidence, how, size)


def wilson(value: float, size: float, confidence: float) -> tuple[float, float]:
    """The score interval of a share of so many independent rows."""
    z = float(special.ndtri((1 + confidence) / 2))
    centre, half = value * size + z * z / 2, z * np.sqrt(value * (1 - value) * size + z * z / 4)
    return max(0.0, float((centre - half) / (size + z * z))), min(1.0, float((centre + half) / (size + z * z)))


def effective_rows(hits: Matrix, groups: Indices) -> float:
    """How many independent rows would tell as much: rows / design effect, by the variance of the groups' sums.

    Where no row differs from another nothing tells how alike a group's rows are; then every group counts as one row.
    """
    _, unit = np.unique(groups, return_inverse=True)
    count, units = len(hits), int(unit.max()) + 1
    apart = hits - hits.mean()
    alone = float(apart @ apart)
    if units < 2 or alone == 0:
        return float(units)
    sums = np.bincount(unit, weights=apart)
    effect = units / (units - 1) * float(sums @ sums) / alone
    return count / max(1.0, effect)


def accuracy(
    predictions: Indices, labels: Indices, *, groups: Indices | None = None, interval: Interval = USUAL
) -> Share:
    """The share of rows given their own class."""
    _same_rows(predictions, labels)
    return share(predictions == labels, groups=groups, interval=interval)


def accuracy_by_class(
    predictions: Indices,
    labels: Indices,
    *,
    classes: Sequence[str],
    groups: Indices | None = None,
    interval: Interval = USUAL,
) -> tuple[Share, ...]:
    """The accuracy on the rows of each class, in the order of the classes."""
    _same_rows(predictions, labels)
    right, own = predictions == labels, [labels == k for k in range(len(classes))]
    return tuple(
        share(right[rows], name=name, groups=None if groups is None else groups[rows], interval=interval)
        for rows, name in zip(own, classes, strict=True)
    )


def accuracy_by_client(
    predictions: Indices, labels: Indices, *, clients: Mapping[str, Indices], interval: Interval = USUAL
) -> tuple[Share, ...]:
    """The accuracy on the rows of each client, given as row numbers (a partition's `clients`)."""
    _same_rows(predictions, labels)
    right = predictions == labels
    return tuple(share(right[rows], name=name, interval=interval) for name, rows in clients.items())


def top_k(
    scores: Matrix, labels: Indices, k: int, *, groups: Indices | None = None, interval: Interval = USUAL
) -> Share:
    """The share of rows whose own class is among the k with the highest scores; an equal score counts as higher."""
    _same_rows(scores, labels)
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    return share((scores >= own).sum(axis=1) <= k, name=f"top-{k}", groups=groups, interval=interval)


def mean_per_class(
    predictions: Indices, labels: Indices, *, groups: Indices | None = None, interval: Interval = USUAL
) -> Estimate:
    """The mean of the classes' own accuracies, with a bootstrap interval over rows or, where given, over groups.

    What a draw gives depends on how often it takes each unit alone, so those counts are what is drawn.
    """
    _same_rows(predictions, labels)
    present, number = np.unique(labels, return_inverse=True)
    cells = 2 * number + (predictions == labels)
    if groups is None:
        table, chances = np.eye(2 * len(present)), np.bincount(cells, minlength=2 * len(present)) / len(labels)
        size = len(labels)
    else:
        _, unit = np.unique(groups, return_inverse=True)
        size = int(unit.max()) + 1
        table = np.zeros((size, 2 * len(present)))
        np.add.at(table, (unit, cells), 1.0)
        chances = np.full(size, 1 / size)
    generator = np.random.Generator(np.random.PCG64([interval.seed, BOOTSTRAP_STREAM]))
    drawn = generator.multinomial(size, chances, interval.draws) @ table

    def mean(counts: Matrix) -> Matrix:
        rows = counts[:, ::2] + counts[:, 1::2]
        shares = np.divide(counts[:, 1::2], rows, out=np.full(rows.shape, np.nan), where=rows > 0)
        return np.asarray(np.nanmean(shares, axis=1))

    tail = (1 - interval.confidence) / 2
    low, high = (float(edge) for edge in np.quantile(mean(drawn), [tail, 1 - tail]))
    value = float(mean(np.bincount(cells, minlength=2 * len(present))[None].astype(np.float64))[0])
    how = "bootstrap over rows" if groups is None else "bootstrap over groups"
    return Estimate("mean per class", value, low, high, interval.confidence, how)


def confusion(predictions: Indices, labels: Indices, *, classes: Sequence[str]) -> Confusion:
    """The table of true against given classes."""
    _same_rows(predictions, labels)
    k = len(classes)
    counts = np.bincount(labels * k + predictions, minlength=k * k).reshape(k, k)
    return Confusion(tuple(classes), tuple(map(tuple, counts.tolist())))


def calibration(
    scores: Matrix, labels: Indices, *, bins: int = 15, seed: int = 0, temperature: float | None = None
) -> Calibration:
    """How far confidence and accuracy lie apart: sum over bins of (rows in bin / rows) |accuracy - confidence|.

    A ridge head's scores are regressions on 0 and 1, not probabilities, so any calibration error judges the
    head together with a map to probabilities. Ours is the softmax at one temperature: the given one, else each half
    of the rows is judged at that of least log loss on the other half, so that no row chooses its own. The confidence
    of a row is its largest probability; the bins are of equal width, (i / bins, (i + 1) / bins].
    """
    _same_rows(scores, labels)
    if bins < 1 or len(labels) < 2:
        raise InputError(f"Calibration needs a bin and two rows; found {bins} bins and {len(labels)} rows.")
    if temperature is None:
        logs, temperatures = _cross_fitted(scores, labels, seed)
        how = "softmax; each half at the temperature fitted on the other half"
    else:
        logs, temperatures = log_probabilities(scores, temperature), (temperature,)
        how = "softmax at the temperature given"
    table = _bins(np.exp(logs.max(axis=1)), logs.argmax(axis=1) == labels, bins)
    gaps = [b.count * abs((b.accuracy or 0.0) - (b.confidence or 0.0)) for b in table]
    own = np.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    brier = float(np.mean(np.exp(2 * logs).sum(axis=1) - 2 * np.exp(own) + 1))
    return Calibration(sum(gaps) / len(labels), float(-own.mean()), brier, temperatures, table, how)


def _cross_fitted(scores: Matrix, labels: Indices, seed: int) -> tuple[Matrix, tuple[float, ...]]:
    order = np.random.Generator(np.random.PCG64([seed, FOLD_STREAM])).permutation(len(labels))
    halves, logs = np.split(order, [len(order) // 2]), np.empty_like(scores, dtype=np.float64)
    fitted = tuple(best_temperature(scores[other], labels[other]) for other in reversed(halves))
    for half, temperature in zip(halves, fitted, strict=True):
        logs[half] = log_probabilities(scores[half], temperature)
    return logs, fitted


def _bins(confidence: Matrix, right: NDArray[np.bool_], bins: int) -> tuple[Bin, ...]:
    number = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    sure = np.bincount(number, weights=confidence, minlength=bins)
    hits = np.bincount(number, weights=right, minlength=bins)
    return tuple(
        Bin(i / bins, (i + 1) / bins, int(n), *((float(s / n), float(h / n)) if n else (None, None)))
        for i, (n, s, h) in enumerate(zip(counts, sure, hits, strict=True))
    )


def _same_rows(one: NDArray[np.generic], other: Indices) -> None:
    if other.min(initial=0) < 0:
        raise InputError(
            f"Only rows with a label can be judged; {(other < 0).sum()} of {len(other)} have none. Select the others."
        )
    if len(one) != len(other):
        raise InputError(
            f"Both need one entry per row; found {len(one)} and {len(other)}. Take both from the same embedding set."
        )
