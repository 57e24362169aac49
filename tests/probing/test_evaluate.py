"""Metrics that are asked for by name, on rows of a probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as theirs

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.estimators import fit_ridge
from probekit.evaluation.metrics import METRICS
from probekit.probing import ProbeResult
from probekit.probing.evaluate import evaluate
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


def rows_of(make_clusters: Make) -> ProbeRows:
    """Training rows of 3 classes, test rows of these and of a fourth."""
    vectors, labels = make_clusters(90, signal=1.0)
    others, test_labels = make_clusters(80, classes=4, signal=1.0, seed=1)
    names = list("abcd")
    train = EmbeddingSet.from_numpy(vectors, labels, class_names=names[:3])
    test = EmbeddingSet.from_numpy(others, test_labels, class_names=names)
    return ProbeRows(train, test, np.arange(90), None)


@pytest.mark.parametrize("name", [name for name in METRICS if "classes" in METRICS[name].tasks])
def test_a_metric_that_is_asked_for_is_the_primary_one(name: str, make_clusters: Make) -> None:
    rows = rows_of(make_clusters)
    head, _ = fit_ridge(rows.train)
    scores = head.decision(rows.evaluated)
    shares = head.probabilities(scores)
    evaluation = evaluate(scores, rows, ProbeOptions(metric=name), probabilities=shares)
    assert evaluation.metric == name
    assert list(evaluation.metrics)[:2] == ["accuracy", "balanced_accuracy"]
    labels = rows.evaluated.labels
    padded = np.hstack([shares, np.zeros((80, 1))])
    expected = {
        "macro_f1": theirs.f1_score(labels, scores.argmax(axis=1), average="macro"),
        "log_loss": theirs.log_loss(labels, padded),
        "auroc": theirs.roc_auc_score(labels, padded, multi_class="ovr"),
    }
    if name in expected:
        assert evaluation.primary.value == pytest.approx(expected[name])
    assert evaluation.primary.low <= evaluation.primary.value <= evaluation.primary.high
    assert evaluation.calibration_error is not None


def test_losses_need_probabilities(make_clusters: Make) -> None:
    rows = rows_of(make_clusters)
    scores = fit_ridge(rows.train)[0].decision(rows.evaluated)
    with pytest.raises(InputError, match="probabilities"):
        evaluate(scores, rows, ProbeOptions(metric="log_loss"))
    assert evaluate(scores, rows, ProbeOptions()).calibration_error is None


def test_the_metric_stands_in_the_table(
    make_clusters: Make, quick: Callable[..., ProbeResult]
) -> None:
    result = quick(make_clusters(90), metric="macro_f1", heads=["ridge", "lda", "nearest-mean"])
    frame: Any = result.to_pandas()
    assert frame["metric"].tolist() == ["macro_f1"] * 3
    assert np.allclose(frame["macro_f1"], frame["value"])
    assert (frame["value"] > 0.5).all()
    assert (frame["chance"] == 1 / 6).all()  # a third of the rows: F1 of 1/2 for one class of three
