"""A client's own arithmetic: its loss, its gradient, the order of its batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.federated.client import (
    Picked,
    client_statistics,
    largest_curvature,
    quadratics,
    schedule,
    table,
)
from probekit.linear.design import Design
from probekit.values import EmbeddingSet

MakeSet = Callable[..., EmbeddingSet]


@pytest.mark.parametrize("intercept", ["penalised", "free", "none"])
def test_loss_and_gradient_are_those_of_the_rows(make_set: MakeSet, intercept: str) -> None:
    data = make_set(rows=30)
    rows = np.array([3, 1, 17, 9, 22])
    design = Design(6, 3, intercept=intercept)
    ones = np.ones((5, 0 if intercept == "none" else 1))
    X = np.hstack([np.asarray(data.embeddings)[rows], ones])
    Y = np.eye(3)[data.labels[rows]]
    penalised = 6 if intercept == "free" else X.shape[1]
    losses = quadratics([client_statistics(data, rows, design)], 0.3)
    W = np.random.default_rng(0).normal(size=(X.shape[1], 3))

    def loss(params: np.ndarray) -> float:
        return float(((X @ params - Y) ** 2).sum() / 10 + 0.15 * (params[:penalised] ** 2).sum())

    assert losses.losses(W)[0] == pytest.approx(loss(W), rel=1e-12)
    slopes = losses.gradients(W)[0]
    from_rows = table(data, rows, design, ridge=0.3).gradient(W[None], np.arange(5)[None])[0]
    for i in range(X.shape[1]):
        for k in range(3):
            nudge = np.zeros_like(W)
            nudge[i, k] = 1e-5
            numeric = (loss(W + nudge) - loss(W - nudge)) / 2e-5
            assert slopes[i, k] == pytest.approx(numeric, abs=1e-8)
            assert from_rows[i, k] == pytest.approx(numeric, abs=1e-8)


def test_grams_kept_per_class_give_the_same_losses(make_set: MakeSet) -> None:
    data = make_set(rows=30)
    rows = np.arange(30)
    one, other = (quadratics([client_statistics(data, rows, Design(6, 3, per_class=p))], 0.1) for p in (True, False))
    np.testing.assert_allclose(one.curvature, other.curvature, rtol=1e-12)


@given(
    count=st.integers(1, 40),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    drop_last=st.booleans(),
    seed=st.integers(0, 100),
)
def test_every_epoch_takes_every_row_once(count: int, batch: int, epochs: int, drop_last: bool, seed: int) -> None:
    plan = schedule(count, np.random.default_rng(seed), batch=batch, steps=None, epochs=epochs, drop_last=drop_last)
    width = min(batch, count)
    per_epoch = count // width if drop_last else -(-count // width)
    assert plan.shape == (epochs * per_epoch, width)
    for epoch in np.split(plan, epochs):
        taken = epoch[epoch >= 0]
        assert len(set(taken.tolist())) == len(taken)
        assert len(taken) == (per_epoch * width if drop_last else count)
        assert (epoch[:-1] >= 0).all()


def test_steps_go_on_into_further_epochs() -> None:
    plan = schedule(5, np.random.default_rng(0), batch=2, steps=7, epochs=None)
    assert plan.shape == (7, 2)
    assert sorted(plan[3:6][plan[3:6] >= 0].tolist()) == [0, 1, 2, 3, 4]
    assert schedule(5, np.random.default_rng(0), batch=None, steps=2, epochs=None).tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("size", [1, 2, 64, 65, 200])
def test_the_largest_curvature_is_the_largest_eigenvalue(size: int) -> None:
    factor = np.random.default_rng(size).normal(size=(size, size + 3))
    matrix = factor @ factor.T
    assert largest_curvature(matrix) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-9)


def test_picked_rows_are_read_in_their_order() -> None:
    rows = np.arange(12.0).reshape(6, 2)
    picked = Picked(rows, np.array([4, 0, 5]))
    assert (picked.shape, len(picked), picked.dtype) == ((3, 2), 3, np.dtype(np.float64))
    assert picked[1:].tolist() == [[0.0, 1.0], [10.0, 11.0]]
    assert np.asarray(picked).tolist() == [[8.0, 9.0], [0.0, 1.0], [10.0, 11.0]]
