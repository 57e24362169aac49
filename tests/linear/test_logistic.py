"""The logistic head against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from probekit.errors import InputError, SolverError
from probekit.linear import logistic
from probekit.linear.design import Design
from probekit.linear.logistic import fit_logistic
from tests.linear.conftest import Data, embeddings


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("intercept", ["free", "none"])
@pytest.mark.parametrize("c", [0.1, 1.0, 50.0])
def test_the_head_is_scikit_learns(classes: int, intercept: str, c: float) -> None:
    rows, labels = embeddings(300, 10, classes, seed=1)
    head, solution = fit_logistic(rows, labels, Design(10, classes, intercept=intercept), c=c)
    solver = "newton-cholesky" if classes == 2 else "newton-cg"
    model = LogisticRegression(C=c, tol=1e-12, max_iter=10_000, solver=solver, fit_intercept=intercept == "free")
    model.fit(rows.astype(np.float64), labels)
    params = head.params if classes > 2 else head.params[:, 1:] - head.params[:, :1]
    assert np.allclose(params[:-1].T, model.coef_, rtol=1e-6, atol=1e-6)
    assert np.allclose(params[-1], model.intercept_, rtol=1e-6, atol=1e-6)
    assert solution.residual <= 1e-10


def test_rows_divided_by_their_norm(data: Data) -> None:
    rows, labels = data
    head, _ = fit_logistic(rows, labels, Design(12, 4, view="l2", intercept="none"))
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    same, _ = fit_logistic(unit, labels, Design(12, 4, intercept="none"))
    assert head.view == "l2"
    assert np.allclose(head.params, same.params, atol=1e-8)


def test_it_says_that_it_cannot_be_unlearned_exactly(data: Data) -> None:
    head, _ = fit_logistic(*data, Design(12, 4, intercept="free"))
    assert head.recipe["exact_unlearning"] is False
    assert "training again" in str(head.recipe["why"])


def test_a_search_that_does_not_arrive_is_refused(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "NEWTON_STEPS", 0)
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
