"""Ascent against its closed forms: powers of I + rate H, and the trust-region equation."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.federated.loss import MeanLoss
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg, LocalPlan
from probekit.unlearning.methods.ascent import smallest_strength
from tests.oracles import Array, relative_error, with_ones
from tests.unlearning.maps import LEAVER, RATE, RIDGE, Problem, make_problem
from tests.unlearning.problems import federation, forget, some_clients, trained


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


def test_ascent_grows_by_its_curvature(problem: Problem) -> None:
    """W_u + (I + rate H_u)^t (W - W_u)."""
    H, b = problem.maps.H[LEAVER], problem.maps.b[LEAVER]
    best = np.linalg.solve(H, b)
    grown = np.linalg.matrix_power(np.eye(len(H)) + 0.5 * RATE * H, 6) @ (problem.start - best)
    after = problem.after("sga:steps=6,rate_scale=0.5,max_norm=none")
    assert relative_error(after.params, best + grown) < 1e-12


def test_ascent_ends_where_it_is_told(problem: Problem) -> None:
    norm = np.linalg.norm(problem.start)
    moved = problem.after("sga:steps=60,rate_scale=1,max_norm=0.2").params - problem.start
    assert np.linalg.norm(moved) == pytest.approx(0.2 * norm)
    wild = problem.after("sga:steps=60,rate_scale=1,max_norm=none").params
    assert np.linalg.norm(wild) > 100 * norm
    short = problem.after("sga:steps=1,rate_scale=1,clip=0.01,max_norm=none").params
    assert np.linalg.norm(short - problem.start) == pytest.approx(0.01 * RATE)


def test_of_two_clients_the_mean_by_rows_is_taken(problem: Problem) -> None:
    maps = problem.maps
    method = "sga:steps=4,rate_scale=1,max_norm=none"
    after = problem.after(method, clients={"0", "3"})
    expected = np.zeros_like(problem.start)
    for name, share in maps.shares(["0", "3"]).items():
        best = np.linalg.solve(maps.H[name], maps.b[name])
        power = np.linalg.matrix_power(np.eye(len(best)) + RATE * maps.H[name], 4)
        expected += share * (best + power @ (problem.start - best))
    assert relative_error(after.params, expected) < 1e-12


def importances(problem: Problem, source: str, floor: float = 0.05) -> Array:
    """The mean square of every input, at least a share of their mean."""
    names = {"retained": problem.maps.retained, "target": [LEAVER], "server": []}[source]
    clients = [problem.maps.clients[name] for name in names] or [some_clients((50,), seed=7)["0"]]
    squares = np.square(with_ones(np.concatenate([rows.rows for rows in clients]))).mean(axis=0)
    return np.maximum(squares, floor * squares.mean())


@pytest.mark.parametrize(
    ("source", "floor"), [("retained", 0.05), ("target", 0.05), ("server", 0.05), ("target", 0.9)]
)
def test_elastic_ascent_follows_its_formula(problem: Problem, source: str, floor: float) -> None:
    """Delta_t = A^-1 (I - (I - rate A)^t) g_u, A = strength D - H_u."""
    D = importances(problem, source, floor)
    H, b = problem.maps.H[LEAVER], problem.maps.b[LEAVER]
    least = smallest_strength(
        MeanLoss(problem.asked.only({LEAVER}), RIDGE), problem.start, D[:, None]
    )
    A = 1.5 * least * np.diag(D) - H
    rate = 1 / (1.5 * least * D.max())
    power = np.linalg.matrix_power(np.eye(len(A)) - rate * A, 40)
    delta = np.linalg.solve(A, (np.eye(len(A)) - power) @ (H @ problem.start - b))
    after = problem.after(
        f"ew-sga:steps=40,strength=1.5,importance={source},floor={floor},max_norm=none",
        clients={LEAVER},
        server=federation({"server": some_clients((50,), seed=7)["0"]}),
    )
    assert relative_error(after.params - problem.start, delta) < 1e-10


def test_the_usual_pull_bounds_the_loss(problem: Problem) -> None:
    """lambda_max(D^-1/2 H_u D^-1/2) by 20 products, to 1 %; then A is positive definite."""
    D = importances(problem, "retained")
    H = problem.maps.H[LEAVER]
    loss = MeanLoss(problem.asked.only({LEAVER}), RIDGE)
    found = smallest_strength(loss, problem.start, D[:, None])
    expected = np.linalg.eigvalsh(H / np.sqrt(D)[:, None] / np.sqrt(D))[-1]
    assert found == pytest.approx(expected, rel=0.01)
    assert np.linalg.eigvalsh(1.2 * found * np.diag(D) - H)[0] > 0
    ends = [problem.after(f"ew-sga:steps={steps},max_norm=none").params for steps in (4000, 8000)]
    assert relative_error(ends[1], ends[0]) < 0.05


def test_projected_ascent_starts_at_the_retained_mean(problem: Problem) -> None:
    """(w - p_u w_u) / (1 - p_u), and stays within its radius."""
    path = problem.maps.path(problem.maps.clients)
    share = problem.maps.shares(problem.maps.clients)[LEAVER]
    upload = problem.maps.local(LEAVER, path[-2])
    reference = (problem.start - share * upload) / (1 - share)
    near = problem.after("pga:steps=1,radius=1e-9,post=0").params
    assert relative_error(near, reference) < 2e-9
    far = problem.after("pga:steps=50,radius=0.1,post=0").params - reference
    assert np.linalg.norm(far) == pytest.approx(0.1 * np.linalg.norm(reference))


def test_projected_ascent_ends_at_the_secular_equations_point(problem: Problem) -> None:
    """(nu I - H_u) Delta = g_u(w_ref), nu > lambda_max(H_u), |Delta| the radius."""
    maps = problem.maps
    reference = problem.maps.round(maps.retained, maps.path(maps.clients)[-2])
    delta = problem.after("pga:steps=6000,radius=0.1,post=0").params - reference
    H = maps.H[LEAVER]
    pushed = H @ (reference + delta) - maps.b[LEAVER]
    nu = float((pushed * delta).sum() / np.square(delta).sum())
    assert nu > np.linalg.eigvalsh(H)[-1]
    assert relative_error(pushed, nu * delta) < 1e-8
    later = problem.after("pga:steps=6000,radius=0.1,post=2").params
    expected = maps.path(maps.retained, 2, reference + delta)[-1]
    assert relative_error(later, expected) < 1e-12


def test_a_head_without_a_rate_climbs_at_one_of_the_forgotten_clients(problem: Problem) -> None:
    state = trained(problem.asked, ClosedForm(), RIDGE)
    target = problem.asked.only({LEAVER})
    after = forget(state, target, "sga:steps=1,max_norm=none", clients={LEAVER})
    rate = FedAvg(1, LocalPlan(steps=5)).with_rate(target, ridge=RIDGE).plan.rate
    gradient = problem.maps.H[LEAVER] @ state.params - problem.maps.b[LEAVER]
    assert relative_error(after.params, state.params + 0.1 * rate * gradient) < 1e-12


@pytest.mark.parametrize("method", ["sga", "ew-sga", "pga", "flipping", "ferrari:columns=0:2"])
def test_the_forgotten_client_must_be_online(problem: Problem, method: str) -> None:
    with pytest.raises(InputError, match="forgotten clients"):
        forget(problem.state, problem.asked.without({LEAVER}), method, clients={LEAVER})


@pytest.mark.parametrize("method", ["sga", "ew-sga:importance=target", "pga:post=0"])
def test_nobody_else_need_be(problem: Problem, method: str) -> None:
    alone = forget(problem.state, problem.asked.only({LEAVER}), method, clients={LEAVER})
    assert np.array_equal(alone.params, problem.after(method).params)
