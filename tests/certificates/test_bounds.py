"""Bounds hold: against exact rational arithmetic, and against the minimum found by other means."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.certificates.bounds import (
    Factor,
    asked_residual,
    convexity,
    excess_loss,
    gamma,
    quadratic,
    residual,
    summing_error,
)
from probekit.errors import InputError
from probekit.linear.design import INTERCEPTS, Design
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.models.linear_problem import HeadProblem
from tests.oracles import columns, least_squares, one_hot

Array = NDArray[np.float64]
Exact = list[list[Fraction]]


def objective(ridge: float) -> dict[str, Any]:
    """What a certificate says of a plain ridge loss."""
    return {"ridge": ridge, "scaling": "mean", "view": "none", "class_weight": None}


def exact(matrix: Array) -> Exact:
    return [[Fraction(float(x)) for x in row] for row in matrix]


def solve_exactly(matrix: Exact, rhs: Exact) -> Exact:
    """Gaussian elimination in rational numbers."""
    rows = [left[:] + right[:] for left, right in zip(matrix, rhs, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(size):
            if j != i and rows[j][i]:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def true_minimum(X: Array, Y: Array, *, ridge: float, free: bool) -> Exact:
    """The minimum of the mean ridge loss of these float64 rows, without any rounding."""
    rows, aims, n = exact(X), exact(Y), len(X)
    size = len(rows[0])
    H = [[sum((r[i] * r[j] for r in rows), Fraction(0)) / n for j in range(size)] for i in range(size)]
    for i in range(size - int(free)):
        H[i][i] += Fraction(ridge)
    B = [
        [sum((r[i] * y[k] for r, y in zip(rows, aims, strict=True)), Fraction(0)) / n for k in range(len(aims[0]))]
        for i in range(size)
    ]
    return solve_exactly(H, B)


def distance(params: Array, wanted: Exact) -> float:
    squares = [
        (Fraction(float(params[i, k])) - wanted[i][k]) ** 2 for i in range(len(wanted)) for k in range(len(wanted[0]))
    ]
    return math.sqrt(float(sum(squares)))


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("ridge", [1e-1, 1e-6, 1e-10])
@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_e4_holds_to_the_last_bit_against_rational_arithmetic(intercept: str, ridge: float, spread: float) -> None:
    random = np.random.default_rng([INTERCEPTS.index(intercept), round(-math.log10(ridge)), round(1 / spread)])
    rows = random.normal(size=(18, 3)) * np.geomspace(1, spread, 3) + 0.5
    labels = random.integers(0, 2, 18)
    design = Design(3, 2, intercept=intercept)
    stats = statistics(rows, labels, design)
    X = columns(rows, intercept=intercept)
    wanted = true_minimum(X, one_hot(labels, 2), ridge=ridge, free=intercept == "free")
    loss = quadratic(stats, objective(ridge))
    solved = fit(stats, ridge).params[: design.columns]
    for params in (solved, solved + 1e-9, solved + random.normal(size=solved.shape)):
        sure = convexity(loss)
        if sure.value <= 0:
            continue
        found = residual(loss, params)
        assert distance(params, wanted) <= found.bound / sure.value
        by_rows = X.T @ (X @ params - one_hot(labels, 2)) / len(X)
        extra = ridge * params
        if intercept == "free":
            extra[-1] = 0
        asked = asked_residual(
            by_rows + extra,
            params,
            problem=HeadProblem(design),
            ridge=ridge,
            counts=[18],
            scales={"energy": float(np.square(X).sum()), "target_energy": 18.0},
        )
        assert distance(params, wanted) <= asked.bound / sure.value


@given(st.integers(0, 10**6), st.sampled_from(INTERCEPTS), st.floats(-8, 0), st.floats(-4, 0))
@settings(max_examples=80, deadline=None)
def test_e4_e5_and_the_loss_gap_are_never_violated(seed: int, intercept: str, log_ridge: float, spread: float) -> None:
    random = np.random.default_rng(seed)
    n, d, k, ridge = (
        int(random.integers(5, 60)),
        int(random.integers(1, 9)),
        int(random.integers(2, 5)),
        10.0**log_ridge,
    )
    rows = (random.normal(size=(n, d)) + random.normal(size=d)) * np.geomspace(1, 10.0**spread, d)
    labels = random.integers(0, k, n)
    design = Design(d, k, intercept=intercept)
    X, Y = columns(rows, intercept=intercept), one_hot(labels, k)
    optimum = least_squares(X, Y, penalty=n * ridge, free=intercept == "free")
    loss = quadratic(statistics(rows, labels, design), objective(ridge))
    sure = convexity(loss)
    if sure.value <= 0:
        assert intercept == "free"
        return
    if intercept != "free":
        assert sure.value >= ridge * (1 - 1e-12)
    params = optimum + random.normal(size=optimum.shape) * 10.0 ** random.uniform(-8, 1)
    found, own = residual(loss, params), residual(loss, optimum)
    slack = own.bound / sure.value
    away = params - optimum
    assert np.linalg.norm(away) <= found.bound / sure.value + slack
    for column in range(k):
        assert np.linalg.norm(away[:, column]) <= found.class_bounds[column] / sure.value + slack
    gap = np.square(X @ away).sum() / (2 * n) + ridge / 2 * np.square(away[: d if intercept == "free" else None]).sum()
    reported = excess_loss(found, sure.value, loss=loss, params=params)
    room = slack * (np.linalg.norm(loss.curvature, 2) * np.linalg.norm(away) + own.bound)
    assert gap <= reported + room
    assert reported <= found.bound**2 / (2 * sure.value) * (1 + 1e-12)
    factor = Factor.of(loss, sure.value)
    if factor is not None:
        points = random.normal(size=(6, len(params)))
        off = np.abs(points @ away)
        roots = np.sqrt(factor.forms(loss.curvature @ params - loss.linear))
        roots = roots + np.array(found.rounding_by_class) / math.sqrt(sure.value)
        allowed = np.outer(np.sqrt(factor.forms(points.T)), roots)
        assert (off <= allowed + slack * np.linalg.norm(points, axis=1)[:, None]).all()


def test_the_excess_is_tight_with_statistics() -> None:
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(200, 6)), random.integers(0, 3, 200)
    loss = quadratic(statistics(rows, labels, Design(6, 3)), objective(0.1))
    params = random.normal(size=(7, 3))
    optimum = np.linalg.solve(loss.curvature, loss.linear)
    away = params - optimum
    wanted = float((away * (loss.curvature @ away)).sum() / 2)
    sure = convexity(loss)
    assert sure.source == "statistics"
    assert excess_loss(residual(loss, params), sure.value, loss=loss, params=params) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("view", ["none", "centre", "standardise"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("weight", [None, "balanced"])
def test_the_fitted_head_is_the_minimum_of_the_quadratic(view: str, intercept: str, weight: str | None) -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(150, 5)) * [1, 2, 3, 4, 5] + [3, 2, 1, 0, -1]
    labels = np.minimum(random.integers(0, 5, 150), 2)
    design = Design(5, 3, intercept=intercept, per_class=weight is not None)
    stats = statistics(rows, labels, design)
    head = fit(stats, 0.2, standardise=view, class_weight=weight)
    loss = quadratic(stats, {**objective(0.2), "view": view, "class_weight": weight})
    params = head.params[: design.columns]
    found = residual(loss, params)
    assert found.norm <= found.rounding
    assert found.rounding < 1e-9
    moved = residual(loss, params + 1e-3)
    assert moved.norm > 1e3 * moved.rounding


def test_exact_sums_have_no_error_and_fast_ones_much() -> None:
    assert summing_error("exact", 4, 10**6, 50) == 0
    assert summing_error("float64", 4, 10**6, 50) < 1e-6
    assert summing_error("fast", 4, 1000, 5) > 1e3 * summing_error("float64", 4, 1000, 5)
    with pytest.raises(InputError, match="cannot be bounded"):
        gamma(1e17)


@pytest.mark.parametrize("arithmetic", ["float64", "fast"])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_the_rounding_of_sums_is_covered(arithmetic: str, offset: float) -> None:
    random = np.random.default_rng(3)
    rows = (random.normal(size=(3000, 12)) + offset).astype(np.float32)
    labels = random.integers(0, 4, 3000)
    loss = quadratic(statistics(rows, labels, Design(12, 4, arithmetic=arithmetic)), objective(1e-3))
    X, Y = columns(rows.astype(np.float64)), one_hot(labels, 4)
    true = X.T @ X / 3000 + 1e-3 * np.eye(13)
    assert np.linalg.norm(loss.curvature - true) <= loss.curvature_error
    assert np.linalg.norm(loss.linear - X.T @ Y / 3000) <= loss.linear_error
