"""The estimators against scikit-learn's checks, classifiers and tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.utils.estimator_checks import parametrize_with_checks

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.estimators import (
    KNNProbe,
    LDAProbe,
    LogisticProbe,
    NearestMeanProbe,
    Neighbors,
    RidgeProbe,
    fit_ridge,
)
from probekit.heads import load_head
from tests.oracles import one_hot, random_set, refitted_scores, relative_error, ridge_by_lstsq

KINDS = [
    RidgeProbe(),
    RidgeProbe(0.1, intercept="penalized", normalize="l2"),
    LDAProbe(),
    LDAProbe(0.1, normalize="l2"),
    NearestMeanProbe(),
    LogisticProbe(),
    LogisticProbe(1.0, intercept="penalized", class_weight="balanced"),
    KNNProbe(),
    KNNProbe(3, weights="uniform"),
]
Digits = tuple[np.ndarray, np.ndarray]


@parametrize_with_checks(KINDS)
def test_scikit_learn_accepts(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> Digits:
    """600 digits as letters, so that labels are not class numbers."""
    rows, labels = load_digits(return_X_y=True)
    return rows[:600] / 16, np.array(list("abcdefghij"))[labels[:600]]


def two_classes(digits: Digits) -> Digits:
    X, y = digits
    used = np.isin(y, ["c", "h"])
    return X[used], y[used]


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_ridge_classifier(digits: Digits, weighted: bool) -> None:
    for number, (X, y) in enumerate((digits, two_classes(digits))):
        weights = np.random.default_rng(number).uniform(0, 3, len(X)) if weighted else None
        total = len(X) if weights is None else weights.sum()
        ours = RidgeProbe(2.5 / total).fit(X, y, sample_weight=weights)
        theirs = RidgeClassifier(alpha=2.5, solver="svd").fit(X, y, sample_weight=weights)
        factor = 1 if number else 2  # their targets are -1 and 1, and two classes have one column
        assert relative_error(factor * ours.coef_, np.atleast_2d(theirs.coef_)) < 1e-8
        assert np.array_equal(ours.predict(X), theirs.predict(X))
        assert ours.score(X, y) == theirs.score(X, y)
        assert ours.coef_.shape == ((10, 64) if number == 0 else (1, 64))
        assert ours.ridge_ == 2.5 / total
        if number:
            assert np.allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-8)


def test_the_automatic_ridge_is_that_of_ridge_classifier_cv(digits: Digits) -> None:
    X, y = digits
    ours = RidgeProbe().fit(X, y)
    theirs = RidgeClassifierCV(599 * ours.choice_.ridges).fit(X, y)
    assert 599 * ours.ridge_ == pytest.approx(theirs.alpha_, rel=1e-12)
    assert ours.choice_.method == "leave-one-out"
    assert RidgeProbe("auto:loo").fit(X, y).ridge_ == ours.ridge_
    assert RidgeProbe("auto:gcv").fit(X, y).choice_.method == "gcv"


def test_the_function_and_the_estimator_choose_from_one_grid(digits: Digits) -> None:
    X, y = digits
    probe = RidgeProbe(normalize="l2").fit(X, y)
    head, choice = fit_ridge(EmbeddingSet.from_numpy(X, y), normalize="l2")
    assert np.array_equal(choice.ridges, probe.choice_.ridges)
    assert choice.value == probe.ridge_
    assert np.allclose(head.weights, probe.head_.weights, rtol=1e-12)
    assert head.names == tuple("abcdefghij")
    expected = ridge_by_lstsq(
        normalize(X), one_hot(np.unique(y, return_inverse=True)[1], 10), choice.value
    )
    assert relative_error(head.weights, expected[:-1]) < 1e-7


def test_probabilities_are_calibrated_by_rows_left_out() -> None:
    X, y = load_digits(return_X_y=True)
    probe = RidgeProbe().fit(X[:1000], y[:1000])
    probabilities = probe.predict_proba(X[1000:])
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert np.array_equal(probe.classes_[probabilities.argmax(axis=1)], probe.predict(X[1000:]))
    labeled = np.log(probabilities[np.arange(len(probabilities)), y[1000:]])
    for factor in (0.5, 2.0):  # no far better temperature for rows that nobody has seen
        other = probe.decision_function(X[1000:]) / (probe.temperature_ * factor)
        other = other - np.log(np.exp(other).sum(axis=1, keepdims=True))
        assert other[np.arange(len(other)), y[1000:]].mean() < labeled.mean()


def test_groups_are_left_out_together(digits: Digits) -> None:
    X, y = digits
    groups = np.arange(len(X)) // 6
    probe = RidgeProbe().fit(X, y, groups=groups)
    assert probe.choice_.method == "leave-groups-out"
    weights = (np.arange(len(X)) < 500).astype(float)
    part = RidgeProbe().fit(X, y, groups=groups, sample_weight=weights)
    again = RidgeProbe().fit(X[:500], y[:500], groups=groups[:500])
    assert part.ridge_ == again.ridge_
    assert np.allclose(part.coef_, again.coef_, rtol=1e-8, atol=1e-10)


def test_a_row_of_weight_three_is_three_copies(digits: Digits) -> None:
    X, y = digits
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = RidgeProbe().fit(X, y, sample_weight=weights)
    copied = RidgeProbe().fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert weighted.ridge_ == copied.ridge_
    assert np.allclose(weighted.choice_.errors, copied.choice_.errors, rtol=1e-8)
    assert weighted.temperature_ == pytest.approx(copied.temperature_, rel=1e-7)


def test_other_tools_take_the_probes(digits: Digits) -> None:
    X, y = digits
    groups = np.arange(len(X)) // 6
    grid = {"ridge": [1e-4, 1e-1]}
    search = GridSearchCV(RidgeProbe(), grid, cv=GroupKFold(3)).fit(X, y, groups=groups)
    assert search.best_score_ > 0.8
    pipeline = make_pipeline(StandardScaler(), RidgeProbe(1 / 400))
    theirs = make_pipeline(StandardScaler(), RidgeClassifier(alpha=1.0))
    assert np.array_equal(
        cross_val_score(pipeline, X, y, cv=3), cross_val_score(theirs, X, y, cv=3)
    )


@pytest.mark.parametrize("k", [1, 5])
def test_equal_votes_are_those_of_scikit_learns_neighbors(digits: Digits, k: int) -> None:
    X, y = digits
    ours = KNNProbe(k, weights="uniform").fit(X[:400], y[:400])
    theirs = KNeighborsClassifier(k, metric="cosine").fit(X[:400], y[:400])
    assert np.allclose(ours.predict_proba(X[400:]), theirs.predict_proba(X[400:]))
    assert np.array_equal(ours.predict(X[400:]), theirs.predict(X[400:]))


def test_dino_votes_are_weighted_by_similarity(digits: Digits) -> None:
    X, y = digits
    ours = KNNProbe(5, temperature=0.1).fit(X[:400], y[:400])

    def weights(distances: np.ndarray) -> np.ndarray:
        return np.exp((1 - distances) / 0.1)

    theirs = KNeighborsClassifier(5, metric="cosine", weights=weights).fit(X[:400], y[:400])
    assert np.allclose(ours.predict_proba(X[400:]), theirs.predict_proba(X[400:]))


def test_more_neighbors_than_rows_are_all_rows(digits: Digits) -> None:
    X, y = digits
    probe = KNNProbe(20).fit(X[:12], y[:12])
    assert probe.k_ == 12
    assert np.allclose(probe.predict_proba(X), KNNProbe(12).fit(X[:12], y[:12]).predict_proba(X))


@pytest.mark.parametrize(
    "options",
    [{"k": 0}, {"k": 2.5}, {"temperature": 0.0}, {"weights": "distance"}, {"threads": 0}],
)
def test_neighbors_that_cannot_be_are_refused(options: dict[str, Any], digits: Digits) -> None:
    ((name, value),) = options.items()
    with pytest.raises(InputError, match=rf"{name}.*{value}"):
        KNNProbe(**options).fit(*digits)
    with pytest.raises(InputError, match="labels"):
        Neighbors(EmbeddingSet.from_numpy(digits[0]))


@pytest.mark.parametrize("probe", [RidgeProbe(0.1), RidgeProbe(0.1, normalize="l2")])
def test_the_fitted_head_is_saved(probe: Any, digits: Digits, tmp_path: Path) -> None:
    X, y = digits
    probe.fit(X, y)
    head = load_head(probe.head_.save(tmp_path / "head"))
    assert np.array_equal(np.array(head.names)[head.predict(X)], probe.predict(X))
    assert np.allclose(head.predict_proba(X), probe.predict_proba(X))


def test_numbers_of_other_units_have_the_same_ridge() -> None:
    generator = np.random.default_rng(0)
    rows = np.asarray(random_set(80, 6, 2).rows, float)
    targets = rows @ generator.normal(size=(6, 2)) + generator.normal(size=(80, 2))
    head, choice = fit_ridge(EmbeddingSet.from_numpy(rows, targets))
    scaled, again = fit_ridge(EmbeddingSet.from_numpy(rows, targets * [1e6, 1e-3]))
    assert choice.value == again.value
    assert np.allclose(scaled.decision(rows), head.decision(rows) * [1e6, 1e-3])
    assert head.task == "numbers"
    assert relative_error(head.weights, ridge_by_lstsq(rows, targets, choice.value)[:-1]) < 1e-9


def test_several_labels_have_probabilities() -> None:
    rows = np.asarray(random_set(200, 6, 2).rows, float)
    labels = np.stack([rows[:, 0] > 0.7, rows[:, 1] + rows[:, 2] > 1.4], axis=1).astype(float)
    head, choice = fit_ridge(EmbeddingSet.from_numpy(rows, labels, target_names=["wing", "leg"]))
    assert head.task == "labels"
    assert head.names == ("wing", "leg")
    assert (head.predict(rows) == labels).mean() > 0.85
    left_out = refitted_scores(rows, labels, choice.value, np.arange(200))

    def loss(temperature: float) -> float:
        signs = 2 * labels - 1
        return float(np.log1p(np.exp(-signs * (2 * left_out - 1) / temperature)).mean())

    assert head.temperature is not None
    assert loss(head.temperature) <= min(loss(head.temperature * f) for f in (0.9, 0.99, 1.01, 1.1))


def test_one_row_of_each_class_has_a_ridge_of_their_size() -> None:
    embeddings = EmbeddingSet.from_numpy(np.diag([1.0, 2.0, 3.0]), ["a", "b", "c"])
    head, choice = fit_ridge(embeddings)
    rows = np.asarray(embeddings.rows)
    spread = np.square(rows - rows.mean(axis=0)).sum(axis=1).mean()
    assert head.fit == {"ridge": pytest.approx(spread), "ridge_choice": choice.method}
    assert (head.predict(rows) == [0, 1, 2]).all()


def test_a_row_that_cannot_be_left_out_leaves_no_probabilities() -> None:
    embeddings = random_set(30, 4, 2)
    rows = np.asarray(embeddings.rows, float)
    rows = np.hstack([rows, np.zeros((30, 1))])
    rows[13, 4] = 1e5
    head, _ = fit_ridge(replace(embeddings, rows=rows), ridge=1e-8)
    assert head.temperature is None
    with pytest.raises(InputError, match="None"):
        head.predict_proba(rows)


@pytest.mark.parametrize("ridge", [np.nan, np.inf, -1.0, "loo"])
def test_a_ridge_that_is_none_is_refused_with_its_value(ridge: Any, digits: Digits) -> None:
    with pytest.raises(InputError, match=f"ridge.*{ridge}"):
        RidgeProbe(ridge).fit(*digits)


def test_weights_and_classes_that_cannot_be_are_refused(digits: Digits) -> None:
    X, y = digits
    for weights in (np.zeros(600), -np.ones(600)):
        with pytest.raises(ValueError, match=r"(?i)sample.weight"):
            RidgeProbe().fit(X, y, sample_weight=weights)
    with pytest.raises(InputError, match="class"):
        RidgeProbe().fit(X, y, sample_weight=(y == "a").astype(float))
    with pytest.raises(InputError, match="normalize"):
        RidgeProbe(normalize="L2").fit(X, y)
    with pytest.raises(InputError, match="intercept"):
        RidgeProbe(intercept="none").fit(X, y)  # type: ignore[arg-type]
