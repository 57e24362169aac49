"""fit_logistic and LogisticProbe against scikit-learn's LogisticRegression."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.preprocessing import normalize

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.estimators import LogisticProbe, fit_logistic
from probekit.heads import load_head
from probekit.linear.logistic import CS

Digits = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def digits() -> Digits:
    """Five digits as letters; half of the pixels."""
    rows, labels = load_digits(return_X_y=True)
    rows = rows[labels < 5, ::2] / 16
    return rows[:300], np.array(list("abcde"))[labels[labels < 5][:300]]


def their_probabilities(
    X: np.ndarray, y: np.ndarray, *, weights: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    model = LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=200, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its tolerance is out of reach of rounding
        return np.asarray(model.fit(X, y, sample_weight=weights).predict_proba(X))


@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 5.0, "c": 0.5}])
@pytest.mark.parametrize("classes", ["abcde", "bd"])
def test_it_is_logistic_regression(digits: Digits, class_weight: Any, classes: str) -> None:
    X, y = digits
    used = np.isin(y, list(classes))
    X = X[used]
    y = y[used]
    if isinstance(class_weight, dict):
        class_weight = {name: class_weight.get(name, 1.0) for name in classes}
    weights = np.random.default_rng(0).uniform(0, 3, len(X)) * (np.arange(len(X)) % 9 > 0)
    options = {"class_weight": class_weight}
    ours = LogisticProbe(3.0, tolerance=1e-13, **options).fit(X, y, sample_weight=weights)
    expected = their_probabilities(X, y, C=3.0, weights=weights, **options)
    assert np.abs(ours.predict_proba(X) - expected).max() < 1e-6
    assert ours.C_ == 3.0
    assert ours.gap_ <= 1e-13
    columns = 1 if len(classes) == 2 else len(classes)
    assert ours.coef_.shape == (columns, X.shape[1])
    scores = X @ ours.coef_.T + ours.intercept_
    assert np.allclose(scores.squeeze(), ours.decision_function(X))


def test_C_is_chosen_in_folds_and_certified(digits: Digits) -> None:  # noqa: N802
    X, y = digits
    probe = LogisticProbe().fit(X[:200], y[:200])
    path = probe.path_
    assert path.method == "5 folds"
    assert path.Cs[np.argmin(path.errors)] == probe.C_
    assert set(path.Cs) <= set(CS)
    assert probe.gap_ <= 1e-6
    theirs = LogisticRegression(C=probe.C_, solver="newton-cholesky").fit(X[:200], y[:200])
    assert probe.score(X[200:], y[200:]) == theirs.score(X[200:], y[200:])
    some = LogisticProbe(Cs=[0.01, 1.0]).fit(X, y)
    assert some.path_.Cs.tolist() == [0.01, 1.0]


def test_the_function_and_the_estimator_choose_alike(digits: Digits) -> None:
    X, y = digits
    probe = LogisticProbe(normalize="l2", intercept="penalized").fit(X, y)
    embeddings = EmbeddingSet.from_numpy(X, y)
    head, choice = fit_logistic(embeddings, normalize="l2", intercept="penalized")
    assert choice.value == probe.C_
    assert np.allclose(head.predict_proba(X), probe.predict_proba(X), atol=1e-3)
    assert head.fit == {"C": choice.value, "C_choice": "5 folds", "gap": choice.gap}
    expected = their_probabilities(
        np.hstack([normalize(X), np.ones((len(X), 1))]), y, C=choice.value, fit_intercept=False
    )
    assert np.abs(head.predict_proba(X) - expected).max() < 1e-3


def test_copies_are_weights_and_no_order_matters_to_the_last_bit(digits: Digits) -> None:
    X, y = digits
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = LogisticProbe().fit(X, y, sample_weight=weights)
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(len(X)), weights))
    copied = LogisticProbe().fit(X[rows], y[rows])
    assert copied.C_ == weighted.C_
    assert np.array_equal(copied.coef_, weighted.coef_)
    assert np.array_equal(copied.path_.errors, weighted.path_.errors)


def test_rows_of_a_group_are_held_out_together() -> None:
    """Labels are random, but a group's rows are alike: only folds of rows find a signal."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    X = np.repeat(generator.normal(size=(40, 30)), 5, axis=0)
    X += 0.01 * generator.normal(size=X.shape)
    y = np.repeat(generator.integers(0, 2, 40), 5)
    chance = -np.log(0.5)
    alone = LogisticProbe().fit(X, y)
    assert alone.path_.errors.min() < 0.2 * chance
    grouped = LogisticProbe().fit(X, y, groups=groups)
    assert grouped.path_.errors.min() > 0.8 * chance
    assert grouped.C_ < alone.C_
    assert np.mean(cross_val_score(grouped, X, y, groups=groups, cv=GroupKFold(4))) < 0.75


