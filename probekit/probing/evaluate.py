"""Scores of some rows as metrics with intervals, and the rows that are most wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from probekit.arrays import Array, Indices, hex_id
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.evaluation import metrics
from probekit.evaluation.intervals import Estimate, Sampling
from probekit.heads import Task
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows

TOP = 5
HALF = 0.5
MOST_WRONG = 20

Estimates = dict[str, tuple[Estimate, float]]
"""Metrics by name, each with what guessing gives."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a head is on rows that it was not fitted on.

    metrics: estimates by name; `metric` names the primary one, `chance` is what guessing gives.
    per_class, confusion: of classes (confusion[true][predicted]).
    calibration_error: ECE with 15 bins, at a temperature from rows that are not evaluated by it.
    """

    metric: str
    metrics: Mapping[str, Estimate]
    chance: float
    class_names: tuple[str, ...] = ()
    per_class: Mapping[str, Estimate] = field(default_factory=dict)
    confusion: Indices | None = None
    calibration_error: float | None = None

    @property
    def primary(self) -> Estimate:
        return self.metrics[self.metric]


@dataclass(frozen=True)
class WrongRow:
    """A row that a head fitted without it gets wrong; margin: by how much."""

    key: str
    id: str
    label: str
    predicted: str
    margin: float


def evaluate(
    scores: Array, rows: ProbeRows, options: ProbeOptions, *, confidences: Array | None = None
) -> Evaluation:
    """Evaluate scores of `rows.evaluated`; confidences: probabilities of the predicted classes."""
    sampling = rows.sampling(options)
    labels = rows.evaluated.labels
    if labels is None:
        estimates = _target_metrics(scores, rows.evaluated.target_matrix, rows.task, sampling)
        return _evaluation(estimates, options.metric or next(iter(estimates)))
    class_names = rows.evaluated.class_names
    predicted = np.asarray(scores.argmax(axis=1), np.int64)
    shares = np.sort(np.bincount(labels))[::-1] / len(labels)
    classes = np.count_nonzero(shares)
    accuracy = metrics.accuracy(predicted, labels, sampling)
    balanced = metrics.balanced_accuracy(predicted, labels, sampling)
    estimates = {"accuracy": (accuracy, shares[0]), "balanced_accuracy": (balanced, 1 / classes)}
    if len(class_names) > TOP:
        padded = np.full((len(scores), len(class_names)), -np.inf)
        padded[:, : scores.shape[1]] = scores
        estimates["top5"] = (metrics.top_k(padded, labels, TOP, sampling), shares[:TOP].sum())
    if len(class_names) == scores.shape[1] == classes == 2:
        margins = scores[:, 1] - scores[:, 0]
        estimates["auroc"] = (metrics.auroc(margins, labels == 1, sampling), HALF)
    default = "balanced_accuracy" if shares[0] > HALF else "accuracy"
    error = None
    if confidences is not None:
        error = metrics.calibration_error(confidences, predicted == labels)
    return replace(
        _evaluation(estimates, options.metric or default),
        class_names=class_names,
        per_class=metrics.accuracy_per_class(predicted, labels, class_names, sampling),
        confusion=metrics.confusion(predicted, labels, len(class_names)),
        calibration_error=error,
    )


def _target_metrics(scores: Array, targets: Array, task: Task, sampling: Sampling) -> Estimates:
    if task == "numbers":
        return {"r2": (metrics.r2(scores, targets, sampling), 0.0)}
    positive = targets == 1
    precision = metrics.average_precision(scores, positive, sampling)
    share = float(positive[:, positive.any(axis=0)].mean())
    area = metrics.auroc(scores, positive, sampling)
    return {"average_precision": (precision, share), "auroc": (area, HALF)}


def _evaluation(estimates: Estimates, metric: str) -> Evaluation:
    if metric not in estimates:
        raise InputError(
            f"metric (--metric) {metric!r} is not defined for these rows. "
            f"Choose one of {', '.join(estimates)}."
        )
    values = {name: estimate for name, (estimate, _) in estimates.items()}
    return Evaluation(metric, values, float(estimates[metric][1]))


def most_wrong(scores: Array, rows: EmbeddingSet) -> tuple[WrongRow, ...]:
    """Rows whose class trails another one by most; those of classes without scores are left out."""
    if rows.labels is None:
        return ()
    scored = np.flatnonzero(rows.labels < scores.shape[1])
    labels = rows.labels[scored]
    rivals = scores[scored]
    true = np.take_along_axis(rivals, labels[:, None], axis=1)
    np.put_along_axis(rivals, labels[:, None], -np.inf, axis=1)
    margins = rivals.max(axis=1) - true[:, 0]
    keys = rows.columns.get("key", np.arange(len(rows)))
    return tuple(
        WrongRow(
            key=str(keys[scored[row]]),
            id=hex_id(rows.ids[scored[row]]),
            label=rows.class_names[labels[row]],
            predicted=rows.class_names[int(rivals[row].argmax())],
            margin=float(margins[row]),
        )
        for row in np.argsort(-margins, kind="stable")[:MOST_WRONG]
        if margins[row] > 0
    )
