"""What metrics are made of: functions of sums over rows, or ranks with each row's influence.

Both give intervals of a value, and of the difference of two on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices
from probekit.errors import InputError
from probekit.evaluation.bootstrap import Sums, mean_ratio
from probekit.evaluation.intervals import Ranking

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Measure = Sums | Ranking
CONSTANT = 1e-12
"""Numbers whose squares around the mean are this small beside their squares are constant."""


def shares(hits: NDArray[np.bool_]) -> Sums:
    """The share of hits."""
    return Sums(mean_ratio, np.array([[0.0, 1.0], [1.0, 1.0]]), hits.astype(np.int64))


def balanced_accuracy(predicted: Indices, labels: Indices) -> Sums:
    """The mean of the classes' accuracies, over the classes that have rows."""
    classes, true, guess, kinds = _pairs(labels, predicted)
    hits = _indicator(true, classes, true == guess)
    return Sums(mean_ratio, _columns(hits, _indicator(true, classes)), kinds)


def macro_f1(predicted: Indices, labels: Indices) -> Sums:
    """The mean of 2 TP / (2 TP + FP + FN) over the classes that any label or prediction has."""
    classes, true, guess, kinds = _pairs(labels, predicted)
    hits = _indicator(true, classes, 2.0 * (true == guess))
    either = _indicator(true, classes) + _indicator(guess, classes)
    return Sums(mean_ratio, _columns(hits, either), kinds)


def kappa(predicted: Indices, labels: Indices) -> Sums:
    """Cohen's kappa: 1 - disagreement / disagreement of independent labels and predictions."""
    classes, true, guess, kinds = _pairs(labels, predicted)
    misses = _indicator(np.zeros_like(true), 1, true != guess)
    ones = _indicator(np.zeros_like(true), 1)
    members = (_indicator(true, classes), _indicator(guess, classes))
    return Sums(_kappa, _columns(ones, misses, *members), kinds)


def quadratic_kappa(predicted: Indices, labels: Indices) -> Sums:
    """Cohen's kappa with squared distances of class numbers: classes are in order."""
    _, true, guess, kinds = _pairs(labels, predicted)
    distances = np.square(true - guess)
    squares = np.square(true) + np.square(guess)
    features = np.stack([np.ones(len(true)), distances, true, guess, squares], axis=1)
    return Sums(_quadratic_kappa, features.astype(np.float64), kinds)


def r2(scores: Array, targets: Array) -> Sums:
    """1 - squared errors / squares around the mean, averaged over the targets that vary."""
    centered = np.square(targets - targets.mean(axis=0))
    varying = _varies(targets)
    if not varying.any():
        raise InputError("R2 needs a target that varies; found constants. Pass other targets.")
    errors = np.square(scores - targets)

    def complement(totals: Array) -> tuple[Array, Array]:
        value, gradient = mean_ratio(totals)
        return 1 - value, -gradient

    return Sums(complement, np.hstack([errors[:, varying], centered[:, varying]]))


def pearson(scores: Array, targets: Array) -> Sums:
    """The correlation of scores and targets, averaged over the targets that vary."""
    varying = _varies(targets)
    if not varying.any() or not _varies(scores)[varying].all():
        raise InputError(
            "Pearson's correlation needs a target that varies and predictions that do; found "
            "constants. Use another metric (--metric mae)."
        )
    x, y = (
        (part - part.mean(axis=0)) / part.std(axis=0)
        for part in (scores[:, varying], targets[:, varying])
    )
    ones = np.ones((len(x), 1))
    return Sums(_correlation, np.hstack([ones, x, y, x * x, y * y, x * y]))


def auroc(scores: Array, positive: NDArray[np.bool_]) -> Ranking:
    """The area under the ROC curve, ties counting half; the mean over columns with both kinds."""
    defined = np.flatnonzero(positive.any(axis=0) & ~positive.all(axis=0))
    if not len(defined):
        raise InputError("AUROC needs rows of both kinds; found one kind. Use another metric.")
    return _mean_ranking(_delong, scores[:, defined], positive[:, defined], "DeLong")


def average_precision(scores: Array, positive: NDArray[np.bool_]) -> Ranking:
    """The sum of (gain in recall) x precision; the mean over columns with a positive row."""
    defined = np.flatnonzero(positive.any(axis=0))
    if not len(defined):
        raise InputError("Average precision needs positive rows; found none. Use another metric.")
    return _mean_ranking(_precision, scores[:, defined], positive[:, defined], "linearized")


def _pairs(labels: Indices, predicted: Indices) -> tuple[int, Indices, Indices, Indices]:
    """The number of classes, the pairs of label and prediction, and the pair of each row."""
    classes = int(max(labels.max(), predicted.max())) + 1
    pairs, kinds = np.unique(labels * classes + predicted, return_inverse=True)
    return classes, pairs // classes, pairs % classes, kinds


def _indicator(
    columns: Indices, width: int, values: NDArray[np.generic] | None = None
) -> csr_array:
    """A value in one column of each row."""
    from scipy.sparse import csr_array

    entries = np.ones(len(columns)) if values is None else np.asarray(values, np.float64)
    return csr_array((entries, columns, np.arange(len(columns) + 1)), shape=(len(columns), width))


