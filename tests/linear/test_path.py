"""The ridge path against separate solves."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.linear.design import INTERCEPTS, SCALINGS, Design
from probekit.linear.path import Validation, decompose
from probekit.linear.statistics import statistics
from tests.linear.conftest import Data
from tests.oracles import columns, least_squares, one_hot, relative


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_path_is_as_many_separate_solves(data: Data, intercept: str, scaling: str) -> None:
    rows, labels = data[0].astype(np.float64), data[1]
    path = decompose(statistics(rows, labels, Design(12, 4, intercept=intercept)), scaling=scaling)
    X = columns(rows, intercept=intercept)
    for ridge in (1e-4, 0.1, 10.0):
        penalty = ridge * (300 if scaling == "mean" else 1)
        wanted = least_squares(X, one_hot(labels, 4), penalty=penalty, free=intercept == "free")
        value = path.vectors @ (path.rotated / (path.values + path.penalties(np.array([ridge])))[:, None])
        assert relative(path.system.lift(value)[: len(wanted)], wanted) < 1e-8


def test_effective_dimension_and_condition_are_those_of_the_matrix(data: Data) -> None:
    rows, labels = data
    path = decompose(statistics(rows, labels, Design(12, 4)))
    X = columns(rows.astype(np.float64))
    gram = X.T @ X
    for ridge in (1e-5, 0.1):
        matrix = gram + 300 * ridge * np.eye(13)
        assert np.isclose(path.effective_dimension(ridge), np.trace(gram @ np.linalg.inv(matrix)), rtol=1e-9)
        assert np.isclose(path.condition(ridge), np.linalg.cond(matrix), rtol=1e-8)


def test_the_default_ridges_scale_with_the_rows(data: Data) -> None:
    rows, labels = data
    grids = [
        decompose(statistics(rows * factor, labels, Design(12, 4, intercept="none")), scaling=scaling).grid(9)
        for factor, scaling in ((1, "mean"), (8, "mean"), (1, "sum"))
    ]
    norm = np.square(rows.astype(np.float64)).sum(axis=1).mean()
    np.testing.assert_array_equal(grids[1], 64 * grids[0])
    for grid, size in ((grids[0], norm), (grids[2], 300 * norm)):
        assert 2**-0.5 <= grid[-1] / (10 * size) <= 2**0.5
        assert np.log2(grid[-1] / 10).is_integer()


def test_the_digits_of_the_default_ridges_tell_nothing_of_a_row(data: Data) -> None:
    """C19: a chosen ridge stays when rows are erased; its grid was a function of every row."""
    rows, labels = data
    design = Design(12, 4, intercept="none")
    other = np.vstack([rows[:-1], rows[-1:] + 1])
    one, two = (decompose(statistics(some, labels, design)) for some in (rows, other))
    assert one.values.sum() != two.values.sum()
    np.testing.assert_array_equal(one.grid(), two.grid())


def test_rows_that_are_all_alike_have_no_ridges(data: Data) -> None:
    rows = np.ones((10, 3), np.float32)
    path = decompose(statistics(rows, np.arange(10) % 2, Design(3, 2, intercept="free")))
    with pytest.raises(InputError, match="all alike"):
        path.grid()


def test_a_validation_gives_the_first_of_equals() -> None:
    found = Validation("test", np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.2, 0.2]))
    assert found.best() == 2.0
