"""Iterative solvers against dense ones and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from probekit.linear.solvers import Lbfgs, conjugate_gradient
from tests.oracles import Array


def system(size: int = 12, *, condition: float = 1e3, seed: int = 0) -> Array:
    """A positive definite matrix with eigenvalues in even ratios."""
    generator = np.random.default_rng(seed)
    Q = np.linalg.qr(generator.standard_normal((size, size)))[0]
    return np.asarray(Q * np.geomspace(1, condition, size) @ Q.T)


def test_columns_are_systems_of_their_own() -> None:
    A = system()
    right = np.random.default_rng(1).standard_normal((12, 3))
    right[:, 1] = 0
    solution = conjugate_gradient(lambda x: A @ x, right, steps=60)
    np.testing.assert_allclose(solution.value, np.linalg.solve(A, right), rtol=1e-8, atol=1e-12)
    np.testing.assert_array_equal(solution.value[:, 1], 0)
    np.testing.assert_allclose(right - A @ solution.value, solution.residual, atol=1e-9)
    assert solution.steps < 60


def test_a_step_per_eigenvalue_is_enough() -> None:
    A = np.diag([1.0, 1.0, 5.0, 5.0, 9.0])
    right = np.ones((5, 1))
    assert conjugate_gradient(lambda x: A @ x, right, steps=10).steps == 3


def test_a_good_preconditioner_saves_steps() -> None:
    A = system(condition=1e6)
    right = np.ones((12, 1))
    inverse = np.linalg.inv(A)
    preconditioned = conjugate_gradient(
        lambda x: A @ x, right, steps=9, tolerance=1e-6, precondition=lambda r: inverse @ r
    )
    assert preconditioned.steps == 1
    assert conjugate_gradient(lambda x: A @ x, right, steps=9, tolerance=1e-6).steps == 9


@pytest.mark.parametrize("whitened", [True, False])
def test_lbfgs_finds_the_minimum(whitened: bool) -> None:
    A = system(6, condition=50)
    inverse = np.linalg.inv(A + np.eye(6))

    def loss(x: Array) -> tuple[float, Array]:
        """1/2 x^T A x + sum log cosh(x - 1), which is smooth and convex."""
        value = 0.5 * float(x.T @ A @ x) + float(np.logaddexp(x - 1, 1 - x).sum())
        return value, A @ x + np.tanh(x - 1)

    precondition = (lambda g: inverse @ g) if whitened else (lambda g: g)
    solution = Lbfgs(rounds=200, goal=1e-9).minimize(loss, np.zeros(6), precondition=precondition)
    expected = minimize(loss, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(solution.value, expected.x, atol=1e-8)
    assert np.linalg.norm(solution.residual) <= 1e-9
    assert np.allclose(solution.residual, loss(solution.value)[1])


def test_lbfgs_stops_after_its_rounds() -> None:
    A = system(condition=1e6)
    solution = Lbfgs(rounds=3, goal=1e-12).minimize(
        lambda x: (0.5 * float(x.T @ A @ x), A @ x), np.ones(12), precondition=lambda g: g
    )
    assert solution.steps == 3
    assert np.linalg.norm(solution.residual) > 1e-12
