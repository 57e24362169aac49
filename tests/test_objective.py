"""Losses and objectives against finite differences, one row at a time, and scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import log_loss

from probekit.embeddings import BLOCK, EmbeddingSet
from probekit.errors import InputError
from probekit.linear.model import LinearModel
from probekit.objective import (
    CrossEntropy,
    Loss,
    Penalty,
    RowsObjective,
    Squares,
    scores,
    softmax,
)
from tests.oracles import Array, one_hot, random_set, with_ones

LOSSES = [Squares(), CrossEntropy()]
DIRECTION = 1e-5


def objective(
    rows: EmbeddingSet, loss: Loss, *, seed: int = 1
) -> tuple[RowsObjective, Array, Array]:
    """An objective, and a point and a direction of its parameters."""
    model = LinearModel(rows.width, rows.outputs, loss)
    generator = np.random.default_rng(seed)
    return (
        RowsObjective.of(model, rows),
        0.3 * generator.standard_normal(model.shape),
        generator.standard_normal(model.shape),
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_and_products_are_derivatives(loss: Loss) -> None:
    weights = np.random.default_rng(0).uniform(0.2, 3, 30)
    total, params, vector = objective(replace(random_set(30, 5, 3), weights=weights), loss)
    plus = total.value_and_gradient(params + DIRECTION * vector)
    minus = total.value_and_gradient(params - DIRECTION * vector)
    slope = (plus[0] - minus[0]) / (2 * DIRECTION)
    assert float((total.value_and_gradient(params)[1] * vector).sum()) == pytest.approx(slope)
    curvature = (plus[1] - minus[1]) / (2 * DIRECTION)
    np.testing.assert_allclose(total.product(params, vector), curvature, rtol=1e-6, atol=1e-6)


def test_values_are_those_of_the_definitions() -> None:
    rows = random_set(40, 5, 3)
    squares, params, _ = objective(rows, Squares())
    fitted = with_ones(rows.rows) @ params
    expected = 0.5 * np.square(fitted - one_hot(rows.labels, 3)).sum()
    assert squares.value_and_gradient(params)[0] == pytest.approx(expected)
    entropy, params, _ = objective(rows, CrossEntropy())
    expected = log_loss(rows.labels, softmax(fitted), normalize=False)
    assert entropy.value_and_gradient(params)[0] == pytest.approx(expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_curvature_is_above_the_bound(loss: Loss) -> None:
    generator = np.random.default_rng(2)
    for spread in (0.01, 1.0, 30.0):
        row = spread * generator.standard_normal((1, 4))
        hessian = np.vstack([loss.curvature(row, unit[None]) for unit in np.eye(4)])
        assert np.linalg.eigvalsh(hessian)[-1] <= loss.largest_curvature + 1e-12
    even = np.array([[0.0, 0.0]])  # where cross-entropy is most curved
    assert loss.curvature(even, np.array([[1.0, -1.0]]))[0, 0] == loss.largest_curvature


@pytest.mark.parametrize("loss", LOSSES)
def test_blocks_add_up(loss: Loss) -> None:
    rows = random_set(2 * BLOCK + 5, 3, 3)
    total, params, vector = objective(replace(rows, weights=np.linspace(0.5, 2, len(rows))), loss)
    parts = [total.batch(part) for part in np.array_split(np.arange(len(rows)), 5)]
    value, gradient = total.value_and_gradient(params)
    assert sum(part.weight for part in parts) == pytest.approx(total.weight)
    assert sum(part.value_and_gradient(params)[0] for part in parts) == pytest.approx(value)
    np.testing.assert_allclose(
        sum(part.value_and_gradient(params)[1] for part in parts), gradient, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        sum(part.product(params, vector) for part in parts), total.product(params, vector)
    )


def test_labels_are_one_hot_targets() -> None:
    rows = random_set(20, 4, 3)
    targets = EmbeddingSet.from_numpy(rows.rows, targets=one_hot(rows.labels, 3))
    by_label, params, _ = objective(rows, Squares())
    by_target = objective(targets, Squares())[0]
    np.testing.assert_array_equal(
        by_label.value_and_gradient(params)[1], by_target.value_and_gradient(params)[1]
    )


def test_a_batch_has_its_share_of_the_weight() -> None:
    total, *_ = objective(random_set(20, 4, 3), Squares())
    assert total.batch(np.arange(5)).weight == 5.0


def test_rows_without_labels_have_no_loss() -> None:
    bare = replace(random_set(20, 4, 3), labels=None)
    with pytest.raises(InputError):
        objective(bare, Squares())


def test_the_penalty_leaves_a_free_intercept_alone() -> None:
    params = np.arange(8.0).reshape(4, 2)
    free = Penalty(LinearModel(3, 2), 0.5)
    assert free.value(params) == 0.25 * np.square(params[:-1]).sum()
    np.testing.assert_array_equal(free.gradient(params)[-1], [0, 0])
    penalized = Penalty(LinearModel(3, 2, intercept="penalized"), 0.5)
    assert penalized.value(params) == 0.25 * np.square(params).sum()


def test_scores_of_any_number_of_rows() -> None:
    rows = random_set(BLOCK + 3, 3, 2)
    model = LinearModel(3, 2)
    params = np.arange(8.0).reshape(4, 2)
    expected = with_ones(rows.rows) @ params
    np.testing.assert_allclose(scores(model.outputs(rows), params), expected)
