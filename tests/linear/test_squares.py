"""The squares of statistics, rows and any affine model: one value, one gradient, one curvature."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.affine import ModelSquares
from probekit.linear.design import INTERCEPTS, ClientStats, Design
from probekit.linear.squares import Curvature, RowSquares, Squares, StatsSquares
from probekit.linear.statistics import statistics
from tests.linear.conftest import Data
from tests.oracles import columns, least_squares, numerical_gradient, one_hot, relative

Array = NDArray[np.float64]


class Explicit:
    """An affine model with a matrix and an offset."""

    def __init__(self, matrix: Array, offset: Array) -> None:
        self.matrix, self.offset = matrix, offset
        self.shape = (matrix.shape[1], offset.shape[1])

    def jvp(self, params: Array) -> Array:
        """The product."""
        return np.asarray(self.matrix @ params)

    def vjp(self, outputs: Array) -> Array:
        """Its adjoint."""
        return np.asarray(self.matrix.T @ outputs)


def held_as(held: str, data: Data, design: Design) -> Squares:
    """The squares of these rows, as they are held."""
    return StatsSquares(statistics(*data, design)) if held == "statistics" else RowSquares(*data, design)


@pytest.mark.parametrize("held", ["statistics", "rows"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_value_and_gradient_and_where_the_ridge_pulls(data: Data, held: str, intercept: str) -> None:
    squares = held_as(held, data, Design(12, 4, intercept=intercept))
    X, Y = columns(data[0].astype(np.float64), intercept=intercept), one_hot(data[1], 4)
    W = np.random.default_rng(0).standard_normal((X.shape[1], 4))
    free = intercept == "free"
    assert (squares.count, squares.shape, squares.free) == (300, W.shape, int(free))

    def value(params: Array) -> float:
        return float(np.square(X @ params - Y).sum())

    assert np.isclose(squares.value(W), value(W), rtol=1e-11)
    assert relative(2 * squares.gradient(W), numerical_gradient(value, W)) < 1e-6
    optimum = least_squares(X, Y, penalty=0.3 * 300, free=free)
    slope = -squares.gradient(np.zeros_like(W)) / 300
    assert relative(Curvature(squares, 0.3).matvec(optimum), slope) < 1e-8


def test_the_curvature_is_the_change_of_the_gradient(data: Data) -> None:
    by_stats, by_rows = (held_as(held, data, Design(12, 4, intercept="free")) for held in ("statistics", "rows"))
    random = np.random.default_rng(1)
    here, v = random.standard_normal((13, 4)), random.standard_normal((13, 4))
    wanted = (by_rows.gradient(here + v) - by_rows.gradient(here)) / 300
    wanted[:-1] += 0.3 * v[:-1]
    matrix = Curvature(by_stats, 0.3).dense()
    assert matrix is not None
    assert Curvature(by_rows, 0.3).dense() is None
    for found in (Curvature(by_stats, 0.3).matvec(v), Curvature(by_rows, 0.3).matvec(v), matrix @ v):
        assert relative(found, wanted) < 1e-9


def test_any_affine_model_has_squares() -> None:
    random = np.random.default_rng(2)
    X, offset, Y, W = (random.standard_normal(shape) for shape in ((20, 7), (20, 1), (20, 1), (7, 1)))
    squares = ModelSquares(Explicit(X, offset), Y)
    assert np.isclose(squares.value(W), np.square(offset + X @ W - Y).sum())
    assert relative(2 * squares.gradient(W), numerical_gradient(squares.value, W)) < 1e-6
    optimum = least_squares(X, Y - offset, penalty=4.0)
    assert np.linalg.norm(squares.gradient(optimum) + 4.0 * optimum) < 1e-12 * 20


def test_no_rows_have_no_curvature() -> None:
    with pytest.raises(InputError, match="no rows"):
        Curvature(StatsSquares(ClientStats.zero(Design(12, 4))), 0.1)
