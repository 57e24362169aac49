"""The estimators against scikit-learn's checks and classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from probekit.errors import InputError, MismatchError
from probekit.models.estimators import LogisticHead, RidgeHead
from probekit.models.serving import predict
from tests.oracles import relative

KINDS = [
    RidgeHead(),
    RidgeHead(alpha="auto"),
    RidgeHead(scaling="mean", standardise="standardise"),
    RidgeHead(class_weight="balanced"),
    RidgeHead(probability=True),
    RidgeHead(targets="real"),
    RidgeHead("auto", targets="real"),
    LogisticHead(),
]
Digits = tuple[np.ndarray, np.ndarray]


@parametrize_with_checks(KINDS)  # type: ignore[untyped-decorator]
def test_scikit_learn_accepts(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> Digits:
    """600 digits as letters, so that labels are not class numbers."""
    rows, labels = load_digits(return_X_y=True)
    return rows[:600] / 16, np.array(list("abcdefghij"))[labels[:600]]


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 3.0, "b": 0.5}])
def test_it_is_ridge_classifier(digits: Digits, two: bool, fit_intercept: bool, class_weight: Any) -> None:
    X, y = digits
    if two:
        X, y = X[np.isin(y, ["a", "b"])], y[np.isin(y, ["a", "b"])]
    options: dict[str, Any] = {"alpha": 2.5, "fit_intercept": fit_intercept, "class_weight": class_weight}
    ours, theirs = RidgeHead(**options).fit(X, y), RidgeClassifier(**options, solver="svd").fit(X, y)
    # scikit-learn documents (1, d) for two classes and gives (d,)
    assert ours.coef_.shape == (1 if two else 10, 64)
    assert relative(ours.coef_, np.atleast_2d(theirs.coef_)) < 1e-8
    assert np.allclose(ours.intercept_, theirs.intercept_, rtol=1e-8, atol=1e-12)
    assert np.allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-8)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    assert ours.score(X, y) == theirs.score(X, y)


def test_chances_are_calibrated_by_rows_left_out(digits: Digits) -> None:
    X, y = load_digits(return_X_y=True)
    head = RidgeHead("auto", probability=True).fit(X[:1000], y[:1000])
    chances = head.predict_proba(X[1000:])
    assert np.allclose(chances.sum(axis=1), 1)
    assert np.array_equal(head.classes_[chances.argmax(axis=1)], head.predict(X[1000:]))
    own = np.log(chances[np.arange(len(chances)), y[1000:]])
    for factor in (0.5, 2.0):  # no far better temperature for rows that nobody has seen
        other = head.decision_function(X[1000:]) / (head.temperature_ * factor)
        other = other - np.log(np.exp(other).sum(axis=1, keepdims=True))
        assert other[np.arange(len(other)), y[1000:]].mean() < own.mean()
    with pytest.raises(AttributeError, match="predict_proba"):
        RidgeHead().fit(X, y).predict_proba(X)
    with pytest.raises(InputError, match="fit again"):
        head.remove(X[:5], y[:5]).predict_proba(X)


def test_groups_choose_the_ridge_and_other_tools_take_the_head(digits: Digits) -> None:
    X, y = digits
    groups = np.arange(len(X)) // 6
    head = RidgeHead("auto").fit(X, y, groups=groups)
    assert head.validation_.scheme == "leave-one-group-out"
    search = GridSearchCV(RidgeHead(), {"alpha": [0.1, 10.0]}, cv=GroupKFold(3)).fit(X, y, groups=groups)
    assert search.best_score_ > 0.8
    both = [
        cross_val_score(make_pipeline(StandardScaler(), one), X, y, cv=3) for one in (RidgeHead(), RidgeClassifier())
    ]
    assert np.array_equal(*both)
    calibrated = CalibratedClassifierCV(RidgeHead(), cv=3).fit(X, y)
    assert calibrated.score(X, y) > 0.9


def test_automatic_alpha_is_ridge_classifier_cvs(digits: Digits) -> None:
    X, y = digits
    ours = RidgeHead(alpha="auto").fit(X, y)
    theirs = RidgeClassifierCV(ours.validation_.ridges).fit(X, y)
    assert ours.alpha_ == theirs.alpha_
    assert relative(ours.coef_, theirs.coef_) < 1e-8


@pytest.mark.parametrize(
    "options", [{}, {"class_weight": "balanced"}, {"standardise": "standardise"}, {"scaling": "mean"}]
)
def test_parts_added_merged_and_removed_are_one_fit(digits: Digits, options: dict[str, Any]) -> None:
    X, y = digits
    classes = np.unique(y)
    whole = RidgeHead(**options).fit(X[:500], y[:500])
    head = RidgeHead(**options).partial_fit(X[:100], y[:100], classes=classes)
    head.partial_fit(X[100:200], y[100:200]).partial_fit(X[500:], y[500:])
    head.merge(RidgeHead(**options).partial_fit(X[200:500], y[200:500], classes=classes))
    assert relative(head.coef_, whole.coef_) > 1e-3
    head.remove(X[500:], y[500:])
    assert relative(head.coef_, whole.coef_) < 1e-9
    assert head.stats_.count == 500


def test_exact_arithmetic_forgets_in_every_bit(digits: Digits) -> None:
    X, y = digits
    options: dict[str, Any] = {"arithmetic": "exact", "row_view": "l2"}
    kept = RidgeHead(**options).fit(X[:450], y[:450])
    head = RidgeHead(**options).fit(X, y)
    gone = RidgeHead(**options).partial_fit(X[450:], y[450:], classes=np.unique(y))
    assert head.remove(gone.stats_).head_.digest == kept.head_.digest


def test_its_head_serves_alone(digits: Digits) -> None:
    X, y = digits
    for model in (RidgeHead().fit(X, y), LogisticHead().fit(X, y)):
        names = np.array(model.head_.classes)[predict(model.head_, X)]
        assert np.array_equal(names, model.predict(X))


def test_it_stands_in_a_search(digits: Digits) -> None:
    X, y = digits
    search = GridSearchCV(RidgeHead(), {"alpha": [1e-3, 1.0, 1e6]}, cv=3).fit(X, y)
    assert search.best_params_["alpha"] < 1e6


@pytest.mark.parametrize("two", [False, True])
def test_it_is_logistic_regression(digits: Digits, two: bool) -> None:
    X, y = digits
    if two:
        X, y = X[np.isin(y, ["a", "b"])], y[np.isin(y, ["a", "b"])]
    ours = LogisticHead(C=0.7).fit(X, y)
    theirs = LogisticRegression(C=0.7, tol=1e-10, max_iter=10_000, solver="newton-cg").fit(X, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-6)
    assert np.allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


def test_what_cannot_be_done_is_refused(digits: Digits) -> None:
    X, y = digits
    with pytest.raises(InputError, match="first partial_fit needs all classes"):
        RidgeHead().partial_fit(X, y)
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'"):
        RidgeHead(alpha="auto").partial_fit(X, y, classes=np.unique(y))
    with pytest.raises(InputError, match="at least two classes"):
        RidgeHead().fit(X, np.zeros(len(X)))
    with pytest.raises(InputError, match='number or "auto"'):
        RidgeHead(alpha="best").fit(X, y)
    with pytest.raises(MismatchError, match="same classes"):
        RidgeHead().fit(X, y).merge(RidgeHead().fit(X[y != "a"], y[y != "a"]))
    head = RidgeHead().fit(X[y != "j"], y[y != "j"])
    with pytest.raises(InputError, match=r"found .*j.* among the labels"):
        head.partial_fit(X, y)
    with pytest.raises(InputError, match="need their labels"):
        head.remove(X)
    with pytest.raises(InputError, match="not \\(all\\) in these statistics"):
        head.remove(X, ["a"] * 600)
