"""CF, flipping and FUSED against affine maps: a round is W* + (I - rate H)^M (W - W*)."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg, LocalPlan
from probekit.federated.transports.kept import KeptFirst
from probekit.registry import configured
from probekit.unlearning.methods.flipping import LABEL_STREAM
from tests.oracles import Array, one_hot, relative_error, with_ones
from tests.unlearning.maps import LEAVER, RATE, RIDGE, ROUNDS, STEPS, Problem, make_problem
from tests.unlearning.problems import forget, sample_ids, trained


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(keep="statistics")


def test_continued_training_approaches_its_fixed_point(problem: Problem) -> None:
    """W_R + Phi^t (W - W_R), Phi = sum p_c (I - rate H_c)^M, which is FedAvg's own fixed point."""
    maps = problem.maps
    eye = np.eye(len(problem.start))
    shares = maps.shares(maps.retained)
    powers = {c: np.linalg.matrix_power(eye - RATE * maps.H[c], STEPS) for c in shares}
    moved = {c: share * (eye - powers[c]) for c, share in shares.items()}
    best = {c: np.linalg.solve(maps.H[c], maps.b[c]) for c in shares}
    fixed = np.linalg.solve(sum(moved.values()), sum(moved[c] @ best[c] for c in shares))
    phi = sum(share * powers[c] for c, share in shares.items())
    expected = fixed + np.linalg.matrix_power(phi, 7) @ (problem.start - fixed)
    after = problem.after("cf:rounds=7")
    assert relative_error(after.params, expected) < 1e-12
    assert after.rounds == ROUNDS + 7


def test_continued_training_draws_the_clients_of_its_rounds() -> None:
    problem = make_problem(participation=0.5)
    after = problem.after("cf:rounds=2")
    maps, W = problem.maps, problem.start
    rows = {name: len(maps.clients[name]) for name in maps.retained}
    for number in (ROUNDS, ROUNDS + 1):
        drawn = problem.state.trainer.draw(problem.asked.without({LEAVER}), number)
        assert len(drawn) == 2
        moved = sum(rows[name] * (maps.local(name, W) - W) for name in drawn)
        W = W + 4 / 2 * moved / sum(rows.values())
    assert relative_error(after.params, W) < 1e-12


def test_heads_that_fedavg_did_not_train_take_steps_at_a_rate_of_their_curvature() -> None:
    problem = make_problem()
    state = trained(problem.asked, ClosedForm(), RIDGE)
    retained = problem.asked.without({LEAVER})
    rate = FedAvg(1, LocalPlan(steps=5)).with_rate(retained, ridge=RIDGE).plan.rate
    W = state.params
    shares = problem.maps.shares(problem.maps.retained)
    for _ in range(2):
        moved = dict.fromkeys(shares, W)
        for _ in range(5):
            moved = {
                c: V - rate * (problem.maps.H[c] @ V - problem.maps.b[c]) for c, V in moved.items()
            }
        W = sum(share * moved[c] for c, share in shares.items())
    after = forget(state, problem.asked, "cf:rounds=2", clients={LEAVER})
    assert relative_error(after.params, W) < 1e-12


@pytest.mark.parametrize("labels", ["row", "client"])
def test_flipping_is_a_round_with_other_labels(problem: Problem, labels: str) -> None:
    """Given the drawn labels, X^T Y~ stands for X^T Y of the forgotten client."""
    maps, W = problem.maps, problem.start
    rows = maps.clients[LEAVER]
    shares = maps.shares(maps.clients)
    for number in (ROUNDS, ROUNDS + 1):
        generator = LocalPlan(steps=1, round=number).generator(LEAVER, LABEL_STREAM)
        drawn = generator.integers(3, size=len(rows) if labels == "row" else 1)
        Y = one_hot(np.resize(drawn, len(rows)), 3)
        b = with_ones(rows.rows).T @ Y / len(rows)
        W = sum(
            share * maps.local(name, W, b=b if name == LEAVER else None)
            for name, share in shares.items()
        )
    after = problem.after(f"flipping:rounds=2,post=1,labels={labels}")
    assert relative_error(after.params, maps.round(maps.retained, W)) < 1e-12


def test_random_labels_are_uniform() -> None:
    """E[X^T Y~] = X^T 1 1^T / k, to 4.5 standard errors of 2,000 draws."""
    X = np.random.default_rng(0).normal(size=(30, 4))
    total = np.zeros((4, 3))
    for seed in range(2000):
        generator = LocalPlan(steps=1, seed=seed).generator("north", LABEL_STREAM)
        total += X.T @ one_hot(generator.integers(3, size=30), 3) / 2000
    error = np.sqrt(np.square(X).sum(axis=0)[:, None] * (1 / 3) * (2 / 3) / 2000)
    assert (np.abs(total - X.sum(axis=0)[:, None] / 3) <= 4.5 * error).all()


