"""The logistic head against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from probekit.errors import InputError, SolverError
from probekit.linear import logistic
from probekit.linear.design import Design
from probekit.linear.logistic import fit_logistic, loss_and_gradient
from tests.linear.conftest import Data, embeddings


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("intercept", ["free", "none"])
@pytest.mark.parametrize("c", [0.1, 1.0, 50.0])
def test_the_head_is_scikit_learns(classes: int, intercept: str, c: float) -> None:
    rows, labels = embeddings(300, 10, classes, seed=1)
    fitted = fit_logistic(rows, labels, Design(10, classes, intercept=intercept), c=c)
    solver = "newton-cholesky" if classes == 2 else "newton-cg"
    model = LogisticRegression(C=c, tol=1e-12, max_iter=10_000, solver=solver, fit_intercept=intercept == "free")
    model.fit(rows.astype(np.float64), labels)
    params = fitted.params if classes > 2 else fitted.params[:, 1:] - fitted.params[:, :1]
    assert np.allclose(params[:-1].T, model.coef_, rtol=1e-6, atol=1e-6)
    assert np.allclose(params[-1], model.intercept_, rtol=1e-6, atol=1e-6)
    assert fitted.solution.residual <= 1e-10


def test_a_class_without_rows_pulls_as_it_does_in_the_loss() -> None:
    rows, labels = embeddings(200, 6, 3, seed=2)
    design = Design(6, 4, intercept="none")
    params = fit_logistic(rows, labels, design, c=2.0).params[:-1]
    wanted = minimize(
        lambda flat: _objective(flat.reshape(6, 4), rows.astype(np.float64), labels, 2.0), np.zeros(24), tol=1e-12
    )
    assert np.allclose(params, wanted.x.reshape(6, 4), atol=1e-4)
    assert np.abs(params[:, 3]).max() > 1e-3


def _objective(params: NDArray[np.float64], rows: NDArray[np.float64], labels: NDArray[np.int64], c: float) -> float:
    scores = rows @ params
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return -c * float(np.log(chances[np.arange(len(rows)), labels]).sum()) + float(np.square(params).sum()) / 2


def test_the_loss_and_its_gradient_are_sums_over_rows(data: Data) -> None:
    rows, labels = data[0].astype(np.float64), data[1]
    params = np.random.default_rng(0).normal(size=(12, 4)) / 10
    loss, gradient = loss_and_gradient(params, rows, labels)
    assert loss == pytest.approx(log_loss(labels, softmax(rows @ params, axis=1), normalize=False))
    step = 1e-6 * np.random.default_rng(1).normal(size=params.shape)
    ahead, behind = (loss_and_gradient(params + sign * step, rows, labels)[0] for sign in (1, -1))
    assert (ahead - behind) / 2 == pytest.approx(float((gradient * step).sum()), rel=1e-5)
    parts = [loss_and_gradient(params, rows[part], labels[part]) for part in (slice(0, 70), slice(70, None))]
    assert sum(one for one, _ in parts) == pytest.approx(loss)
    assert np.allclose(parts[0][1] + parts[1][1], gradient)


def test_rows_divided_by_their_norm(data: Data) -> None:
    rows, labels = data
    head = fit_logistic(rows, labels, Design(12, 4, view="l2", intercept="none"))
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    same = fit_logistic(unit, labels, Design(12, 4, intercept="none"))
    assert np.allclose(head.params, same.params, atol=1e-8)


def test_it_says_that_it_cannot_be_unlearned_exactly(data: Data) -> None:
    head = fit_logistic(*data, Design(12, 4, intercept="free"))
    assert head.recipe["exact_unlearning"] is False
    assert "training again" in str(head.recipe["why"])


def test_a_search_that_does_not_arrive_is_refused(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "STEPS", 1)
    with pytest.raises(SolverError, match="smaller C") as caught:
        fit_logistic(*data, Design(12, 4, intercept="free"))
    assert caught.value.best is not None


@pytest.mark.parametrize("c", [0.0, -1.0, np.inf])
def test_a_c_that_is_no_c_is_refused(data: Data, c: float) -> None:
    with pytest.raises(InputError, match="C must be"):
        fit_logistic(*data, Design(12, 4, intercept="free"), c=c)


def test_one_class_and_penalised_intercepts_are_refused(data: Data) -> None:
    with pytest.raises(InputError, match="at least two classes"):
        fit_logistic(data[0], data[1] * 0, Design(12, 4, intercept="free"))
    with pytest.raises(InputError, match='"free" intercept or "none"'):
        fit_logistic(*data, Design(12, 4))
