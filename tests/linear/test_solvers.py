"""One table of solvers, one law each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.errors import InputError, SolverError
from probekit.linear.design import Solution
from probekit.linear.solvers import Cholesky, ConjugateGradient, Inverse, Matrix, Operator, Solver

Array = NDArray[np.float64]
SOLVERS: list[Solver] = [Cholesky(), ConjugateGradient(tolerance=1e-12)]


def definite(size: int, *, seed: int, condition: float = 1e3) -> Array:
    """A positive definite matrix of this condition number."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return np.asarray((basis * np.geomspace(1, condition, size)) @ basis.T)


class Hidden:
    """An operator without a matrix that counts its products."""

    def __init__(self, matrix: Array) -> None:
        self.matrix, self.products = matrix, 0

    def matvec(self, v: Array) -> Array:
        """The product."""
        self.products += 1
        return np.asarray(self.matrix @ v)

    def dense(self) -> Array | None:
        """None."""
        return None


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 15), classes=st.integers(1, 4), seed=st.integers(0, 500))
def test_solvers_solve(solver: Solver, size: int, classes: int, seed: int) -> None:
    matrix = definite(size, seed=seed)
    wanted = np.random.default_rng(seed + 1).standard_normal((size, classes))
    for given_as in (matrix, Matrix(matrix)):
        solution = solver.solve(given_as, matrix @ wanted)
        assert np.allclose(solution.value, wanted, atol=1e-7)
        true = np.linalg.norm(matrix @ (solution.value - wanted)) / np.linalg.norm(matrix @ wanted)
        assert solution.residual < 1e-11
        assert abs(solution.residual - true) < 1e-12


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_nothing_on_the_right_gives_nothing(solver: Solver) -> None:
    solution = solver.solve(definite(4, seed=0), np.zeros((4, 2)))
    assert not solution.value.any()
    assert solution.residual == 0


def test_cholesky_says_when_it_fell_back() -> None:
    matrix = definite(6, seed=1)
    matrix -= 1.0000001 * np.linalg.eigvalsh(matrix)[0] * np.eye(6)
    values, vectors = np.linalg.eigh(matrix)
    singular = (vectors * np.where(values > 1e-3, values, 0)) @ vectors.T
    rhs = singular @ np.ones((6, 1))
    solution = Cholesky().solve(singular - 1e-13 * np.eye(6), rhs)
    assert solution.method == "eigen"
    assert "not positive definite" in solution.note
    assert "1 of 6 directions" in solution.note
    assert solution.residual < 1e-10


def test_an_unsolvable_system_is_refused_with_the_best_there_is() -> None:
    with pytest.raises(SolverError, match="larger ridge") as caught:
        Cholesky().solve(np.diag([1.0, 0.0]), np.array([[1.0], [1.0]]))
    assert isinstance(caught.value.best, Solution)
    assert np.allclose(caught.value.best.value, [[1], [0]])
    assert np.isclose(caught.value.best.residual, np.sqrt(0.5))


def test_conjugate_gradients_take_one_product_per_step_and_columns_together() -> None:
    operator = Hidden(definite(30, seed=2))
    solution = ConjugateGradient(tolerance=1e-10).solve(operator, np.random.default_rng(0).standard_normal((30, 5)))
    assert solution.steps <= operator.products <= solution.steps + 4
    assert isinstance(operator, Operator)


def test_conjugate_gradients_end_in_as_many_steps_as_there_are_different_eigenvalues() -> None:
    basis, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((20, 20)))
    matrix = (basis * np.repeat([1.0, 5.0, 9.0, 20.0], 5)) @ basis.T
    solution = ConjugateGradient(tolerance=1e-9).solve(matrix, np.ones((20, 2)))
    assert solution.steps == 4


def test_a_preconditioner_saves_steps() -> None:
    matrix = definite(60, seed=4, condition=1e6)
    rhs = np.random.default_rng(0).standard_normal((60, 3))
    near = Inverse.of(matrix + 0.1 * np.diag(np.diag(matrix)))
    slow = ConjugateGradient(tolerance=1e-8).solve(matrix, rhs)
    fast = ConjugateGradient(tolerance=1e-8, preconditioner=near).solve(matrix, rhs)
    assert fast.steps < slow.steps / 2
    assert fast.residual <= 1e-8
    exact = ConjugateGradient(tolerance=1e-8, preconditioner=Inverse.of(matrix)).solve(matrix, rhs)
    assert exact.steps <= 2


def test_products_in_low_precision_take_the_steps_and_true_ones_tell_what_is_left() -> None:
    matrix = definite(80, seed=6, condition=1e4)
    rhs = np.random.default_rng(0).standard_normal((80, 3))
    coarse = Hidden(matrix.astype(np.float32).astype(np.float64))
    exact = Hidden(matrix)
    solution = ConjugateGradient(tolerance=1e-10, low_precision=coarse).solve(exact, rhs)
    assert np.linalg.norm(rhs - matrix @ solution.value) <= 1e-10 * np.linalg.norm(rhs)
    assert solution.steps == coarse.products
    assert exact.products < 8 < coarse.products