def _columns(*parts: csr_array) -> csr_array:
    from scipy.sparse import csr_array, hstack

    return csr_array(hstack(parts))


def _kappa(totals: Array) -> tuple[Array, Array]:
    """1 - n D / (n^2 - sum_c r_c p_c), of n, the misses D, rows r and predictions p by class."""
    n = totals[:, :1]
    misses = totals[:, 1:2]
    width = totals.shape[1] // 2 - 1
    rows = totals[:, 2 : 2 + width]
    predicted = totals[:, 2 + width :]
    expected = np.square(n) - (rows * predicted).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = misses * n / expected
        slope = ratio / expected
        parts = [2 * n * slope - misses / expected, -n / expected]
        gradients = np.hstack([*parts, -slope * predicted, -slope * rows])
    return 1 - ratio[:, 0], gradients


def _quadratic_kappa(totals: Array) -> tuple[Array, Array]:
    """1 - n D / (n Q - 2 A B): D, A, B and Q sum (i - j)^2, i, j and i^2 + j^2."""
    n, distances, true, guess, squares = totals.T
    expected = n * squares - 2 * true * guess
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = n * distances / expected
        slope = ratio / expected
        parts = [slope * squares - distances / expected, -n / expected]
        parts += [-2 * slope * guess, -2 * slope * true, slope * n]
    return 1 - ratio, np.stack(parts, axis=1)


def _correlation(totals: Array) -> tuple[Array, Array]:
    """The mean over columns of Pearson's r, of n and the sums of x, y, x^2, y^2 and x y."""
    n = totals[:, :1]
    x, y, xx, yy, xy = np.split(totals[:, 1:], 5, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        sxx = n * xx - x * x
        syy = n * yy - y * y
        root = np.sqrt(sxx * syy)
        r = (n * xy - x * y) / root
        by_n = xy / root - r / 2 * (xx / sxx + yy / syy)
        parts = [r * x / sxx - y / root, r * y / syy - x / root]
        parts += [-r * n / (2 * sxx), -r * n / (2 * syy), n / root]
    gradients = np.hstack([by_n.sum(axis=1, keepdims=True), *parts])
    return r.mean(axis=1), gradients / r.shape[1]


def _varies(values: Array) -> NDArray[np.bool_]:
    centered = np.square(values - values.mean(axis=0)).sum(axis=0)
    return np.asarray(centered > CONSTANT * np.square(values).sum(axis=0))


def _mean_ranking(
    rank: Callable[[Array, NDArray[np.bool_]], tuple[float, Array]],
    scores: Array,
    positive: NDArray[np.bool_],
    method: str,
) -> Ranking:
    """The mean over columns of a value and its influences."""
    values = []
    influence = np.zeros(len(scores))
    for column in range(scores.shape[1]):
        value, part = rank(scores[:, column], positive[:, column])
        values.append(value)
        influence += part / scores.shape[1]
    counts = positive.sum(axis=0)
    rarer = np.minimum(counts, len(positive) - counts)
    freedom = max(1, int(np.maximum(rarer - 1, 0).sum()))
    return Ranking(float(np.mean(values)), influence, int(rarer.min()), freedom, method)


def _delong(scores: Array, positive: NDArray[np.bool_]) -> tuple[float, Array]:
    """The area and each row's influence on it; their squares add up to DeLong's variance."""
    from scipy.stats import rankdata

    above = scores[positive]
    below = scores[~positive]
    ranks = rankdata(scores)
    wins = (ranks[positive] - rankdata(above)) / len(below)
    losses = 1 - (ranks[~positive] - rankdata(below)) / len(above)
    area = float(wins.mean())
    influence = np.empty(len(scores))
    influence[positive] = (wins - area) / np.sqrt(len(above) * max(len(above) - 1, 1))
    influence[~positive] = (losses - area) / np.sqrt(len(below) * max(len(below) - 1, 1))
    return area, influence


def _precision(scores: Array, positive: NDArray[np.bool_]) -> tuple[float, Array]:
    """The average precision and each row's influence on it, its derivative in the row's weight.

    A positive row brings its own precision. Every row changes the precision of the positive rows
    that are not above it, by (1 if positive - precision) / (rows not below).
    """
    order = np.argsort(-scores, kind="stable")
    falling = -scores[order]
    gains = positive[order].astype(np.float64)
    first = np.searchsorted(falling, falling, "left")
    last = np.searchsorted(falling, falling, "right") - 1
    above = last + 1.0
    precision = np.cumsum(gains)[last] / above
    total = gains.sum()
    value = float(gains @ precision) / total
    rises = np.cumsum((gains / above)[::-1])[::-1][first]
    falls = np.cumsum((gains * precision / above)[::-1])[::-1][first]
    influence = np.empty(len(scores))
    influence[order] = (gains * (precision - value + rises) - falls) / total
    return value, influence * np.sqrt(len(scores) / max(len(scores) - 1, 1))