def test_validation_rows_choose_alone(digits: Digits) -> None:
    X, y = digits
    embeddings = EmbeddingSet.from_numpy(X, y)
    is_validation = np.arange(len(X)) % 3 == 0
    head, choice = fit_logistic(
        embeddings, validation=is_validation, criterion="accuracy", refit=False, patience=None
    )
    assert choice.method == "validation"
    accuracies = []
    for C in CS:
        part = embeddings.take(np.flatnonzero(~is_validation))
        other, _ = fit_logistic(part, C=C)
        predicted = other.predict(X[is_validation])
        accuracies.append(
            (predicted == embeddings.take(np.flatnonzero(is_validation)).labels).mean()
        )
        if choice.value == C:
            assert np.allclose(other.predict_proba(X), head.predict_proba(X), atol=1e-3)
    assert choice.value == CS[int(np.argmax(accuracies))]
    both, _ = fit_logistic(embeddings, validation=is_validation, criterion="accuracy")
    whole, _ = fit_logistic(embeddings, C=choice.value)
    assert np.allclose(both.predict_proba(X), whole.predict_proba(X), atol=1e-3)


def test_several_labels_are_one_against_the_rest(digits: Digits) -> None:
    X, y = digits
    labels = np.stack([y == "a", y > "b", np.isin(y, ["a", "e"])], axis=1).astype(float)
    embeddings = EmbeddingSet.from_numpy(X, labels, target_names=["a", "late", "ends"])
    head, _ = fit_logistic(embeddings, C=0.5, tolerance=1e-13)
    assert head.task == "labels"
    for column in range(3):
        expected = their_probabilities(X, labels[:, column], C=0.5)[:, 1]
        assert np.abs(head.predict_proba(X)[:, column] - expected).max() < 1e-6
        assert np.array_equal(head.predict(X)[:, column], expected > 0.5)
    _, choice = fit_logistic(embeddings, Cs=[0.01, 1.0])
    assert choice.value == 1.0


def test_the_fitted_head_is_saved(digits: Digits, tmp_path: Path) -> None:
    X, y = digits
    probe = LogisticProbe(1.0, normalize="l2").fit(X, y)
    head = load_head(probe.head_.save(tmp_path / "head"))
    assert np.array_equal(np.array(head.names)[head.predict(X)], probe.predict(X))
    assert np.allclose(head.predict_proba(X), probe.predict_proba(X))
    assert head.fit["C"] == 1.0


def test_what_cannot_be_fitted_is_refused(digits: Digits) -> None:
    X, y = digits
    embeddings = EmbeddingSet.from_numpy(X, y)
    with pytest.raises(InputError, match="numbers"):
        fit_logistic(EmbeddingSet.from_numpy(X, np.linspace(0, 1, len(X))))
    with pytest.raises(InputError, match="no labels"):
        fit_logistic(EmbeddingSet.from_numpy(X))
    with pytest.raises(InputError, match="'even'"):
        fit_logistic(embeddings, C=1.0, class_weight="even")
    with pytest.raises(InputError, match="'z'"):
        fit_logistic(embeddings, C=1.0, class_weight={"z": 2.0})
    labels = EmbeddingSet.from_numpy(X, np.stack([y == "a", y == "b"], axis=1).astype(float))
    with pytest.raises(InputError, match="class_weight"):
        fit_logistic(labels, C=1.0, class_weight="balanced")
    with pytest.raises(InputError, match=r"validation.*\(3,\)"):
        fit_logistic(embeddings, validation=np.ones(3, bool))
    with pytest.raises(InputError, match=r"groups.*\(2,\)"):
        fit_logistic(embeddings, groups=["x", "y"])
    with pytest.raises(InputError, match=r"C.*found 'loo'"):
        LogisticProbe("loo").fit(X, y)
