"""Leave-one-out against as many trainings as rows, and against scikit-learn's choice."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifierCV

from probekit.errors import InputError
from probekit.linear import leaveout
from probekit.linear.design import INTERCEPTS, SCALINGS, Design
from probekit.linear.leaveout import choose_ridge, leave_one_out
from probekit.linear.path import decompose
from probekit.linear.statistics import statistics
from tests.linear.conftest import embeddings
from tests.oracles import columns, leave_one_out_scores, one_hot

RIDGES = np.geomspace(1e-3, 10, 7)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("count", [9, 40])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_row_left_out_in_turn(
    intercept: str, scaling: str, count: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaveout, "BLOCK_ELEMENTS", 1)  # several blocks
    rows, labels = embeddings(count, 10, 3, seed=2)
    path = decompose(statistics(rows, labels, Design(10, 3, intercept=intercept)), scaling=scaling)
    found = leave_one_out(path, rows, labels, ridges=RIDGES, dtype=dtype)
    X, Y = columns(rows.astype(np.float64), intercept=intercept), one_hot(labels, 3)
    assert found.wrong is not None
    for number, ridge in enumerate(RIDGES):
        penalty = ridge * ((count - 1) if scaling == "mean" else 1)
        scores = leave_one_out_scores(X, Y, penalty=penalty, free=intercept == "free")
        tolerance = 1e-8 if dtype is np.float64 else 1e-4
        assert np.isclose(found.squared[number], np.square(scores - Y).mean(), rtol=tolerance)
        assert np.isclose(found.wrong[number], (scores.argmax(axis=1) != labels).mean())


def test_signed_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = embeddings(30, 6, 3, seed=5)
    stats = statistics(rows, labels, Design(6, 3, intercept="none"))
    found = leave_one_out(decompose(stats, targets=(-1.0, 1.0)), rows, labels, ridges=RIDGES)
    X, Y = rows.astype(np.float64), 2 * one_hot(labels, 3) - 1
    scores = leave_one_out_scores(X, Y, penalty=29 * RIDGES[2])
    assert found.wrong is not None
    assert np.isclose(found.squared[2], np.square(scores - Y).mean(), rtol=1e-9)
    assert np.isclose(found.wrong[2], (scores.argmax(axis=1) != labels).mean())


def test_weighted_classes_leave_out_weighted_rows() -> None:
    rows, labels = embeddings(40, 5, 2, seed=7)
    labels = (labels * (np.arange(40) % 3 == 0)).astype(np.int64)
    weights = 40 / (2 * np.bincount(labels))
    design = Design(5, 2, intercept="free", per_class=True)
    path = decompose(statistics(rows, labels, design), scaling="sum", class_weight="balanced")
    ours = leave_one_out(path, rows, labels, ridges=RIDGES)
    model = RidgeClassifierCV(RIDGES, class_weight="balanced", store_cv_results=True)
    model.fit(rows.astype(np.float64), labels)
    # there a row's error has its weight, targets are -1 and 1, and two classes have one column
    theirs = model.cv_results_[:, 0, :].mean(axis=0) / 4
    assert np.allclose(ours.squared, theirs, rtol=1e-8)
    assert weights[1] > 2 * weights[0]


@pytest.mark.parametrize("classes", [2, 6])
def test_the_choice_is_scikit_learns(classes: int) -> None:
    rows, labels = embeddings(400, 20, classes, seed=3)
    ridges = np.geomspace(1e-6, 1e5, 45)
    path = decompose(statistics(rows, labels, Design(20, classes, intercept="free")), scaling="sum")
    ridge, found = choose_ridge(path, rows, labels, ridges=ridges)
    model = RidgeClassifierCV(ridges).fit(rows.astype(np.float64), labels)
    assert ridge == model.alpha_
    assert np.isclose(4 * found.squared.min(), -model.best_score_, rtol=1e-6)
    assert ridges[3] < ridge < ridges[-3]


def test_flat_errors_are_decided_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = embeddings(300, 8, 3, seed=4)
    path = decompose(statistics(rows, labels, Design(8, 3)))
    ridges = np.asarray(1e-3 * (1 + 1e-9 * np.arange(5)), dtype=np.float64)
    exact = leave_one_out(path, rows, labels, ridges=ridges)
    ridge, found = choose_ridge(path, rows, labels, ridges=ridges)
    assert ridge == exact.best()
    assert np.allclose(found.squared, exact.squared, rtol=1e-13)


def test_a_row_that_stands_alone_is_named() -> None:
    rows, labels = embeddings(30, 4, 2)
    rows = np.hstack([rows, np.zeros((30, 1), np.float32)])
    rows[13, 4] = 1e3
    path = decompose(statistics(rows, labels, Design(5, 2)), scaling="sum")
    with pytest.raises(InputError, match=r"Row 13 cannot be left out at ridge 1e-07.*larger ridges"):
        leave_one_out(path, rows, labels, ridges=np.array([1.0, 1e-7]))


def test_a_ridge_of_zero_is_refused() -> None:
    rows, labels = embeddings(30, 4, 2)
    path = decompose(statistics(rows, labels, Design(4, 2)))
    with pytest.raises(InputError, match="ridges above 0"):
        leave_one_out(path, rows, labels, ridges=np.array([0.0]))
