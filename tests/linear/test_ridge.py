"""Ridge against least squares by an SVD and against scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from probekit.errors import InputError
from probekit.linear.ridge import (
    INTERCEPTS,
    Gcv,
    Intercept,
    InverseC,
    RidgeChoice,
    RidgePath,
    check_ridge,
    ridge_grid,
    solve_ridge,
)
from probekit.linear.stats import SufficientStats, sum_stats
from probekit.records import dump, parse
from tests.oracles import gcv_error, one_hot, random_set, relative_error, ridge_by_lstsq


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 60),
    width=st.integers(1, 12),
    classes=st.integers(2, 6),
    ridge=st.floats(1e-4, 1e3),
    intercept=st.sampled_from(INTERCEPTS),
    seed=st.integers(0, 1000),
)
def test_the_minimum_is_that_of_least_squares(
    count: int, width: int, classes: int, ridge: float, intercept: Intercept, seed: int
) -> None:
    embeddings = random_set(count, width, classes, seed=seed)
    stats = SufficientStats.from_rows(embeddings)
    Y = one_hot(embeddings.labels, classes)
    expected = ridge_by_lstsq(embeddings.rows, Y, ridge, intercept=intercept)
    tolerance = 1e-8 * np.abs(expected).max()
    assert np.allclose(solve_ridge(stats, ridge, intercept), expected, rtol=1e-6, atol=tolerance)
    path = RidgePath.of(stats, intercept)
    assert np.allclose(path.params(ridge), expected, rtol=1e-6, atol=tolerance)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_weights_multiply_losses(intercept: Intercept) -> None:
    weights = np.random.default_rng(3).uniform(0.1, 4, 50)
    embeddings = replace(random_set(50, 8, 3), weights=weights)
    Y = one_hot(embeddings.labels, 3)
    expected = ridge_by_lstsq(embeddings.rows, Y, 0.1, intercept=intercept, weights=weights)
    params = solve_ridge(SufficientStats.from_rows(embeddings), 0.1, intercept)
    assert relative_error(params, expected) < 1e-10


def test_alpha_of_scikit_learn_is_rows_times_ridge() -> None:
    embeddings = random_set(300, 12, 4)
    X = np.asarray(embeddings.rows, float)
    Y = one_hot(embeddings.labels, 4)
    params = solve_ridge(SufficientStats.from_rows(embeddings), 0.3)
    model = Ridge(alpha=300 * 0.3, solver="svd").fit(X, Y)
    assert relative_error(params, np.vstack([model.coef_.T, model.intercept_])) < 1e-8


def test_params_are_in_c_order() -> None:
    stats = SufficientStats.from_rows(random_set(100, 7, 3))
    for intercept in INTERCEPTS:
        assert solve_ridge(stats, 0.1, intercept).flags.c_contiguous


@pytest.mark.parametrize("ridge", [-1.0, np.nan, np.inf, "much", True])
def test_a_ridge_that_is_none_is_refused_with_its_value(ridge: float) -> None:
    stats = SufficientStats.from_rows(random_set(30, 4, 3))
    for solve in (check_ridge, RidgePath.of(stats).params, lambda value: solve_ridge(stats, value)):
        with pytest.raises(InputError, match=rf"ridge.*{ridge}"):
            solve(ridge)


def test_an_unknown_intercept_is_refused() -> None:
    stats = SufficientStats.from_rows(random_set(30, 4, 3))
    with pytest.raises(InputError, match="none"):
        solve_ridge(stats, 0.1, "none")  # type: ignore[arg-type]


def test_without_a_ridge_rows_must_span_all_columns() -> None:
    embeddings = random_set(100, 6, 3)
    rows = np.asarray(embeddings.rows)
    doubled = replace(embeddings, rows=np.hstack([rows, rows[:, :1]]))
    with pytest.raises(InputError, match="7 columns; found rank 6"):
        solve_ridge(SufficientStats.from_rows(doubled), 0.0)
    with pytest.raises(InputError, match="ridge"):
        RidgePath.of(SufficientStats.from_rows(random_set(3, 9, 2))).params(0.0)
    params = solve_ridge(SufficientStats.from_rows(embeddings), 0.0)
    expected = ridge_by_lstsq(rows, one_hot(embeddings.labels, 3), 0.0)
    assert relative_error(params, expected) < 1e-8


def test_the_grid_has_45_ridges_and_forgets_the_digits_of_the_rows() -> None:
    grid = ridge_grid(3.1)
    assert len(grid) == 45
    assert grid[0] == pytest.approx(4e-8)
    assert grid[-1] == pytest.approx(40)
    assert np.allclose(np.diff(np.log(grid)), np.log(grid[1] / grid[0]))
    assert np.array_equal(grid, ridge_grid(4.9))
    for size in (0.0, np.nan):
        with pytest.raises(InputError, match=str(size)[0]):
            ridge_grid(size)
    stats = SufficientStats.from_rows(random_set(50, 6, 2))
    rows = np.asarray(random_set(50, 6, 2).rows, float)
    spread = np.square(rows - rows.mean(axis=0)).sum(axis=1).mean()
    assert RidgePath.of(stats).mean_square == pytest.approx(spread)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("count", [4, 9, 40])
def test_gcv_is_that_of_the_hat_matrix(intercept: Intercept, count: int) -> None:
    embeddings = random_set(count, 10, 3, seed=4)
    path = RidgePath.of(SufficientStats.from_rows(embeddings), intercept)
    ridges = np.geomspace(1e-3, 10, 9)
    Y = one_hot(embeddings.labels, 3)
    expected = [gcv_error(embeddings.rows, Y, ridge, intercept=intercept) for ridge in ridges]
    assert np.allclose(path.gcv_errors(ridges), expected, rtol=1e-7)


@pytest.mark.parametrize("count", [14, 50], ids=["few rows", "many rows"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_gcv_with_weights_is_that_of_the_hat_matrix(intercept: Intercept, count: int) -> None:
    weights = np.random.default_rng(5).uniform(0.1, 4, count)
    embeddings = replace(random_set(count, 30, 3, seed=6), weights=weights)
    ridges = tuple(np.geomspace(1e-2, 100, 9).tolist())
    Y = one_hot(embeddings.labels, 3)
    expected = [
        gcv_error(embeddings.rows, Y, ridge, intercept=intercept, weights=weights)
        for ridge in ridges
    ]
    stats = SufficientStats.from_rows(embeddings)
    found = RidgePath.of(stats, intercept).gcv_errors(np.array(ridges))
    assert np.allclose(found, expected, rtol=1e-7)
    assert Gcv(ridges).choose(stats, intercept) == ridges[int(np.argmin(expected))]


@given(parts=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_gcv_chooses_from_the_sums_of_any_partition(parts: list[int], seed: int) -> None:
    embeddings = random_set(sum(parts) + 5, 6, 3, seed=seed)
    stops = np.cumsum([5, *parts])[:-1]
    stats = sum_stats(
        SufficientStats.from_rows(embeddings.take(part))
        for part in np.split(np.arange(len(embeddings)), stops)
    )
    grid = RidgePath.of(SufficientStats.from_rows(embeddings)).grid()
    Y = one_hot(embeddings.labels, 3)
    errors = [gcv_error(embeddings.rows, Y, float(ridge)) for ridge in grid]
    chosen = Gcv().choose(stats, "free")
    np.testing.assert_allclose(errors[int(np.argmin(abs(grid - chosen)))], min(errors), rtol=1e-6)


def test_c_is_one_over_rows_times_ridge_of_two_classes_twice_that() -> None:
    stats = SufficientStats.from_rows(random_set(40, 5, 3))
    assert InverseC(2.0).choose(stats, "penalized") == pytest.approx(1 / 80)
    two = SufficientStats.from_rows(random_set(40, 5, 2))
    assert InverseC(2.0).choose(two, "penalized") == pytest.approx(2 / 80)
    for C in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError):
            InverseC(C)


def test_a_choice_says_how_to_repeat_it() -> None:
    assert RidgeChoice(0.1).setting == 0.1
    choice = RidgeChoice(0.1, Gcv((0.1, 1.0)))
    assert choice.setting == Gcv((0.1, 1.0))
    assert parse(dump(choice), RidgeChoice, max_bytes=1 << 12) == choice


def test_gcv_of_rows_that_are_fitted_exactly_is_no_rounding_noise() -> None:
    path = RidgePath.of(SufficientStats.from_rows(random_set(12, 40, 3)))
    errors = path.gcv_errors(np.geomspace(1e-9, 1e-6, 7) * path.mean_square)
    assert np.allclose(errors, errors[-1], rtol=1e-3)
