"""Metrics of scores against labels or targets, each an Estimate with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices
from probekit.errors import InputError
from probekit.evaluation import measures
from probekit.evaluation.bootstrap import Sums
from probekit.evaluation.intervals import (
    ROWS,
    Estimate,
    Sampling,
    bounded,
    correlated,
    mean_of_shares,
    ranked,
    share,
    share_of,
    signed,
    unbounded,
)
from probekit.evaluation.measures import Measure
from probekit.heads import Task

BINS = 15
TOP = 5
HALF = 0.5
CLIP = float(np.finfo(np.float64).eps)
"""Probabilities count as at least this much in the log loss, as in scikit-learn."""


def accuracy(predicted: Indices, labels: Indices, sampling: Sampling = ROWS) -> Estimate:
    hits = _hits(predicted, labels)
    return share(hits, sampling)


def balanced_accuracy(predicted: Indices, labels: Indices, sampling: Sampling = ROWS) -> Estimate:
    """The mean of the classes' accuracies, over the classes that have rows."""
    _hits(predicted, labels)
    return mean_of_shares(measures.balanced_accuracy(predicted, labels), sampling)


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


def top_k(scores: Array, labels: Indices, k: int = TOP, sampling: Sampling = ROWS) -> Estimate:
    """The share of rows whose class is among the k highest scores; a tie counts as a miss."""
    return share(_top_hits(scores, labels, k), sampling)


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
    return ranked(measures.auroc(_matrix(scores), _matrix(positive)), sampling)


def average_precision(
    scores: Array, positive: NDArray[np.bool_], sampling: Sampling = ROWS
) -> Estimate:
    """The mean over labels of sum (gain in recall) x precision, linearized (logit scale)."""
    return ranked(measures.average_precision(_matrix(scores), _matrix(positive)), sampling)