def test_products_in_low_precision_are_trusted_for_three_digits_at_a_time() -> None:
    matrix = definite(80, seed=6, condition=1e4)
    exact = Hidden(matrix)
    solution = ConjugateGradient(tolerance=1e-10, low_precision=Matrix(matrix)).solve(exact, np.ones((80, 1)))
    assert solution.residual <= 1e-10
    assert 3 <= exact.products <= 5


@pytest.mark.parametrize("factor", [-1.0, 3.0, 1e-3])
def test_products_in_low_precision_that_mislead_are_given_up(factor: float) -> None:
    matrix, rhs = definite(30, seed=7), np.ones((30, 2))
    coarse = Hidden(factor * matrix)
    solution = ConjugateGradient(tolerance=1e-10, low_precision=coarse).solve(matrix, rhs)
    assert np.linalg.norm(rhs - matrix @ solution.value) <= 1e-10 * np.linalg.norm(rhs)
    assert 0 < coarse.products < 60


def test_conjugate_gradients_refuse_with_their_best() -> None:
    matrix, rhs = definite(40, seed=5, condition=1e5), np.ones((40, 1))
    with pytest.raises(SolverError, match="in 7 steps") as caught:
        ConjugateGradient(tolerance=1e-12, max_steps=7).solve(matrix, rhs)
    best: Any = caught.value.best
    assert best.steps == 7
    assert np.isclose(best.residual, np.linalg.norm(rhs - matrix @ best.value) / np.linalg.norm(rhs))
    with pytest.raises(SolverError, match="positive definite"):
        ConjugateGradient().solve(-matrix, rhs)


def test_a_descent_starts_where_it_is_told_and_gives_its_best_either_way() -> None:
    matrix, rhs = definite(40, seed=5, condition=1e5), np.ones((40, 2))
    short = ConjugateGradient(tolerance=1e-12, max_steps=7).descend(matrix, rhs)
    assert (short.steps, short.residual > 1e-12) == (7, True)
    start = np.random.default_rng(1).standard_normal((40, 2))
    found = ConjugateGradient(tolerance=1e-9).descend(matrix, rhs - matrix @ start, start=start)
    assert np.linalg.norm(rhs - matrix @ found.value) <= 1e-9 * np.linalg.norm(rhs - matrix @ start)
    assert np.array_equal(ConjugateGradient().descend(matrix, 0 * rhs, start=start).value, start)


def test_a_descent_that_rounding_keeps_from_its_goal_gives_up() -> None:
    matrix, rhs = definite(40, seed=5, condition=1e5), np.ones((40, 2))
    operator = Hidden(matrix)
    found = ConjugateGradient(tolerance=1e-20).descend(operator, rhs)
    assert found.steps < operator.products < 500
    assert found.residual < 1e-11


def test_looks_at_the_true_residual_can_be_counted() -> None:
    matrix, rhs = definite(80, seed=6, condition=1e4), np.ones((80, 1))
    exact, coarse = Hidden(matrix), Hidden(matrix.astype(np.float32).astype(np.float64))
    solver = ConjugateGradient(tolerance=1e-10, low_precision=coarse)
    found = solver.descend(exact, rhs, look_cost=1)
    assert found.residual <= 1e-10
    assert found.steps + 1 == exact.products + coarse.products
    short = replace(solver, max_steps=50).descend(exact, rhs, look_cost=1)
    assert (short.steps, short.residual > 1e-10) == (50, True)


def test_a_residual_of_its_own_says_when_it_is_done() -> None:
    matrix, rhs = definite(40, seed=5), np.ones((40, 2))
    looks: list[Any] = []

    def residual(value: Any) -> Any:
        looks.append(value)
        return rhs - matrix @ value

    operator = Hidden(matrix)
    found = ConjugateGradient(tolerance=1e-9).descend(operator, rhs, residual=residual)
    assert found.residual <= 1e-9
    assert operator.products == found.steps
    assert np.array_equal(looks[-1], found.value)


def test_a_dense_solver_refuses_what_it_cannot_take() -> None:
    with pytest.raises(InputError, match="Use ConjugateGradient"):
        Cholesky().solve(Hidden(np.eye(2)), np.ones((2, 1)))
    with pytest.raises(InputError, match="does not fit"):
        Cholesky().solve(np.eye(3), np.ones((2, 1)))
    with pytest.raises(InputError, match="two dimensions"):
        Cholesky().solve(np.eye(2), np.ones(2))
    with pytest.raises(InputError, match="must be finite"):
        Cholesky().solve(np.diag([1.0, np.nan]), np.ones((2, 1)))
