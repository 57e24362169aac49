"""The loss over statistics, rows and any affine model: one value, one gradient, one curvature."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.affine import ModelSquares
from probekit.linear.design import INTERCEPTS, SCALINGS, ClientStats, Design
from probekit.linear.loss import RidgeLoss, ridge_loss
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


def explicit_loss(X: Array, Y: Array, W: Array, *, ridge: float, scaling: str, free: bool) -> float:
    """The objective as it is written."""
    penalised = W[:-1] if free else W
    share = 1 / len(X) if scaling == "mean" else 1.0
    return float(share / 2 * np.square(X @ W - Y).sum() + ridge / 2 * np.square(penalised).sum())


@pytest.mark.parametrize("held", ["statistics", "rows"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_value_gradient_and_excess(data: Data, held: str, intercept: str, scaling: str) -> None:
    rows, labels = data
    design = Design(12, 4, intercept=intercept)
    over = statistics(rows, labels, design) if held == "statistics" else (rows, labels, design)
    loss = ridge_loss(over, 0.3, scaling=scaling)
    X, Y = columns(rows.astype(np.float64), intercept=intercept), one_hot(labels, 4)
    W = np.random.default_rng(0).standard_normal((X.shape[1], 4))
    free = intercept == "free"

    def value(params: Array) -> float:
        return explicit_loss(X, Y, params, ridge=0.3, scaling=scaling, free=free)

    assert np.isclose(loss.value(W), value(W), rtol=1e-11)
    assert relative(loss.gradient(W), numerical_gradient(value, W)) < 1e-6
    penalty = 0.3 * (300 if scaling == "mean" else 1)
    optimum = least_squares(X, Y, penalty=penalty, free=free)
    assert np.isclose(loss.excess(W, optimum), value(W) - value(optimum), rtol=1e-9)
    assert np.linalg.norm(loss.gradient(optimum)) < 1e-8 * np.linalg.norm(loss.gradient(np.zeros_like(W)))


def test_the_curvature_is_the_change_of_the_gradient(data: Data) -> None:
    rows, labels = data
    design = Design(12, 4, intercept="free")
    by_stats = ridge_loss(statistics(rows, labels, design), 0.3).curvature()
    by_rows = ridge_loss((rows, labels, design), 0.3)
    random = np.random.default_rng(1)
    here, v = random.standard_normal((13, 4)), random.standard_normal((13, 4))
    wanted = by_rows.gradient(here + v) - by_rows.gradient(here)
    matrix = by_stats.dense()
    assert matrix is not None
    assert by_rows.curvature().dense() is None
    for found in (by_stats.matvec(v), by_rows.curvature().matvec(v), matrix @ v):
        assert relative(found, wanted) < 1e-9


def test_any_affine_model_has_this_loss_anchored_where_one_wants() -> None:
    random = np.random.default_rng(2)
    X, offset, Y, W, anchor = (random.standard_normal(shape) for shape in ((20, 7), (20, 1), (20, 1), (7, 1), (7, 1)))
    loss = RidgeLoss(ModelSquares(Explicit(X, offset), Y), 0.2, anchor=anchor)
    wanted = np.square(offset + X @ W - Y).sum() / 40 + 0.1 * np.square(W - anchor).sum()
    assert np.isclose(loss.value(W), wanted)
    assert relative(loss.gradient(W), numerical_gradient(loss.value, W)) < 1e-6
    optimum = anchor + least_squares(X, Y - offset - X @ anchor, penalty=4.0)
    assert np.linalg.norm(loss.gradient(optimum)) < 1e-12
    assert np.isclose(loss.excess(W, optimum), loss.value(W) - loss.value(optimum))


def test_no_rows_and_unknown_scalings_are_refused(data: Data) -> None:
    with pytest.raises(InputError, match="no rows"):
        ridge_loss(ClientStats.zero(Design(12, 4)), 0.1)
    with pytest.raises(InputError, match="mean, sum"):
        ridge_loss(statistics(*data, Design(12, 4)), 0.1, scaling="total")
