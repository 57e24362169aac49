"""FedAvg against its fixed point, gradient descent, and averages over all samples of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.embeddings import EmbeddingSet
from probekit.errors import Failure, InputError, MissingClients
from probekit.federated.federation import InProcess
from probekit.federated.local import Adam, LocalPlan
from probekit.federated.queries import Arrays
from probekit.federated.state import History, KeptGradients, State, Upload
from probekit.federated.training.fedavg import FedAvg
from probekit.linear.ridge import INTERCEPTS, Intercept
from tests.federated.examples import Clients, Meddling, design, divided, federation
from tests.oracles import Array, random_set, ridge_by_lstsq, with_ones

RIDGE = 0.1
FULL = LocalPlan(steps=5)


def penalty(columns: int, intercept: Intercept) -> Array:
    diagonal = np.full(columns, RIDGE)
    if intercept == "free":
        diagonal[-1] = 0
    return np.diag(diagonal)


def fixed_point(
    clients: Mapping[str, EmbeddingSet], shares: Array, *, rate: float, steps: int, intercept: Any
) -> Array:
    """W_FA = (sum p Q)^-1 sum p Q W*, with Q = I - (I - rate H)^steps."""
    left: Array | float = 0.0
    right: Array | float = 0.0
    for share, (name, rows) in zip(shares, clients.items(), strict=True):
        Z, Y = design({name: rows})
        H = Z.T @ Z / len(Z) + penalty(Z.shape[1], intercept)
        best = np.linalg.solve(H, Z.T @ Y / len(Z))
        Q = np.eye(len(H)) - np.linalg.matrix_power(np.eye(len(H)) - rate * H, steps)
        left = left + share * Q
        right = right + share * Q @ best
    return np.asarray(np.linalg.solve(np.asarray(left), np.asarray(right)))


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_full_batches_reach_the_fixed_point(intercept: Intercept, uniform: bool) -> None:
    clients = divided((50, 12, 30, 20))
    trainer = FedAvg(1500, FULL, uniform=uniform)
    state = trainer.train(federation(clients, intercept=intercept), ridge=RIDGE)
    counts = np.array([len(rows) for rows in clients.values()])
    shares = np.full(4, 0.25) if uniform else counts / counts.sum()
    rate = rate_of(state)
    expected = fixed_point(clients, shares, rate=rate, steps=5, intercept=intercept)
    assert np.linalg.norm(state.params - expected) <= 1e-10 * np.linalg.norm(expected)
    Z, Y = design(clients)
    minimum = ridge_by_lstsq(Z[:, :-1], Y, RIDGE, intercept=intercept)
    assert np.linalg.norm(minimum - expected) > 1e-3 * np.linalg.norm(expected)


def rate_of(state: State) -> float:
    assert isinstance(state.trainer, FedAvg)
    assert state.trainer.plan.rate is not None
    return state.trainer.plan.rate


def test_one_step_of_all_rows_is_gradient_descent() -> None:
    clients = divided()
    Z, Y = design(clients)
    W = np.zeros((7, 3))
    for _ in range(30):
        W = W - 0.05 * (Z.T @ (Z @ W - Y) / len(Z) + penalty(7, "free") @ W)
    state = FedAvg(30, LocalPlan(0.05, steps=1)).train(federation(clients), ridge=RIDGE)
    np.testing.assert_allclose(state.params, W, rtol=0, atol=1e-13)
    assert state.rounds == 30


def test_every_round_and_client_draws_batches_of_its_own() -> None:
    clients = divided()
    plan = LocalPlan(0.02, epochs=2, batch_size=8, seed=4)
    W = np.zeros((7, 3))
    for number in range(3):
        ends = []
        for name, rows in clients.items():
            Z, Y = design({name: rows})
            end = W
            for batch in replace(plan, round=number).batches(len(Z), name):
                residuals = Z[batch] @ end - Y[batch]
                slope = Z[batch].T @ residuals / len(residuals) + penalty(7, "free") @ end
                end = end - 0.02 * slope
            ends.append(len(Z) / 130 * end)
        W = np.sum(ends, axis=0)
    state = FedAvg(3, plan).train(federation(clients), ridge=RIDGE)
    np.testing.assert_allclose(state.params, W, rtol=0, atol=1e-13)


def test_rounds_go_on_where_they_stopped() -> None:
    asked = federation(divided())
    plan = LocalPlan(0.02, epochs=1, batch_size=8)
    state = FedAvg(7, plan, participation=0.5).train(asked, ridge=RIDGE)
    shorter = FedAvg(4, plan, participation=0.5)
    half = shorter.train(asked, ridge=RIDGE)
    params = shorter.continued(asked, half.params, range(4, 7), ridge=RIDGE)
    np.testing.assert_array_equal(params, state.params)


@pytest.mark.parametrize("width", [6, 90])
@pytest.mark.parametrize("logistic", [False, True])
def test_the_rate_is_one_over_the_largest_curvature_of_any_client(
    width: int, logistic: bool
) -> None:
    clients = divided((50, 12, 30), width=width)
    factor = 0.5 if logistic else 1.0
    curvatures = []
    squares = []
    for rows in clients.values():
        Z = with_ones(rows.rows)
        curvatures.append(np.linalg.eigvalsh(Z.T @ Z / len(Z))[-1])
        squares.append(np.square(Z).sum(axis=1).max())
    asked = federation(clients, logistic=logistic)
    full = FedAvg(1, FULL).train(asked, ridge=RIDGE)
    assert rate_of(full) == pytest.approx(1 / (factor * max(curvatures) + RIDGE))
    batches = FedAvg(1, LocalPlan(steps=5, batch_size=4)).train(asked, ridge=RIDGE)
    assert rate_of(batches) == pytest.approx(1 / (factor * max(squares) + RIDGE))


def scaled(factor: float, *names: str) -> Any:
    def change(arrays: Arrays) -> Arrays:
        return {key: array * (factor if key in names else 1) for key, array in arrays.items()}

    return change


@pytest.mark.parametrize(
    "change",
    [
        scaled(1e60, "curvature"),
        scaled(1e60, "curvature", "trace"),
        scaled(1e6, "curvature", "trace"),
        scaled(1e-6, "curvature"),
        scaled(-1, "curvature"),
        scaled(1.5, "trace"),
        scaled(np.nan, "curvature"),
        scaled(0, "curvature", "trace"),
    ],
    ids=["absurd", "consistent", "far from others", "too flat", "negative", "loose", "nan", "zero"],
)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_no_single_client_sets_the_rate(change: Any, batch_size: int | None) -> None:
    clients = {name: rows.take(np.arange(1)) for name, rows in divided().items()}
    asked = federation(clients, transport=lambda data: Meddling(InProcess(data), {"c": change}))
    with pytest.raises(MissingClients) as caught:
        FedAvg(1, replace(FULL, batch_size=batch_size)).train(asked, ridge=RIDGE)
    assert caught.value.reasons.keys() == {"c"}
    assert caught.value.reasons["c"].reason == "garbage"


def test_adam_needs_a_rate() -> None:
    with pytest.raises(InputError):
        FedAvg(1, replace(FULL, optimizer=Adam())).train(federation(divided()), ridge=RIDGE)


def test_divergence_names_client_and_rate() -> None:
    with pytest.raises(MissingClients) as caught:
        FedAvg(2, LocalPlan(31.5, steps=300)).train(federation(divided()), ridge=RIDGE)
    assert caught.value.reasons.keys() == {"a", "b", "c", "d"}
    assert all("31.5" in failure.detail for failure in caught.value.reasons.values())


def mean_of(uploads: Mapping[str, Upload], *, uniform: bool) -> Array:
    weights = [1.0 if uniform else upload.weight for upload in uploads.values()]
    return np.average([upload.params for upload in uploads.values()], axis=0, weights=weights)


@given(clients=st.integers(2, 6), seed=st.integers(0, 1000), uniform=st.booleans())
def test_a_sample_of_clients_is_right_on_average(clients: int, seed: int, uniform: bool) -> None:
    generator = np.random.default_rng(seed)
    start = generator.standard_normal((3, 2))
    uploads = {
        str(name): Upload(generator.standard_normal((3, 2)), float(generator.integers(1, 50)))
        for name in range(clients)
    }
    trainer = FedAvg(1, FULL, uniform=uniform)
    everyone = trainer.step(start, uploads.items())
    np.testing.assert_allclose(everyone, mean_of(uploads, uniform=uniform), rtol=0, atol=1e-12)
    weights = {name: 1.0 if uniform else upload.weight for name, upload in uploads.items()}
    for size in range(1, clients + 1):
        samples = [
            trainer.step(start, [(name, uploads[name]) for name in names], weights)
            for names in combinations(uploads, size)
        ]
        np.testing.assert_allclose(np.mean(samples, axis=0), everyone, rtol=0, atol=1e-12)


def test_every_client_is_drawn_as_often_as_any_other() -> None:
    clients = divided([2] * 10)
    asked = federation(clients)
    trainer = FedAvg(1, FULL, participation=0.3)
    drawn = dict.fromkeys(clients, 0)
    for number in range(4000):
        names = trainer.draw(asked, number)
        assert len(names) == 3
        for name in names:
            drawn[name] += 1
    shares = np.array(list(drawn.values())) / 4000
    assert np.abs(shares - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 4000)
    assert trainer.draw(asked, 7) == trainer.draw(asked, 7)
    assert len(replace(trainer, participation=0.01).draw(asked, 0)) == 1
    assert replace(trainer, participation=1.0).draw(asked, 0) == clients.keys()


def test_weights_of_rows_are_weights_of_clients() -> None:
    clients = divided((30, 30))
    heavy = {**clients, "b": replace(clients["b"], weights=np.full(30, 9.0))}
    trainer = FedAvg(1, LocalPlan(0.01, steps=1))
    start = np.zeros((7, 3))
    uploads = dict(trainer.uploads(federation(heavy), start, 0, ridge=RIDGE))
    mean = 0.1 * uploads["a"].params + 0.9 * uploads["b"].params
    np.testing.assert_allclose(trainer.step(start, uploads.items()), mean, atol=1e-15)
    sampled = FedAvg(1, FULL, participation=0.5)
    assert sampled.weights(federation(heavy)) == {"a": 30.0, "b": 270.0}


def test_rounds_go_on_with_those_who_answer() -> None:
    clients = divided()

    def gone(arrays: Arrays) -> Failure:
        return Failure("gone")

    def ask(at_least: float, *absent: str) -> State:
        answers = dict.fromkeys(absent, gone)
        asked = federation(clients, transport=lambda data: Meddling(InProcess(data), answers))
        return FedAvg(5, LocalPlan(0.02, steps=2), at_least=at_least).train(asked, ridge=RIDGE)

    present = {name: rows for name, rows in clients.items() if name != "b"}
    expected = FedAvg(5, LocalPlan(0.02, steps=2)).train(federation(present), ridge=RIDGE)
    np.testing.assert_array_equal(ask(0.75, "b").params, expected.params)
    for at_least, absent in ((0.8, "b"), (0.75, "bc"), (0.01, "abcd")):
        with pytest.raises(MissingClients) as caught:
            ask(at_least, *absent)
        assert caught.value.reasons.keys() == set(absent)


def test_the_history_replays_the_training() -> None:
    trainer = FedAvg(
        5, LocalPlan(0.02, steps=2), participation=0.5, keep=frozenset({"history", "gradients"})
    )
    clients = divided()
    state = trainer.train(federation(clients), ridge=RIDGE)
    history = state.get(History)
    assert history is not None
    starts = [played.start for played in history.rounds[1:]] + [history.end]
    weights = {name: float(len(rows)) for name, rows in clients.items()}
    for played, following in zip(history.rounds, starts, strict=True):
        assert len(played.uploads) == 2
        changes = [
            upload.weight / 130 * (upload.params - played.start)
            for upload in played.uploads.values()
        ]
        np.testing.assert_allclose(played.start + 4 / 2 * sum(changes), following, atol=1e-13)
        np.testing.assert_array_equal(
            trainer.step(played.start, played.uploads.items(), weights), following
        )
    np.testing.assert_array_equal(history.end, state.params)
    assert history.without({"a"}) is None
    gradients = state.get(KeptGradients)
    assert gradients is not None
    np.testing.assert_array_equal(gradients.params, state.params)


def test_a_history_that_is_too_large_is_refused_beforehand() -> None:
    clients: Clients = {"a": random_set(4, 6, 3)}
    trainer = FedAvg(20_000_000, FULL, keep=frozenset({"history"}))
    with pytest.raises(InputError):
        trainer.train(federation(clients), ridge=RIDGE)


def test_a_random_start_is_as_pytorch_draws_it() -> None:
    model = federation(divided(width=16)).model
    start = FedAvg(1, FULL, start="random").start_params(model)
    assert start.shape == model.shape
    assert 0.2 < np.abs(start).max() < 1 / np.sqrt(16)
    other = FedAvg(1, replace(FULL, seed=1), start="random").start_params(model)
    assert not np.array_equal(start, other)


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0},
        {"participation": 0.0},
        {"participation": 1.5},
        {"at_least": 0.0},
        {"at_least": float("nan")},
        {"keep": frozenset({"everything"})},
        {"start": "warm"},
    ],
)
def test_options_check_themselves(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        FedAvg(**{"rounds": 1, "plan": FULL, **options})
