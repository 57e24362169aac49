"""FedRemoval against dense algebra: its step, its solvers, its line search, its rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import InputError, SolverError
from probekit.federated.federation import Federation
from probekit.federated.state import State
from probekit.federated.training.closed_form import ClosedForm
from probekit.linear.ridge import Gcv
from probekit.unlearning.methods.fedremoval import ServerRows
from tests.oracles import relative_error, with_ones
from tests.unlearning.problems import federation, forget, some_clients, trained

RIDGE = 0.05


def server_of(rows: int, *, seed: int = 7) -> Federation:
    return federation({"server": some_clients((rows,), seed=seed)["0"]})


def dense(clients, intercept: str) -> tuple[np.ndarray, np.ndarray]:
    """H and C / n of these clients' rows."""
    Z = np.vstack([with_ones(rows.rows) for rows in clients])
    Y = np.vstack([rows.target_matrix for rows in clients])
    penalty = RIDGE * np.eye(Z.shape[1])
    penalty[-1, -1] *= intercept == "penalized"
    return Z.T @ Z / len(Z) + penalty, Z.T @ Y / len(Z)


def loss(params: np.ndarray, H: np.ndarray, b: np.ndarray) -> float:
    return float((params * (H @ params / 2 - b)).sum())


@pytest.mark.parametrize("intercept", ["free", "penalized"])
@pytest.mark.parametrize("keep", [{"statistics"}, {"gradients"}, set()])
def test_the_error_of_one_step_is_that_of_the_servers_curvature(intercept: str, keep: set) -> None:
    """w - w* = -H_p^-1 (G/n - G_p/n_p) (w_before - w*), exactly."""
    clients = some_clients()
    server = server_of(50)
    asked = federation(clients, intercept=intercept)
    before = trained(asked, ClosedForm(keep=frozenset(keep)), RIDGE)
    after = forget(before, asked, "fedremoval", clients={"3"}, server=server)
    H, b = dense([clients[name] for name in "0124"], intercept)
    H_server, _ = dense([server.transport.data["server"]], intercept)
    minimum = np.linalg.solve(H, b)
    error = -np.linalg.solve(H_server, (H - H_server) @ (before.params - minimum))
    assert relative_error(after.params - minimum, error) < 1e-10


@pytest.mark.parametrize(
    ("solver", "tolerance"),
    [
        ("cg", 1e-9),
        ("sgd,steps=8000", 1e-9),
        ("solver=sgd,steps=20000,rate=0.02", 1e-9),
        ("adam,steps=8000,rate=0.001", 1e-3),
        ("sgd,steps=20000,rate=0.002,batch_size=8", 0.1),
    ],
)
def test_every_solver_ends_at_the_step_of_cholesky(solver: str, tolerance: float) -> None:
    clients = some_clients()
    server = server_of(50)
    asked = federation(clients, intercept="penalized")
    before = trained(asked, ridge=RIDGE)
    by_factor = forget(before, asked, "fedremoval", clients={"3"}, server=server)
    iterated = forget(before, asked, f"fedremoval:{solver}", clients={"3"}, server=server)
    step = by_factor.params - before.params
    assert relative_error(iterated.params - before.params, step) < tolerance


def test_adams_weight_decay_stands_in_for_a_ridge() -> None:
    """As in the released code: trained with ridge 0, removed with 0.01."""
    clients = some_clients()
    server = server_of(50)
    asked = federation(clients, intercept="penalized")
    before = trained(asked, ridge=0.0)
    method = "fedremoval:adam,steps=8000,rate=0.001,weight_decay=0.05"
    after = forget(before, asked, method, clients={"3"}, server=server)
    H_server, _ = dense([server.transport.data["server"]], "penalized")
    Z = np.vstack([with_ones(clients[name].rows) for name in "0124"])
    Y = np.vstack([clients[name].target_matrix for name in "0124"])
    gradient = Z.T @ (Z @ before.params - Y) / len(Z)
    step = np.linalg.solve(H_server, gradient)  # RIDGE is 0.05 too
    assert relative_error(before.params - after.params, step) < 1e-3


def test_a_solver_that_does_not_arrive_is_refused() -> None:
    clients = some_clients()
    asked = federation(clients)
    before = trained(asked, ridge=RIDGE)
    with pytest.raises(SolverError):
        forget(before, asked, "fedremoval:cg,steps=2", clients={"3"}, server=server_of(50))


