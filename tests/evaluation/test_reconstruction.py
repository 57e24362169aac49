"""Rebuilding deleted rows: one row of a ridge head exactly, a client's not, and noise hides it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.evaluation.reconstruction import HeadPair, compared_with, rate_of
from tests.oracles import columns, least_squares, one_hot

Array = NDArray[np.float64]
ROWS, DIMENSION, CLASSES, RIDGE = 90, 12, 4, 0.01


def planted(deleted: list[int], *, intercept: str, scaling: str = "mean") -> tuple[HeadPair, Array, Array]:
    """Heads with and without some rows by least squares, the rows, and the retained Gram."""
    random = np.random.default_rng(3)
    labels = random.integers(0, CLASSES, ROWS)
    rows = random.normal(size=(ROWS, DIMENSION)) + 2.0 + np.eye(CLASSES, DIMENSION)[labels]
    matrix, targets = columns(rows, intercept=intercept), one_hot(labels, CLASSES)
    rest = np.setdiff1d(np.arange(ROWS), deleted)
    heads, penalties = [], []
    for kept in (np.arange(ROWS), rest):
        amount = RIDGE * (len(kept) if scaling == "mean" else 1)
        free = intercept == "free"
        heads.append(least_squares(matrix[kept], targets[kept], penalty=amount, free=free))
        penalty = np.full((matrix.shape[1], 1), amount)
        penalty[-1] *= not free
        penalties.append(penalty)
    pair = HeadPair(heads[0], heads[1], penalties[0], penalties[1], intercept=intercept != "none")
    return pair, rows, np.asarray(matrix[rest].T @ matrix[rest])


@pytest.mark.parametrize("scaling", ["mean", "sum"])
@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
def test_one_row_is_rebuilt_exactly(intercept: str, scaling: str) -> None:
    pair, rows, gram = planted([17], intercept=intercept, scaling=scaling)
    rebuilt = pair.rebuilt(gram)
    if intercept != "none":
        np.testing.assert_allclose(rebuilt[0], rows[17], rtol=1e-6)
    found = compared_with(rebuilt, rows, np.array([17]), signed=intercept != "none")
    assert found.cosine == pytest.approx(1, abs=1e-9)
    assert found.centred > (0.9 if intercept == "none" else 1 - 1e-9)  # without a column of ones the length is a guess
    assert (found.nearest, found.found, found.candidates) == (True, 1, ROWS)


def test_noise_and_numbers_hide_rows() -> None:
    pair, rows, gram = planted([17], intercept="penalised")
    hidden = [compared_with(pair.noisy(1.0, seed).rebuilt(gram), rows, np.array([17])) for seed in range(20)]
    seen = [compared_with(pair.noisy(1e-9, seed).rebuilt(gram), rows, np.array([17])) for seed in range(3)]
    assert (rate_of(seen).identified.value, rate_of(seen).centred) == pytest.approx((1, 1), abs=1e-4)
    rate = rate_of(hidden).identified
    assert rate.value is not None
    assert rate.value <= 0.2
    many = list(range(30))
    pair, rows, gram = planted(many, intercept="penalised")
    found = compared_with(pair.rebuilt(gram, rows=30), rows, np.array(many))
    assert (found.rebuilt, found.deleted) == (CLASSES, 30)
    assert found.found == 0


def test_a_public_curvature_rebuilds_nearly() -> None:
    pair, rows, _ = planted([17], intercept="penalised")
    public = np.random.default_rng(8).normal(size=(2000, DIMENSION)) + 2.0
    public = columns(public + np.eye(CLASSES, DIMENSION)[np.arange(2000) % CLASSES])
    found = compared_with(pair.rebuilt(public.T @ public * (ROWS - 1) / 2000), rows, np.array([17]))
    assert 0.5 < found.centred < 0.9999
    assert found.plain["candidates"] == ROWS


def test_a_shared_linear_term_cancels() -> None:
    pair, rows, gram = planted([17], intercept="penalised")
    term = np.random.default_rng(0).normal(size=pair.before.shape)
    z = np.append(rows[17], 1.0)
    shifted = [
        one - np.linalg.solve(curvature + np.diag(penalty[:, 0]), term)
        for one, curvature, penalty in (
            (pair.before, gram + np.outer(z, z), np.asarray(pair.penalty_before)),
            (pair.after, gram, np.asarray(pair.penalty_after)),
        )
    ]
    perturbed = HeadPair(shifted[0], shifted[1], pair.penalty_before, pair.penalty_after)
    np.testing.assert_allclose(perturbed.rebuilt(gram)[0], rows[17], rtol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    pair, rows, gram = planted([17], intercept="penalised")
    with pytest.raises(MismatchError, match="one shape"):
        HeadPair(pair.before, pair.after[1:], 0.1, 0.1)
    with pytest.raises(MismatchError, match="square over 13"):
        pair.rebuilt(gram[1:, 1:])
    with pytest.raises(InputError, match="found 0 deleted"):
        compared_with(pair.rebuilt(gram), rows, np.array([], np.int64))
    with pytest.raises(InputError, match="found none"):
        rate_of([])
