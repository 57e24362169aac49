"""A client's own arithmetic: its loss, its gradient, the order of its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from probekit.errors import InputError
from probekit.federated.client import answer
from probekit.federated.message import Ask
from probekit.linear.design import Design
from probekit.linear.rows import Picked
from probekit.models.fitting import FitPlan, local_steps
from probekit.models.linear_problem import HeadProblem
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
    problem = HeadProblem(design)
    holding, extra = problem.hold(data, rows), problem.penalty(0.3)
    W = np.random.default_rng(0).normal(size=(X.shape[1], 3))

    def loss(params: np.ndarray) -> float:
        return float(((X @ params - Y) ** 2).sum() / 10 + 0.15 * (params[:penalised] ** 2).sum())

    found, _ = answer(Ask("gradient", {"params": W}, {"loss": True}), holding, {}, name="a")
    assert found.count == 5
    assert found.values["loss"] / 5 + float((extra * W * W).sum()) / 2 == pytest.approx(loss(W), rel=1e-12)
    slopes = found.arrays["gradient"] / 5 + extra * W
    for batch in (None, 5):
        plan = FitPlan(steps=1, batch=batch, ridge=0.3).plain
        stepped, _ = answer(Ask("fit", {"params": W}, plan), holding, {}, name="a")
        np.testing.assert_allclose(W - stepped.arrays["params"], slopes, rtol=0, atol=1e-12)
        assert stepped.values["loss"] == pytest.approx(found.values["loss"], rel=1e-12)
    for i in range(X.shape[1]):
        for k in range(3):
            nudge = np.zeros_like(W)
            nudge[i, k] = 1e-5
            numeric = (loss(W + nudge) - loss(W - nudge)) / 2e-5
            assert slopes[i, k] == pytest.approx(numeric, abs=1e-8)


def test_grams_kept_per_class_give_the_same_losses(make_set: MakeSet) -> None:
    data = make_set(rows=30)
    rows = np.arange(30)
    one, other = (HeadProblem(Design(6, 3, per_class=p)).hold(data, rows) for p in (True, False))
    assert one.statistics.gram.ndim == 3
    np.testing.assert_allclose(one.statistics.total_gram, other.statistics.total_gram, rtol=1e-12)
    W = np.random.default_rng(0).normal(size=(7, 3))
    assert one.quick.value(W) == pytest.approx(one.squares().value(W), rel=1e-12)


@given(
    count=st.integers(1, 40),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    drop_last=st.booleans(),
    seed=st.integers(0, 100),
)
def test_every_epoch_takes_every_row_once(count: int, batch: int, epochs: int, drop_last: bool, seed: int) -> None:
    assume(not drop_last or count >= batch)
    plan = FitPlan(epochs=epochs, batch=batch, drop_last=drop_last, seed=seed).batches(count, "a")
    width = min(batch, count)
    per_epoch = count // width if drop_last else -(-count // width)
    assert plan.shape == (epochs * per_epoch, width)
    for epoch in np.split(plan, epochs):
        taken = epoch[epoch >= 0]
        assert len(set(taken.tolist())) == len(taken)
        assert len(taken) == (per_epoch * width if drop_last else count)
        assert (epoch[:-1] >= 0).all()


def test_steps_go_on_into_further_epochs() -> None:
    plan = FitPlan(steps=7, batch=2).batches(5, "a")
    assert plan.shape == (7, 2)
    assert sorted(plan[3:6][plan[3:6] >= 0].tolist()) == [0, 1, 2, 3, 4]
    assert FitPlan(steps=2).batches(5, "a").shape == (2, 0)


@pytest.mark.parametrize("size", [1, 2, 63, 65, 200])
def test_the_largest_curvature_is_the_largest_eigenvalue(make_set: MakeSet, size: int) -> None:
    data = make_set(rows=60, dimension=size)
    problem = HeadProblem(Design(size, 3, intercept="free"))
    found, _ = answer(Ask("scales", plan={"ridge": 0.2}), problem.hold(data, np.arange(60)), {}, name="a")
    X = np.hstack([np.asarray(data.embeddings), np.ones((60, 1))])
    penalty = np.append(np.full(size, 0.2), 0.0)
    assert found.values["curvature"] == pytest.approx(np.linalg.norm(X.T @ X / 60 + np.diag(penalty), 2), rel=1e-9)
    assert found.values["energy"] == pytest.approx((X**2).sum())


def test_importance_is_the_diagonal_of_the_curvature_from_rows_and_from_statistics(make_set: MakeSet) -> None:
    data = make_set(rows=60, dimension=5)
    problem = HeadProblem(Design(5, 3))
    X = np.hstack([np.asarray(data.embeddings), np.ones((60, 1))])
    holding = problem.hold(data, np.arange(60))
    for one in (holding, problem.hold_statistics(holding.statistics)):
        found, _ = answer(Ask("importance", {"params": np.zeros((6, 3))}), one, {}, name="a")
        assert np.allclose(found.arrays["importance"], np.square(X).sum(axis=0)[:, None] * np.ones((1, 3)), rtol=1e-12)


def test_picked_rows_are_read_in_their_order() -> None:
    rows = np.arange(12.0).reshape(6, 2)
    picked = Picked(rows, np.array([4, 0, 5]))
    assert (picked.shape, len(picked), picked.dtype) == ((3, 2), 3, np.dtype(np.float64))
    assert picked[1:].tolist() == [[0.0, 1.0], [10.0, 11.0]]
    assert np.asarray(picked).tolist() == [[8.0, 9.0], [0.0, 1.0], [10.0, 11.0]]


def test_a_plan_draws_other_labels() -> None:
    """Labels of one's own choosing: by the plan, the round and the client's name alone."""
    labels = np.arange(400) % 4
    rows = np.arange(400)

    def drawn(targets: str, name: str = "a", **more: Any) -> Any:
        found = FitPlan(steps=1, targets=targets, **more).drawn(labels, 4, name, lambda: np.full((400, 4), 2.0))
        return None if found is None else found(rows)

    assert drawn("own") is None
    random, false = drawn("random"), drawn("false")
    assert 0.15 < (random.argmax(axis=1) == labels).mean() < 0.35
    assert not (false.argmax(axis=1) == labels).any()
    assert len(np.unique(false.argmax(axis=1) - labels)) > 2
    assert np.array_equal(random, drawn("random"))
    assert not np.array_equal(random, drawn("random", "b"))
    assert not np.array_equal(random, drawn("random", round=1))
    assert len(np.unique(drawn("random-batch").argmax(axis=1))) == 1
    assert (drawn("uniform") == 0.25).all()
    assert (drawn("teacher") == 2.0).all()
    with pytest.raises(InputError, match="random-batch"):
        FitPlan(targets="other")


def test_a_pull_and_a_mask_hold_parameters() -> None:
    """Without a loss the anchor draws parameters in a straight line; what is masked does not move."""
    start, anchor = np.ones((2, 1)), np.zeros((2, 1))
    arrays = {"params": start, "anchor": anchor, "importance": np.full((2, 1), 0.5), "mask": np.array([[1.0], [0.0]])}
    plan = FitPlan(steps=3, rate=1.0, sign=-1.0)
    found = local_steps(plan, arrays, plan.batches(5, "a"), lambda params, some: np.zeros_like(params))
    assert found.tolist() == [[0.125], [1.0]]
