"""Metrics of scores against labels or targets, each an Estimate with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices, group_numbers
from probekit.errors import InputError
from probekit.evaluation.intervals import (
    ROWS,
    Estimate,
    Sampling,
    bootstrap_weights,
    mean_of_shares,
    normal_quantile,
    ratio_interval,
    share,
    wilson,
)

BINS = 15
CONSTANT = 1e-12
"""A target whose squares around the mean are this small beside its squares is constant."""


def accuracy(predicted: Indices, labels: Indices, sampling: Sampling = ROWS) -> Estimate:
    hits = _hits(predicted, labels)
    return share(hits, sampling)


def balanced_accuracy(predicted: Indices, labels: Indices, sampling: Sampling = ROWS) -> Estimate:
    """The mean of the classes' accuracies, over the classes that have rows."""
    hits = _hits(predicted, labels)
    return mean_of_shares(hits, labels, sampling)


def accuracy_per_class(
    predicted: Indices,
    labels: Indices,
    class_names: Sequence[str],
    sampling: Sampling = ROWS,
) -> dict[str, Estimate]:
    """The accuracy on each class's rows; classes without rows are left out."""
    hits = _hits(predicted, labels)
    estimates = {}
    for number, name in enumerate(class_names):
        rows = labels == number
        if rows.any():
            estimates[name] = share(hits[rows], sampling.of(rows))
    return estimates


def top_k(scores: Array, labels: Indices, k: int = 5, sampling: Sampling = ROWS) -> Estimate:
    """The share of rows whose class is among the k highest scores; a tie counts as a miss."""
    _check_labels(scores, labels)
    score = np.take_along_axis(scores, labels[:, None], axis=1)
    hits = (scores >= score).sum(axis=1) <= k
    hits &= np.isfinite(score[:, 0])
    return share(hits, sampling)


