"""RidgeHead with several labels or real targets, some of them unknown, against scikit-learn's Ridge."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import InputError
from probekit.models.estimators import RidgeHead
from probekit.models.serving import predict

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    generator = np.random.default_rng(4)
    X = generator.normal(size=(200, 8)) + 1
    return X, X @ generator.normal(size=(8, 3)) + generator.normal(size=(200, 3))


def holes(targets: Array) -> Array:
    found = targets.astype(float)
    found[np.random.default_rng(1).random(found.shape) < 0.3] = np.nan
    return found


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_it_is_ridge_on_the_rows_that_know_a_target(data: tuple[Array, Array], fit_intercept: bool) -> None:
    X, Y = data[0], holes(data[1])
    for y, shift in ((Y, 0.0), (np.where(np.isnan(Y), np.nan, Y > 1), 0.5)):
        ours = RidgeHead(2.5, fit_intercept=fit_intercept).fit(X, y)
        for k in range(3):
            seen = ~np.isnan(y[:, k])
            theirs = Ridge(2.5, fit_intercept=fit_intercept, solver="svd").fit(X[seen], y[seen, k])
            assert np.abs(ours.coef_[k] - theirs.coef_).max() < 1e-8
            assert abs(ours.intercept_[k] + shift - theirs.intercept_) < 1e-8
            assert np.abs(ours.decision_function(X)[:, k] + shift - theirs.predict(X)).max() < 1e-8


def test_several_labels_are_ridge_classifiers(data: tuple[Array, Array]) -> None:
    X, y = data[0], (data[1] > 1).astype(int)
    ours, theirs = RidgeHead(2.5).fit(X, y), RidgeClassifier(2.5, solver="svd").fit(X, y)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    assert np.array_equal(predict(ours.head_, X), theirs.predict(X))
    assert ours.score(X, y) == np.mean(theirs.predict(X) == y)
    chances = RidgeHead("auto", probability=True).fit(X[:150], y[:150]).predict_proba(X[150:])
    assert chances.shape == (50, 3)
    right = np.where(y[150:] == 1, chances, 1 - chances)
    prior = np.where(y[150:] == 1, y[:150].mean(axis=0), 1 - y[:150].mean(axis=0))
    assert np.log(right).mean() > np.log(prior).mean()


def test_regression_in_one_column_and_other_tools(data: tuple[Array, Array]) -> None:
    X, y = data[0], data[1][:, 0]
    ours, theirs = RidgeHead(2.5, targets="real").fit(X, y), Ridge(2.5, solver="svd").fit(X, y)
    assert ours.coef_.shape == theirs.coef_.shape
    assert np.abs(ours.predict(X) - theirs.predict(X)).max() < 1e-8
    assert ours.score(X, y) == pytest.approx(r2_score(y, theirs.predict(X)))
    pipe = make_pipeline(StandardScaler(), RidgeHead("auto", targets="real"))
    assert cross_val_score(pipe, X, y).mean() > 0.5
    search = GridSearchCV(RidgeHead(targets="real"), {"alpha": [0.1, 1e6]}).fit(X, data[1])
    assert search.best_params_ == {"alpha": 0.1}


def test_rows_come_and_go(data: tuple[Array, Array]) -> None:
    X, Y = data[0], holes(data[1])
    both = RidgeHead(1.0).fit(X, Y)
    steps = RidgeHead(1.0).partial_fit(X[:90], Y[:90]).partial_fit(X[90:], Y[90:])
    merged = RidgeHead(1.0).fit(X[:90], Y[:90]).merge(RidgeHead(1.0).fit(X[90:], Y[90:]))
    for one in (steps, merged):
        assert np.abs(one.coef_ - both.coef_).max() < 1e-9
    rest = RidgeHead(1.0).fit(X[90:], Y[90:])
    assert np.abs(both.remove(X[:90], Y[:90]).coef_ - rest.coef_).max() < 1e-9


def test_bad_targets_are_refused(data: tuple[Array, Array]) -> None:
    X, Y = data
    with pytest.raises(ValueError, match="Unknown label type"):
        RidgeHead().fit(X, Y[:, 0])
    with pytest.raises(InputError, match="found 'numbers'"):
        RidgeHead(targets="numbers").fit(X, Y)
    with pytest.raises(InputError, match="Class weights"):
        RidgeHead(class_weight="balanced").fit(X, Y)
    with pytest.raises(InputError, match="must be numbers"):
        RidgeHead().fit(X, np.where(Y > 0, "yes", "no"))
    with pytest.raises(InputError, match="infinite"):
        RidgeHead().fit(X, np.where(Y > 1, np.inf, Y))
