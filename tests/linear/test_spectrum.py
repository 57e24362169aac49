"""Eigenvalues against all of them, traces against inverses."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.linear.design import INTERCEPTS, Design
from probekit.linear.spectrum import condition, effective_dimension, largest_eigenvalue, rows_effective_dimension
from probekit.linear.statistics import statistics
from tests.linear.conftest import embeddings


@pytest.mark.parametrize("size", [1, 40, 200])
def test_the_largest_eigenvalue_is_the_spectral_norm(size: int) -> None:
    rows = np.random.default_rng(size).standard_normal((300, size))
    matrix = rows.T @ rows
    wanted = pytest.approx(np.linalg.norm(matrix, 2), rel=1e-9)
    assert largest_eigenvalue(matrix) == wanted
    if size > 1:
        assert largest_eigenvalue(lambda v: rows.T @ (rows @ v), size=size) == wanted


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("count", [5, 200])
def test_the_effective_dimension_is_a_trace(intercept: str, count: int) -> None:
    rows, labels = embeddings(count, 8, 3, seed=1)
    stats = statistics(rows, labels, Design(8, 3, intercept=intercept))
    gram = stats.total_gram / count
    penalty = 0.1 * np.eye(len(gram))
    if intercept == "free":
        penalty[-1, -1] = 0
    wanted = np.trace(gram @ np.linalg.inv(gram + penalty))
    assert rows_effective_dimension(stats, 0.1) == pytest.approx(wanted)


def test_a_kernel_has_the_effective_dimension_of_its_gram_and_no_ridge_leaves_the_rank() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 9))
    gram, kernel = (np.linalg.eigvalsh(one) for one in (rows.T @ rows, rows @ rows.T))
    assert effective_dimension(gram, 0.3) == pytest.approx(effective_dimension(kernel, 0.3))
    assert effective_dimension(gram, 0.0) == 6


def test_the_condition_is_that_of_the_shifted_matrix() -> None:
    assert condition(np.array([1.0, 7.0]), 1.0) == 4.0
    assert condition(np.array([-1e-18, 7.0]), 0.0) == np.inf