@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 40),
    solver=st.sampled_from(["cholesky", "sgd,steps=5", "adam,steps=3"]),
)
def test_the_line_search_never_raises_the_retained_loss(seed: int, rows: int, solver: str) -> None:
    clients = some_clients(seed=seed)
    asked = federation(clients, intercept="penalized")
    before = trained(asked, ridge=RIDGE)
    server = server_of(rows, seed=seed + 1)
    method = f"fedremoval-line:{solver}"
    after = forget(before, asked, method, clients={"0"}, server=server)
    H, b = dense([clients[name] for name in "1234"], "penalized")
    lowered = loss(before.params, H, b) - loss(after.params, H, b)
    assert lowered >= -1e-14
    moved = after.params - before.params
    assert abs(float((moved * (H @ after.params - b)).sum())) <= 1e-10  # the lowest point


def test_one_step_with_few_rows_does_harm_and_is_warned_of() -> None:
    clients = some_clients((60, 60, 60), width=30)
    asked = federation(clients, intercept="penalized")
    before = trained(asked, ridge=1e-3)
    few = federation({"server": some_clients((20,), width=30, seed=5)["0"]})
    after = forget(before, asked, "fedremoval", clients={"0"}, server=few)
    minimum = forget(before, asked, "exact", clients={"0"}).params
    harm = np.linalg.norm(after.params - minimum) / np.linalg.norm(before.params - minimum)
    assert harm > 2
    facts = ServerRows.of(few, ridge=1e-3)
    assert facts.rows == 20
    assert not facts.enough
    assert facts.warning


@pytest.mark.parametrize("intercept", ["free", "penalized"])
def test_the_effective_dimension_is_that_of_the_hat_matrix(intercept: str) -> None:
    rows = some_clients((80,))["0"]
    facts = ServerRows.of(federation({"server": rows}, intercept=intercept), ridge=RIDGE)
    Z = with_ones(rows.rows)
    H, _ = dense([rows], intercept)
    hat = Z @ np.linalg.solve(H, Z.T) / len(Z)
    assert facts.effective_dimension == pytest.approx(np.trace(hat))
    assert facts.enough
    assert facts.warning == ""


@pytest.mark.parametrize("intercept", ["free", "penalized"])
def test_conjugate_gradients_reach_the_minimum(intercept: str) -> None:
    clients = some_clients()
    asked = federation(clients, intercept=intercept)
    before = trained(asked, ridge=RIDGE)
    minimum = forget(before, asked, "exact", clients={"0"}).params

    def distance(rounds: int) -> float:
        method = f"fedremoval-pcg:{rounds}"
        after = forget(before, asked, method, clients={"0"}, server=server_of(50))
        return float(np.linalg.norm(after.params - minimum))

    distances = [distance(rounds) for rounds in (1, 3, 7, 10)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-12


def test_a_ridge_is_chosen_again_where_statistics_are_kept() -> None:
    clients = some_clients(signal=0.2)
    asked = federation(clients)
    request = {"clients": {"0", "1"}, "server": server_of(60)}

    def after(trainer: ClosedForm, method: str) -> State:
        return forget(trained(asked, trainer, Gcv()), asked, method, **request)

    exact = after(ClosedForm(), "exact")
    kept = after(ClosedForm(), "fedremoval-pcg:20")
    assert kept.ridge_choice == exact.ridge_choice
    assert relative_error(kept.params, exact.params) < 1e-10
    stale = after(ClosedForm(keep=frozenset()), "fedremoval-pcg:20")
    assert stale.ridge_choice.stale
    assert stale.ridge == trained(asked, ridge=Gcv()).ridge


def test_kept_gradients_need_nobody_online() -> None:
    clients = some_clients()
    asked = federation(clients)
    before = trained(asked, ClosedForm(keep=frozenset({"gradients"})), RIDGE)
    server = server_of(50)
    asked_again = forget(before, asked, "fedremoval", clients={"3"}, server=server)
    alone = forget(before, asked.only(()), "fedremoval", clients={"3"}, server=server)
    assert np.array_equal(alone.params, asked_again.params)
    with pytest.raises(InputError, match="online"):
        forget(before, asked.only({"0"}), "fedremoval-line", clients={"3"}, server=server)
    with pytest.raises(InputError, match="online"):
        forget(alone, asked.only(()), "fedremoval", clients={"2"}, server=server)


def test_the_server_must_have_rows() -> None:
    clients = some_clients()
    asked = federation(clients)
    with pytest.raises(InputError, match="server"):
        forget(trained(asked), asked, "fedremoval", clients={"3"})
