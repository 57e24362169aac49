"""Average precision, AUC and R2 against scikit-learn's, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, r2_score, roc_auc_score

from probekit.errors import InputError
from probekit.evaluation.metrics import Interval
from probekit.evaluation.target_metrics import target_scores

Array = NDArray[np.float64]


def test_they_are_scikit_learns_on_the_rows_that_know_the_target() -> None:
    generator = np.random.default_rng(1)
    labels = (generator.random((240, 3)) < 0.3).astype(float)
    labels[generator.random(labels.shape) < 0.2] = np.nan
    scores = np.round(np.nan_to_num(labels) + generator.normal(size=labels.shape), 1)  # many equal scores
    found = target_scores(scores, labels, names=("a", "b", "c"), kind="labels")
    for k, one in enumerate(found.by_target):
        seen = ~np.isnan(labels[:, k])
        truth, own = labels[seen, k], scores[seen, k]
        assert one.average_precision is not None
        assert one.auc is not None
        assert one.average_precision.value == pytest.approx(average_precision_score(truth, own), abs=1e-12)
        assert one.auc.value == pytest.approx(roc_auc_score(truth, own), abs=1e-12)
        assert (one.count, one.positive, one.r2) == (seen.sum(), truth.sum(), None)
        assert one.auc.low is not None
        assert one.auc.high is not None
        assert one.auc.low < one.auc.value < one.auc.high
    assert found.mean_auc is not None
    assert found.mean_auc.value == pytest.approx(np.mean([one.auc.value for one in found.by_target if one.auc]))
    truth = generator.normal(size=(240, 2)) + 1000
    guesses = truth + generator.normal(size=truth.shape)
    real = target_scores(guesses, truth, names=("x", "y"), kind="real")
    assert real.mean_r2 is not None
    assert real.mean_r2.value == pytest.approx(r2_score(truth, guesses), abs=1e-9)


def test_an_interval_over_groups_is_wider_where_groups_are_alike() -> None:
    generator = np.random.default_rng(2)
    groups = np.repeat(np.arange(12), 30)
    truth: Array = generator.normal(size=(360, 1))
    scores: Array = truth + generator.normal(size=12)[groups][:, None]
    own, over = (target_scores(scores, truth, names=("x",), kind="real", groups=g).mean_r2 for g in (None, groups))
    assert own is not None
    assert over is not None
    assert own.value == over.value
    assert (over.high or 0) - (over.low or 0) > 1.5 * ((own.high or 0) - (own.low or 0))
    assert over.how == "bootstrap over groups, 1000 draws"


def test_what_is_not_defined_is_none() -> None:
    scores = np.random.default_rng(0).normal(size=(20, 3))
    labels: Array = np.column_stack([np.zeros(20), np.ones(20), np.arange(20) % 2])
    found = target_scores(scores, labels, names=("no", "all", "some"), kind="labels", interval=Interval(draws=100))
    none, every, some = found.by_target
    assert none.average_precision is None
    assert none.auc is None
    assert every.auc is None
    assert some.auc is not None
    assert found.mean_auc == some.auc
    constant = target_scores(scores[:, :1], np.full((20, 1), 3.0), names=("c",), kind="real")
    assert constant.mean_r2 is None
    with pytest.raises(InputError, match="one shape"):
        target_scores(scores, labels[:, :2], names=("a", "b"), kind="labels")