def confusion(predicted: Indices, labels: Indices, classes: int) -> Indices:
    """Counts of rows by true class (outer) and predicted class (inner)."""
    _hits(predicted, labels)
    counts = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def calibration_error(confidences: Array, hits: NDArray[np.bool_], bins: int = BINS) -> float:
    """ECE: sum over bins (i/b, (i+1)/b] of (rows in bin / rows) |accuracy - mean confidence|."""
    number = np.clip(np.ceil(confidences * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(number, weights=hits - confidences, minlength=bins)
    return float(np.abs(gaps).sum() / len(hits))


def auroc(scores: Array, positive: NDArray[np.bool_], sampling: Sampling = ROWS) -> Estimate:
    """The area under the ROC curve, ties counting half, with DeLong's interval (logit scale).

    scores, positive: (n,), or (n, k) for the mean over k labels that have rows of both kinds. By
    groups, the influences of a group's rows are summed first (Obuchowski 1997).
    """
    scores = scores.reshape(len(scores), -1)
    positive = positive.reshape(len(positive), -1)
    defined = np.flatnonzero(positive.any(axis=0) & ~positive.all(axis=0))
    if not len(defined):
        raise InputError("AUROC needs rows of both kinds; found one kind. Use another metric.")
    areas = []
    influence = np.zeros(len(scores))
    for column in defined:
        area, part = _delong(scores[:, column], positive[:, column])
        areas.append(area)
        influence += part / len(defined)
    value = float(np.mean(areas))
    units = len(scores)
    variance = float(influence @ influence)
    method = "DeLong"
    if sampling.groups is not None:
        sums = np.bincount(group_numbers(sampling.groups), weights=influence)
        units = len(sums)
        variance = float(sums @ sums) * units / max(units - 1, 1)
        method = f"DeLong over {units} groups"
    error = float(np.sqrt(variance * sampling.inflation))
    low, high = _logit_interval(value, error, sampling.confidence)
    if low == high:
        kinds = positive[:, defined].sum(axis=0)
        fewest = int(np.minimum(kinds, len(positive) - kinds).min())
        low, high = wilson(value, min(fewest, units) / sampling.inflation, sampling.confidence)
        method = "Wilson over the rarer kind"
    return sampling.estimate(value, (low, high), len(scores), method, decimal=True)


def average_precision(
    scores: Array, positive: NDArray[np.bool_], sampling: Sampling = ROWS
) -> Estimate:
    """The mean over labels of sum (gain in recall) x precision, with a bootstrap interval."""
    labels = np.flatnonzero(positive.any(axis=0))
    if not len(labels):
        raise InputError("Average precision needs positive rows; found none.")
    unit = np.arange(len(scores))
    name = "rows"
    if sampling.groups is not None:
        unit = group_numbers(sampling.groups)
        name = "groups"
    count = int(unit.max()) + 1
    columns = [(scores[:, label], positive[:, label]) for label in labels]
    ones = np.ones((1, len(scores)))
    value = float(np.mean([_precisions(*column, ones) for column in columns]))
    means = []
    for weights in bootstrap_weights(count, 8 * scores[:, labels].size, sampling.seed):
        drawn = np.array([_precisions(*column, weights[:, unit]) for column in columns])
        means.append(np.nanmean(drawn[:, np.isfinite(drawn).any(axis=0)], axis=0))
    tail = (1 - sampling.confidence) / 2
    limits = np.quantile(np.concatenate(means), [tail, 1 - tail])
    low, high = np.clip(value + (limits - value) * np.sqrt(sampling.inflation), 0.0, 1.0).tolist()
    method = f"bootstrap over {count} {name}"
    return sampling.estimate(value, (low, high), len(scores), method, decimal=True)


def r2(scores: Array, targets: Array, sampling: Sampling = ROWS) -> Estimate:
    """1 - squared errors / squares around the mean, over the targets that vary; bootstrap-t."""
    centered = np.square(targets - targets.mean(axis=0))
    varying = centered.sum(axis=0) > CONSTANT * np.square(targets).sum(axis=0)
    if not varying.any():
        raise InputError("R2 needs a target that varies; found constants. Pass other targets.")
    errors = np.square(scores - targets)[:, varying]
    centered = centered[:, varying]
    value = 1 - float((errors.sum(axis=0) / centered.sum(axis=0)).mean())
    (low, high), method = ratio_interval(errors, centered, sampling, bounded=False)
    return sampling.estimate(value, (1 - high, 1 - low), len(scores), method, decimal=True)


def independence_z(predictions: Array, targets: Array, folds: Indices) -> float:
    """How far predictions agree with targets beyond independence, in standard deviations.

    T = sum of predictions * targets, (n, k) each (one-hot for classes). If the targets of a fold
    are in random order given the predictions, T has mean sum_f n_f <mean_p, mean_t> and variance
    sum_f <P'P, T'T> / (n_f - 1) of the centered matrices: an exact two-sided permutation null.
    """
    agreement = 0.0
    variance = 0.0
    for fold in np.unique(folds):
        rows = folds == fold
        if rows.sum() < 2:
            continue
        P = predictions[rows] - predictions[rows].mean(axis=0)
        Y = targets[rows] - targets[rows].mean(axis=0)
        agreement += float((P * Y).sum())
        variance += float(((P.T @ P) * (Y.T @ Y)).sum()) / (len(P) - 1)
    return agreement / float(np.sqrt(variance)) if variance > 0 else 0.0


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


def _logit_interval(value: float, error: float, confidence: float) -> tuple[float, float]:
    if error <= 1e-12 or not 0 < value < 1:
        return value, value
    logit = np.log(value / (1 - value))
    half = normal_quantile(confidence) * error / (value * (1 - value))
    low, high = 1 / (1 + np.exp(-(logit + np.array([-half, half]))))
    return float(low), float(high)


def _precisions(scores: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """Average precision under each draw's row weights, (draws,); NaN without a positive row."""
    order = np.argsort(-scores, kind="stable")
    falling = -scores[order]
    positives = np.flatnonzero(positive[order])
    last_ties = np.searchsorted(falling, falling[positives], "right") - 1
    drawn = weights[:, order]
    gains = drawn * positive[order]
    above = np.cumsum(drawn, axis=1)[:, last_ties]
    right = np.cumsum(gains, axis=1)[:, last_ties]
    precision = np.divide(right, above, out=np.zeros(above.shape), where=above > 0)
    total = gains.sum(axis=1)
    sums = (gains[:, positives] * precision).sum(axis=1)
    return np.asarray(np.divide(sums, total, out=np.full(len(sums), np.nan), where=total > 0))


def _hits(predicted: Indices, labels: Indices) -> NDArray[np.bool_]:
    _check_labels(predicted, labels)
    return np.asarray(predicted == labels)


def _check_labels(predictions: NDArray[np.generic], labels: Indices) -> None:
    if len(predictions) != len(labels):
        raise InputError(
            f"{len(labels)} labels need as many predictions; found {len(predictions)}."
        )
    if not len(labels) or labels.min() < 0:
        unlabeled = int((labels < 0).sum())
        raise InputError(
            f"Rows with labels were expected; {unlabeled} of {len(labels)} have none. "
            "Leave them out (EmbeddingSet.labeled)."
        )