def adapted(problem: Problem, rounds: int, A: Array) -> Array:
    """FedAvg on A and B of W + A B^T, step by step."""
    maps, base = problem.maps, problem.start
    shares = maps.shares(maps.retained)
    B = np.zeros((3, A.shape[1]))
    for _ in range(rounds):
        ends = []
        for name, share in shares.items():
            a, b = A, B
            for _ in range(STEPS):
                W = base.copy()
                W[:-1] += a @ b.T
                gradient = (maps.H[name] @ W - maps.b[name])[:-1]
                a, b = a - RATE * gradient @ b, b - RATE * gradient.T @ a
            ends.append((share * a, share * b))
        A, B = sum(a for a, _ in ends), sum(b for _, b in ends)
    W = base.copy()
    W[:-1] += A @ B.T
    return W


@pytest.mark.parametrize("rank", [1, 2, 16])
def test_a_low_rank_adapter_is_trained_on_both_sides(problem: Problem, rank: int) -> None:
    from probekit.unlearning.methods.fused import ADAPTER_STREAM

    after = problem.after(f"fused:rank={rank},rounds=4,seed=3")
    generator = np.random.Generator(np.random.PCG64([3, ADAPTER_STREAM]))
    A = np.linalg.qr(generator.normal(size=(6, min(rank, 3))))[0]
    assert relative_error(after.params, adapted(problem, 4, A)) < 1e-12
    change = after.params - problem.start
    assert not change[-1].any()
    assert np.linalg.matrix_rank(change, tol=1e-10) == min(rank, 3)


def test_a_sparse_adapter_of_all_entries_is_continued_training(problem: Problem) -> None:
    dense = problem.after("fused:density=1,rounds=4")
    assert relative_error(dense.params, problem.after("cf:rounds=4").params) < 1e-12


def test_a_sparse_adapter_trains_its_entries_alone(problem: Problem) -> None:
    """Gradient steps on some coordinates, of the tensor that a round moves most."""
    maps = problem.maps
    first = problem.after("cf:rounds=1").params
    rounds = {c: np.abs(maps.local(c, problem.start) - problem.start) for c in maps.retained}
    moved = np.mean(list(rounds.values()), axis=0)
    largest = slice(0, 6) if moved[:6].mean() > moved[6:].mean() else slice(6, 7)
    after = problem.after("fused:layers=1,density=0.4,rounds=1").params
    mask = after != problem.start
    assert mask.sum() == round(0.4 * moved[largest].size)
    assert not np.delete(mask, largest, axis=0).any()
    expected = np.zeros_like(after)
    for name, share in maps.shares(maps.retained).items():
        W = problem.start
        for _ in range(STEPS):
            W = W - RATE * mask * (maps.H[name] @ W - maps.b[name])
        expected += share * W
    assert relative_error(after, expected) < 1e-12
    assert not np.allclose(after, first)


@pytest.mark.parametrize("method", ["cf", "flipping", "fused", "sga", "ew-sga"])
def test_samples_are_forgotten_too(problem: Problem, method: str) -> None:
    ids = sample_ids(problem.maps.clients["2"], [0, 4])
    after = problem.after(method, samples={"2": ids})
    assert after.clients["2"] == problem.state.clients["2"] - 2
    assert not np.array_equal(after.params, problem.start)


@pytest.mark.parametrize("method", ["cf", "flipping", "fused"])
def test_statistics_cannot_train_locally(problem: Problem, method: str) -> None:
    parts = problem.state.kept[0].parts
    alone = problem.asked.only({LEAVER}).transport
    elsewhere = Federation.of(KeptFirst(parts, type(alone)({})), problem.asked.model)
    with pytest.raises(InputError, match="rows"):
        forget(problem.state, elsewhere, method, clients={LEAVER})


@pytest.mark.parametrize(
    "text",
    [
        *("cf:rounds=0", "flipping:labels=batch", "fused:density=1.5", "fused:rank=-1"),
        *("sga:steps=0", "sga:max_norm=-1", "ew-sga:importance=all", "federaser:ratio=0"),
        *("federaser:lengths=off", "fedrecovery:weights=all", "starfish:buffer=0"),
        *("ferrari:rate=0", "ferrari:columns=0:2,directions=x.npy", "pga:radius=0"),
    ],
)
def test_options_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        configured(text)
