"""Local training against loops that are written here from the formulas."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.client import client_data
from probekit.federated.local import Adam, LocalPlan, Sgd, TrainingLoss, project, train_locally
from probekit.linear.model import LinearModel
from tests.oracles import Array, one_hot, random_set, with_ones

ROWS = random_set(23, 5, 3)
MODEL = LinearModel(5, 3, intercept="penalized")
RIDGE = 0.1
START = 0.1 * np.random.default_rng(0).standard_normal(MODEL.shape)


def trained(plan: LocalPlan, client: str = "a") -> Array:
    loss = TrainingLoss(RIDGE).local_loss(client_data(client, MODEL, ROWS), plan)
    return train_locally(loss, START, plan, client)


def gradient(rows: Any, W: Array) -> Array:
    Z = with_ones(ROWS.rows)[rows]
    Y = one_hot(ROWS.labels, 3)[rows]
    return np.asarray(Z.T @ (Z @ W - Y) / len(Z) + RIDGE * W)


def batches(plan: LocalPlan, client: str = "a") -> list[Any]:
    """The rows of every step, in the documented order."""
    assert plan.batch_size
    key = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.PCG64([plan.seed, 22, plan.round, key]))
    found: list[Any] = []
    epochs = 0
    while (len(found) < plan.steps) if plan.steps else (epochs < (plan.epochs or 0)):
        order = generator.permutation(len(ROWS))
        parts = [order[i : i + plan.batch_size] for i in range(0, len(ROWS), plan.batch_size)]
        found += [p for p in parts if len(p) == plan.batch_size or not plan.drop_last]
        epochs += 1
    return found[: plan.steps]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "plan",
    [
        LocalPlan(0.02, steps=7, batch_size=8),
        LocalPlan(0.02, epochs=1, batch_size=8, seed=3),
        LocalPlan(0.02, epochs=2, batch_size=8, round=4),
        LocalPlan(0.02, epochs=2, batch_size=8, drop_last=True),
        LocalPlan(0.02, steps=5, batch_size=8, drop_last=True),
    ],
)
def test_minibatches_are_steps_of_their_gradients(plan: LocalPlan, momentum: float) -> None:
    W = START
    velocity = np.zeros_like(W)
    for rows in batches(plan):
        velocity = momentum * velocity + gradient(rows, W)
        W = W - 0.02 * velocity
    found = trained(replace(plan, optimizer=Sgd(momentum)))
    np.testing.assert_allclose(found, W, rtol=0, atol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_is_that_of_its_paper(decay: float) -> None:
    W = START
    gradients: list[Array] = []
    for t in range(1, 21):
        gradients.append(gradient(slice(None), W) + decay * W)
        mean = sum(0.1 * 0.9 ** (t - 1 - i) * g for i, g in enumerate(gradients))
        square = sum(0.001 * 0.999 ** (t - 1 - i) * g**2 for i, g in enumerate(gradients))
        mean = mean / (1 - 0.9**t)
        square = square / (1 - 0.999**t)
        W = W - 0.01 * mean / (np.sqrt(square) + 1e-8)
    found = trained(LocalPlan(0.01, steps=20, optimizer=Adam(weight_decay=decay)))
    np.testing.assert_allclose(found, W, rtol=0, atol=1e-12)


def test_batches_follow_from_seed_round_and_name() -> None:
    plan = LocalPlan(0.02, steps=3, batch_size=4)
    assert np.array_equal(trained(plan), trained(plan))
    others = [replace(plan, seed=1), replace(plan, round=1)]
    assert not any(np.array_equal(trained(plan), trained(other)) for other in others)
    assert not np.array_equal(trained(plan), trained(plan, client="b"))


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (LocalPlan(steps=4), 4),
        (LocalPlan(epochs=4), 4),
        (LocalPlan(epochs=4, batch_size=8), 12),
        (LocalPlan(epochs=4, batch_size=8, drop_last=True), 8),
        (LocalPlan(epochs=4, batch_size=50, drop_last=True), 4),
        (LocalPlan(steps=4, batch_size=8), 4),
    ],
)
def test_steps_of_a_plan(plan: LocalPlan, steps: int) -> None:
    assert plan.step_count(len(ROWS)) == steps
    assert len(list(plan.batches(len(ROWS), "a"))) == steps


def test_a_share_of_a_plan_is_rounded_up() -> None:
    assert LocalPlan(steps=10).shortened(0.25).steps == 3
    assert LocalPlan(epochs=3).shortened(0.5).epochs == 2


def test_gradients_are_clipped_and_steps_stay_in_the_ball() -> None:
    plan = LocalPlan(0.5, steps=1, clip=0.01)
    assert np.linalg.norm(trained(plan) - START) == pytest.approx(0.005)
    far = LocalPlan(0.1, steps=30, radius=0.05)
    assert np.linalg.norm(trained(far) - START) == pytest.approx(0.05)
    inside = np.array([0.1, 0.2])
    assert project(inside, np.zeros(2), 1.0) is inside


def test_a_negative_rate_climbs() -> None:
    W = START + 0.01 * gradient(slice(None), START)
    np.testing.assert_allclose(trained(LocalPlan(-0.01, steps=1)), W)


@pytest.mark.parametrize("steps", [100, 2000])
def test_divergence_is_refused_with_its_rate(steps: int) -> None:
    with pytest.raises(InputError) as caught:
        trained(LocalPlan(12.5, steps=steps))
    assert "12.5" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 1, "epochs": 1},
        {"steps": 0},
        {"epochs": -1},
        {"steps": 1, "batch_size": 0},
        {"steps": 1, "seed": -1},
        {"steps": 1, "round": -1},
        {"steps": 1, "rate": float("nan")},
        {"steps": 1, "rate": float("inf")},
    ],
)
def test_a_plan_checks_itself(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LocalPlan(**options)


def test_a_step_needs_a_rate() -> None:
    with pytest.raises(InputError):
        trained(LocalPlan(steps=1))
