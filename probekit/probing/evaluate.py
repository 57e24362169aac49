"""Scores of some rows as metrics with intervals, and the rows that are most wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from probekit.arrays import Array, Indices, hex_id
from probekit.embeddings import EmbeddingSet
from probekit.evaluation import metrics
from probekit.evaluation.intervals import Estimate
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows

MOST_WRONG = 20


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
    scores: Array, rows: ProbeRows, options: ProbeOptions, *, probabilities: Array | None = None
) -> Evaluation:
    """Evaluate scores of `rows.evaluated`; probabilities: of the classes, (n, k), if there are."""
    sampling = rows.sampling(options)
    predictions = predictions_of(scores, rows, probabilities)
    names = _usual_metrics(predictions, scores.shape[1])
    primary = options.metric or names[0]
    if options.metric is None and rows.task == "classes" and predictions.shares[0] > 0.5:
        primary = "balanced_accuracy"
    chosen = metrics.metric_of(primary, rows.task)
    evaluation = Evaluation(
        primary,
        {
            name: metrics.METRICS[name].of(predictions, sampling)
            for name in dict.fromkeys([*names, primary])
        },
        chosen.chance(predictions),
    )
    if rows.task != "classes":
        return evaluation
    class_names = rows.evaluated.class_names
    predicted = predictions.predicted
    labels = predictions.truth
    error = None
    if probabilities is not None:
        error = metrics.calibration_error(probabilities.max(axis=1), predicted == labels)
    return replace(
        evaluation,
        class_names=class_names,
        per_class=metrics.accuracy_per_class(predicted, labels, class_names, sampling),
        confusion=metrics.confusion(predicted, labels, len(class_names)),
        calibration_error=error,
    )


def predictions_of(
    scores: Array, rows: ProbeRows, probabilities: Array | None
) -> metrics.Predictions:
    """Classes that only test rows have get no score and no probability."""
    evaluated = rows.evaluated
    if evaluated.labels is None:
        return metrics.Predictions(scores, evaluated.target_matrix, rows.task)
    missing = ((0, 0), (0, len(evaluated.class_names) - scores.shape[1]))
    padded = np.pad(scores, missing, constant_values=-np.inf)
    if probabilities is not None:
        probabilities = np.pad(probabilities, missing)
    return metrics.Predictions(padded, evaluated.labels, rows.task, probabilities)


def _usual_metrics(predictions: metrics.Predictions, trained: int) -> list[str]:
    """What is reported whether or not somebody asks for it; the first is the primary one."""
    if predictions.task == "numbers":
        return ["r2"]
    if predictions.task == "labels":
        return ["average_precision", "auroc"]
    names = ["accuracy", "balanced_accuracy"]
    classes = predictions.scores.shape[1]
    if classes > metrics.TOP:
        names.append("top5")
    if classes == trained == len(predictions.shares) == 2:
        names.append("auroc")
    return names


def most_wrong(scores: Array, rows: EmbeddingSet) -> tuple[WrongRow, ...]:
    """Rows whose class trails another one by most; those whose class has no score are left out."""
    if rows.labels is None:
        return ()
    scored = np.flatnonzero(rows.labels < scores.shape[1])
    labels = rows.labels[scored]
    rivals = scores[scored]
    true = np.take_along_axis(rivals, labels[:, None], axis=1)
    np.put_along_axis(rivals, labels[:, None], -np.inf, axis=1)
    margins = rivals.max(axis=1) - true[:, 0]
    margins[~np.isfinite(margins)] = 0
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