def r2(scores: Array, targets: Array, sampling: Sampling = ROWS) -> Estimate:
    """1 - squared errors / squares around the mean, over the targets that vary; bootstrap-t."""
    return unbounded(measures.r2(scores, targets), sampling)


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


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scores of rows, and what is true of them.

    scores: (n, k); -inf where a class has none. truth: class numbers (n,), or targets (n, k).
    probabilities: of the classes, (n, k), where the head gives them.
    """

    scores: Array
    truth: NDArray[Any]
    task: Task
    probabilities: Array | None = None

    def __post_init__(self) -> None:
        if self.task == "classes":
            _check_labels(self.scores, self.truth)

    @property
    def predicted(self) -> Indices:
        return np.asarray(self.scores.argmax(axis=1), np.int64)

    @property
    def shares(self) -> Array:
        """Of the classes that labels have, the most frequent first."""
        counts = np.sort(np.bincount(self.truth))[::-1]
        return np.asarray(counts[counts > 0] / len(self.truth))

    def columns(self) -> tuple[Array, NDArray[np.bool_]]:
        """Scores and whether a row is positive, a column for each label or class.

        Two classes are one column, the second class's. Of more, probabilities are ranked where
        there are any: scores of different rows need not be comparable.
        """
        if self.task == "labels":
            return self.scores, self.truth == 1
        if self.scores.shape[1] == 2:
            return np.diff(self.scores, axis=1), (self.truth == 1)[:, None]
        scores = self.scores if self.probabilities is None else self.probabilities
        return scores, self.truth[:, None] == np.arange(scores.shape[1])


def _accuracy(predictions: Predictions) -> Measure:
    return measures.shares(predictions.predicted == predictions.truth)


def _balanced_accuracy(predictions: Predictions) -> Measure:
    return measures.balanced_accuracy(predictions.predicted, predictions.truth)


def _macro_f1(predictions: Predictions) -> Measure:
    return measures.macro_f1(predictions.predicted, predictions.truth)


def _kappa(predictions: Predictions) -> Measure:
    return measures.kappa(predictions.predicted, predictions.truth)


def _quadratic_kappa(predictions: Predictions) -> Measure:
    return measures.quadratic_kappa(predictions.predicted, predictions.truth)


def _top5(predictions: Predictions) -> Measure:
    return measures.shares(_top_hits(predictions.scores, predictions.truth, TOP))


def _log_loss(predictions: Predictions) -> Measure:
    if predictions.probabilities is None:
        raise InputError(
            "log_loss needs probabilities; this head has none. Choose another head or metric "
            "(--head, --metric)."
        )
    labels = predictions.truth[:, None]
    probabilities = np.take_along_axis(predictions.probabilities, labels, axis=1)[:, 0]
    return Sums.of_means(-np.log(np.clip(probabilities, CLIP, 1.0)))


def _auroc(predictions: Predictions) -> Measure:
    return measures.auroc(*predictions.columns())


def _average_precision(predictions: Predictions) -> Measure:
    return measures.average_precision(*predictions.columns())


def _r2(predictions: Predictions) -> Measure:
    return measures.r2(predictions.scores, predictions.truth)


def _pearson(predictions: Predictions) -> Measure:
    return measures.pearson(predictions.scores, predictions.truth)


def _mae(predictions: Predictions) -> Measure:
    return Sums.of_means(np.abs(predictions.scores - predictions.truth).mean(axis=1))


def _largest_share(predictions: Predictions) -> float:
    return float(predictions.shares[0])


def _largest_shares(predictions: Predictions) -> float:
    return float(predictions.shares[:TOP].sum())


def _inverse_classes(predictions: Predictions) -> float:
    return 1 / len(predictions.shares)


def _majority_f1(predictions: Predictions) -> float:
    share = float(predictions.shares[0])
    return 2 * share / (1 + share) / len(predictions.shares)


def _entropy(predictions: Predictions) -> float:
    return float(-predictions.shares @ np.log(predictions.shares))


def _positive_share(predictions: Predictions) -> float:
    _, positive = predictions.columns()
    return float(positive[:, positive.any(axis=0)].mean())


def _deviation(predictions: Predictions) -> float:
    return float(np.abs(predictions.truth - np.median(predictions.truth, axis=0)).mean())


def _half(predictions: Predictions) -> float:
    return HALF


def _zero(predictions: Predictions) -> float:
    return 0.0


@dataclass(frozen=True)
class Metric:
    """What a metric is, for the tasks that it is defined for.

    measure: what is estimated, and compared between two heads; estimate: its interval.
    chance: what the best constant prediction gives.
    """

    tasks: tuple[Task, ...]
    measure: Callable[[Predictions], Measure]
    estimate: Callable[[Any, Sampling], Estimate]
    chance: Callable[[Predictions], float]
    higher_is_better: bool = True

    def of(self, predictions: Predictions, sampling: Sampling = ROWS) -> Estimate:
        return self.estimate(self.measure(predictions), sampling)


_CLASSES: tuple[Task, ...] = ("classes",)
_RANKED: tuple[Task, ...] = ("classes", "labels")
_NUMBERS: tuple[Task, ...] = ("numbers",)
METRICS: dict[str, Metric] = {
    "accuracy": Metric(_CLASSES, _accuracy, share_of, _largest_share),
    "balanced_accuracy": Metric(_CLASSES, _balanced_accuracy, mean_of_shares, _inverse_classes),
    "macro_f1": Metric(_CLASSES, _macro_f1, bounded, _majority_f1),
    "top5": Metric(_CLASSES, _top5, share_of, _largest_shares),
    "auroc": Metric(_RANKED, _auroc, ranked, _half),
    "average_precision": Metric(_RANKED, _average_precision, ranked, _positive_share),
    "log_loss": Metric(_CLASSES, _log_loss, unbounded, _entropy, higher_is_better=False),
    "kappa": Metric(_CLASSES, _kappa, signed, _zero),
    "quadratic_kappa": Metric(_CLASSES, _quadratic_kappa, signed, _zero),
    "r2": Metric(_NUMBERS, _r2, unbounded, _zero),
    "pearson": Metric(_NUMBERS, _pearson, correlated, _zero),
    "mae": Metric(_NUMBERS, _mae, unbounded, _deviation, higher_is_better=False),
}
"""By the names that --metric takes."""


TASK_NAMES = {"classes": "classes", "labels": "several labels", "numbers": "real targets"}


def metric_of(name: str, task: Task) -> Metric:
    """The metric of this name, if it is defined for these rows."""
    choices = [other for other, metric in METRICS.items() if task in metric.tasks]
    if name not in choices:
        raise InputError(
            f"metric (--metric) {name!r} is not defined for {TASK_NAMES[task]}. Choose one of "
            f"{', '.join(choices)}."
        )
    return METRICS[name]


def _top_hits(scores: Array, labels: Indices, k: int) -> NDArray[np.bool_]:
    _check_labels(scores, labels)
    score = np.take_along_axis(scores, labels[:, None], axis=1)
    hits = (scores >= score).sum(axis=1) <= k
    return np.asarray(hits & np.isfinite(score[:, 0]))


def _matrix(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), -1)


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
