"""Scores of some rows as metrics with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from probekit.arrays import Array, Indices, id_keys
from probekit.errors import InputError
from probekit.evaluation import metrics
from probekit.evaluation.intervals import Estimate
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import FOLD_INFLATION, ProbeRows

TOP = 5
HALF = 0.5


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a head is on rows that it was not fitted on.

    metrics: estimates by name; `metric` names the primary one, `chance` is what guessing gives.
    per_class, confusion: of classes (confusion[true][predicted]).
    calibration_error: ECE with 15 bins, at a temperature from rows that are not evaluated by it.
    independence: standard deviations from what scores that know nothing of the labels would give.
    """

    metric: str
    metrics: Mapping[str, Estimate]
    chance: float
    class_names: tuple[str, ...] = ()
    per_class: Mapping[str, Estimate] = field(default_factory=dict)
    confusion: Indices | None = None
    calibration_error: float | None = None
    independence: float = 0.0

    @property
    def primary(self) -> Estimate:
        return self.metrics[self.metric]


def evaluate(
    scores: Array, rows: ProbeRows, options: ProbeOptions, *, confidences: Array | None = None
) -> Evaluation:
    """Evaluate scores of `rows.evaluated`.

    confidences: probabilities of the predicted classes, at a temperature of other rows.
    """
    if rows.evaluated.labels is None:
        return _evaluate_targets(scores, rows, options)
    labels = rows.evaluated.labels
    class_names = rows.evaluated.class_names
    sampling = rows.sampling(options)
    padded = np.full((len(scores), len(class_names)), -np.inf)
    padded[:, : scores.shape[1]] = scores
    predicted = np.asarray(scores.argmax(axis=1), np.int64)
    counts = np.sort(np.bincount(labels))[::-1]
    classes = np.count_nonzero(counts)
    estimates = {
        "accuracy": metrics.accuracy(predicted, labels, sampling),
        "balanced_accuracy": metrics.balanced_accuracy(predicted, labels, sampling),
    }
    chances = {"accuracy": counts[0] / len(labels), "balanced_accuracy": 1 / classes}
    if len(class_names) > TOP:
        estimates["top5"] = metrics.top_k(padded, labels, TOP, sampling)
        chances["top5"] = counts[:TOP].sum() / len(labels)
    if len(class_names) == scores.shape[1] == classes == 2:
        margins = scores[:, 1] - scores[:, 0]
        estimates["auroc"] = metrics.auroc(margins, labels == 1, sampling)
        chances["auroc"] = HALF
    default = "balanced_accuracy" if chances["accuracy"] > HALF else "accuracy"
    metric = _primary(options.metric or default, estimates)
    error = None
    if confidences is not None:
        error = metrics.calibration_error(confidences, predicted == labels)
    identity = np.eye(len(class_names))
    return Evaluation(
        metric,
        estimates,
        float(chances[metric]),
        class_names,
        metrics.accuracy_per_class(predicted, labels, class_names, sampling),
        metrics.confusion(predicted, labels, len(class_names)),
        error,
        _independence(identity[predicted], identity[labels], rows),
    )


def _evaluate_targets(scores: Array, rows: ProbeRows, options: ProbeOptions) -> Evaluation:
    targets = rows.evaluated.target_matrix
    sampling = rows.sampling(options)
    if rows.task == "labels":
        positive = targets == 1
        estimates = {
            "average_precision": metrics.average_precision(scores, positive, sampling),
            "auroc": metrics.auroc(scores, positive, sampling),
        }
        share = float(positive[:, positive.any(axis=0)].mean())
        chances = {"average_precision": share, "auroc": HALF}
    else:
        estimates = {"r2": metrics.r2(scores, targets, sampling)}
        chances = {"r2": 0.0}
    metric = _primary(options.metric or next(iter(estimates)), estimates)
    scale = np.where(targets.std(axis=0) > 0, targets.std(axis=0), 1.0)
    independence = _independence(scores / scale, targets / scale, rows)
    return Evaluation(metric, estimates, chances[metric], independence=independence)


def _primary(metric: str, estimates: Mapping[str, Estimate]) -> str:
    if metric not in estimates:
        raise InputError(
            f"metric (--metric) {metric!r} is not defined for these rows. "
            f"Choose one of {', '.join(estimates)}."
        )
    return metric


def _independence(predictions: Array, targets: Array, rows: ProbeRows) -> float:
    """`independence_z` over distinct samples: copies would count twice."""
    _, first = np.unique(id_keys(rows.evaluated.ids), return_index=True)
    if rows.test is not None:
        folds = np.zeros(len(first), np.int64)
        return metrics.independence_z(predictions[first], targets[first], folds)
    assert rows.folds is not None
    z = metrics.independence_z(predictions[first], targets[first], rows.folds[first])
    return z / float(np.sqrt(FOLD_INFLATION))
