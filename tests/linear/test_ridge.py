"""The closed form against scikit-learn and against least squares by other means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge, RidgeClassifier

from probekit.errors import InputError
from probekit.linear.design import INTERCEPTS, SCALINGS, ClientStats, Design
from probekit.linear.ridge import fit
from probekit.linear.solvers import Cholesky, ConjugateGradient, Solver
from probekit.linear.statistics import statistics
from probekit.models.heads import head_of
from tests.linear.conftest import Data, embeddings
from tests.oracles import columns, least_squares, one_hot, relative, woodbury_removal


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_closed_form_is_scikit_learns_ridge(data: Data, intercept: str, scaling: str) -> None:
    rows, labels = data[0].astype(np.float64), data[1]
    fitted = fit(statistics(rows, labels, Design(12, 4, intercept=intercept)), 0.3, scaling=scaling)
    penalty = 0.3 * (300 if scaling == "mean" else 1)
    X = columns(rows) if intercept == "penalised" else rows
    model = Ridge(alpha=penalty, fit_intercept=intercept == "free", solver="svd").fit(X, one_hot(labels, 4))
    wanted = model.coef_.T if intercept == "penalised" else np.vstack([model.coef_.T, np.zeros((1, 4))])
    if intercept == "free":
        wanted[-1] = model.intercept_
    assert relative(fitted.params, wanted) < 1e-8
    assert fitted.solution.residual < 1e-12
    assert fitted.solution.note == ""


@pytest.mark.parametrize("how", ["even", "one client per class", "skewed"])
def test_any_partition_gives_the_head_of_all_rows(data: Data, how: str) -> None:
    rows, labels = data
    random = np.random.default_rng(1)
    owner = {
        "even": random.integers(0, 5, 300),
        "one client per class": labels,
        "skewed": (random.random(300) ** 4 * 6).astype(int),
    }[how]
    design = Design(12, 4, intercept="free")
    total = ClientStats.zero(design)
    for client in np.unique(owner):
        total = total + statistics(rows[owner == client], labels[owner == client], design)
    head = fit(total, 1.0, scaling="sum")
    model = RidgeClassifier(alpha=1.0).fit(rows.astype(np.float64), labels)
    assert relative(2 * head.params[:-1].T, model.coef_) < 1e-8
    assert np.allclose(2 * head.params[-1] - 1, model.intercept_, rtol=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 60),
    size=st.integers(1, 12),
    classes=st.integers(1, 6),
    ridge=st.floats(1e-4, 1e3),
    seed=st.integers(0, 1000),
)
def test_the_closed_form_is_least_squares(count: int, size: int, classes: int, ridge: float, seed: int) -> None:
    rows, labels = embeddings(count, size, classes, seed=seed)
    head = fit(statistics(rows, labels, Design(size, classes)), ridge)
    X = columns(rows.astype(np.float64))
    wanted = least_squares(X, one_hot(labels, classes), penalty=count * ridge)
    assert np.allclose(head.params, wanted, rtol=1e-6, atol=1e-8 * np.abs(wanted).max())


def test_low_rank_removal_equals_a_new_solve_in_sum_scaling_only(data: Data) -> None:
    rows, labels = data[0].astype(np.float64), data[1]
    design, gone, kept = Design(12, 4), np.arange(40), np.arange(40, 300)
    whole, part = statistics(rows, labels, design), statistics(rows[gone], labels[gone], design)
    X, Y = columns(rows), one_hot(labels, 4)
    by_sum = fit(whole - part, 2.0, scaling="sum")
    assert relative(by_sum.params, woodbury_removal(X, Y, gone=gone, penalty=2.0)) < 1e-9
    by_mean = fit(whole - part, 0.5)
    assert relative(by_mean.params, woodbury_removal(X, Y, gone=gone, penalty=150.0)) > 1e-3
    again = fit(statistics(rows[kept], labels[kept], design), 0.5)
    assert relative(by_mean.params, again.params) < 1e-10


@pytest.mark.parametrize("solver", [Cholesky(), ConjugateGradient(tolerance=1e-12)])
def test_every_solver_gives_the_same_head(data: Data, solver: Solver) -> None:
    rows, labels = data
    fitted = fit(statistics(rows, labels, Design(12, 4)), 0.05, solver=solver)
    wanted = least_squares(columns(rows.astype(np.float64)), one_hot(labels, 4), penalty=15.0)
    assert relative(fitted.params, wanted) < 1e-9
    assert fitted.recipe["solver"] == fitted.solution.method


def test_normalised_classes_have_columns_of_norm_one(data: Data) -> None:
    stats = statistics(*data, Design(12, 5))
    plain = fit(stats, 0.1)
    head = fit(stats, 0.1, normalise_classes=True)
    assert np.allclose(np.linalg.norm(head.params, axis=0), [1, 1, 1, 1, 0])
    assert np.allclose(head.params[:, 2] * np.linalg.norm(plain.params[:, 2]), plain.params[:, 2])


def test_without_a_ridge_the_gram_must_have_full_rank(data: Data) -> None:
    rows, labels = data
    doubled = np.hstack([rows, rows[:, :1]])
    with pytest.raises(InputError, match=r"rank 13 of 14.*ridge above 0"):
        fit(statistics(doubled, labels, Design(13, 4)), 0.0)
    with pytest.raises(InputError, match="rank 5 of 13"):
        fit(statistics(rows[:5], labels[:5], Design(12, 4)), 0.0)
    head = fit(statistics(rows, labels, Design(12, 4)), 0.0)
    wanted = least_squares(columns(rows.astype(np.float64)), one_hot(labels, 4), penalty=0.0)
    assert relative(head.params, wanted) < 1e-7


@pytest.mark.parametrize("ridge", [-1.0, np.nan, np.inf])
def test_a_ridge_that_is_no_ridge_is_refused(data: Data, ridge: float) -> None:
    with pytest.raises(InputError, match="finite number, 0 or more"):
        fit(statistics(*data, Design(12, 4)), ridge)


def test_no_rows_and_unknown_scalings_are_refused(data: Data) -> None:
    with pytest.raises(InputError, match="no rows"):
        fit(ClientStats.zero(Design(12, 4)), 1.0)
    with pytest.raises(InputError, match="mean, sum"):
        fit(statistics(*data, Design(12, 4)), 1.0, scaling="total")


def test_the_recipe_says_what_was_done(data: Data) -> None:
    fitted = fit(statistics(*data, Design(12, 4, view="l2", arithmetic="exact")), 0.1, standardise="centre")
    head = head_of(fitted)
    assert head.view == "l2"
    assert head.classes == ("0", "1", "2", "3")
    wanted = {"scaling": "mean", "fit_view": "centre", "grid": 2**-14, "rows": 300, "exact_unlearning": True}
    assert wanted.items() <= head.recipe.items()
