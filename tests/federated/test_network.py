"""Linearized networks trained across clients, against dense least squares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from probekit.errors import InputError, MismatchError
from probekit.federated.fedavg import FedAvg
from probekit.federated.network import FederatedCg, train_holders
from probekit.federated.network_clients import Holders, NetworkClients, holders
from probekit.federated.pretraining import Pretraining, pretrain
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.linearize import linearize
from probekit.models.optimiser import Optimiser
from probekit.values import Partition

Array = NDArray[np.float64]
RIDGE = 0.02


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def inputs_and_labels(*, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, 120)
    centres = random.standard_normal((3, 8)) * 2
    return centres[labels] + random.standard_normal((120, 8)), labels


PARTITION = Partition(
    {"a": np.arange(0, 30), "b": np.arange(30, 50), "c": np.arange(50, 90)}, np.arange(90, 120), 120, "test", 0
)


def held(*, centre: str = "wp", dtype: torch.dtype = torch.float64) -> Holders:
    """Three clients and a server; client a's labels are all 0."""
    inputs, labels = inputs_and_labels()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.LeakyReLU(0.01), nn.Linear(6, 3))
    trained = pretrain(module, inputs[90:].astype(np.float32), labels[90:], options=Pretraining(epochs=5))
    labels = labels.copy()
    labels[:30] = 0
    return holders(linearize(trained, dtype=dtype), inputs, labels, PARTITION, centre=centre)


def minimum(found: Holders, names: list[str]) -> Array:
    """The minimum of these clients' loss by a dense solve, counted as the holders count."""
    dense, aims = [], []
    for name in names:
        rows = found.clients[name].rows
        jacobian = torch.func.jacrev(lambda p, x=rows.inputs: found.model.forward(p, x))(found.model.base)
        dense.append(torch.cat([one.reshape(rows.count * 3, -1) for one in jacobian], dim=1).numpy())
        aims.append((found.clients[name].targets - rows.offset).reshape(-1, 1))
    matrix, target = np.vstack(dense), np.vstack(aims)
    count = len(matrix) / 3
    system = matrix.T @ matrix / count + RIDGE * np.eye(matrix.shape[1])
    return np.asarray(np.linalg.solve(system, matrix.T @ target / count))


def test_pretraining_learns_and_leaves_the_module_alone() -> None:
    inputs, labels = inputs_and_labels()
    module = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    before = [one.clone() for one in module.parameters()]
    losses: list[float] = []
    found = pretrain(
        module,
        inputs.astype(np.float32),
        labels,
        options=Pretraining(epochs=30, rate=1e-2),
        progress=lambda one: losses.append(one.loss),
    )
    again = pretrain(module, inputs.astype(np.float32), labels, options=Pretraining(epochs=30, rate=1e-2))
    assert losses[-1] < losses[0] / 4
    assert not found.training
    assert all(torch.equal(one, two) for one, two in zip(module.parameters(), before, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(found.parameters(), again.parameters(), strict=True))
    with pytest.raises(InputError, match="one label per row"):
        pretrain(module, inputs.astype(np.float32), labels[:3])
    with pytest.raises(InputError, match="above 0"):
        Pretraining(epochs=0)


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_federated_conjugate_gradients_find_the_dense_minimum(centre: str) -> None:
    found = held(centre=centre)
    trained = train_holders(found, ridge=RIDGE, method=FederatedCg(tolerance=1e-10))
    wanted = minimum(found, ["a", "b", "c"])
    assert np.linalg.norm(trained.params - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert trained.solution.residual < 1e-9
    plain = train_holders(found, ridge=RIDGE, method=FederatedCg(tolerance=1e-10, preconditioner=None, rounds=500))
    assert trained.rounds < plain.rounds
    assert trained.traffic["rounds"].up == trained.rounds * 3 * found.model.size * 8


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_fedavg_with_one_full_step_descends_to_the_same_minimum(centre: str) -> None:
    found = held(centre=centre)
    trained = train_holders(found, ridge=RIDGE, method=FedAvg(rounds=400, local_steps=1))
    assert trained.losses[-1] < trained.losses[0]
    best = train_holders(found, ridge=RIDGE, method=FederatedCg(tolerance=1e-10))
    assert trained.losses[-1] - best.losses[-1] < 0.05 * (trained.losses[0] - best.losses[-1])


def test_minibatches_see_every_row_once_in_an_epoch() -> None:
    found = held(centre="zero")
    options = FedAvg(rounds=1, local_steps=None, local_epochs=1, batch_size=7, learning_rate=1e-9)
    clients = NetworkClients(found, RIDGE, options)
    start = np.random.default_rng(0).standard_normal((found.model.size, 1))
    # steps this small do not change the gradient, so an epoch sums the batches' gradients
    moved = (start - clients.local(start, np.array([1]), round_number=0, rate=1e-9)[0]) / 1e-9
    batches = clients._plan("b", 0)
    assert sorted(batches[batches >= 0].tolist()) == list(range(20))
    rows = found.clients["b"].rows
    wanted = np.zeros_like(start)
    for some in batches:
        some = some[some >= 0]
        part = found.model.over(rows.inputs[some], centre="zero")
        residual = part.outputs(start + found.start) - found.clients["b"].targets[some]
        wanted += part.vjp(residual) / len(some) + RIDGE * (start + found.start)
    assert np.linalg.norm(moved - wanted) <= 1e-5 * np.linalg.norm(wanted)


def test_adam_lowers_the_loss_in_float32() -> None:
    options = FedAvg(
        rounds=4, local_steps=None, local_epochs=1, batch_size=8, learning_rate=1e-2, optimiser=Optimiser("adam")
    )
    trained = train_holders(held(dtype=torch.float32), ridge=RIDGE, method=options)
    assert trained.losses[-1] < trained.losses[0] * 0.9


def test_a_minibatch_rate_is_chosen_from_the_rows() -> None:
    found = held()
    clients = NetworkClients(found, RIDGE, FedAvg(batch_size=4))
    tops = []
    for one in found.clients.values():
        for row in range(one.count):
            jacobian = torch.func.jacrev(lambda p, x=one.rows.inputs[row : row + 1]: found.model.forward(p, x))(
                found.model.base
            )
            dense = torch.cat([part.reshape(3, -1) for part in jacobian], dim=1).numpy()
            tops.append(np.linalg.norm(dense, 2) ** 2)
    assert np.isclose(clients.largest_curvature, max(tops) + RIDGE)


def test_gradients_kept_are_those_of_each_clients_loss() -> None:
    found = held(centre="zero")
    trained = train_holders(found, ridge=RIDGE, method=FedAvg(rounds=2, local_steps=2))
    for name, gradient in trained.gradients.aggregate.items():
        one = found.clients[name]
        residual = one.rows.outputs(trained.params) - one.targets
        wanted = one.rows.vjp(residual) / one.count + RIDGE * trained.params
        assert np.allclose(gradient, wanted, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_done_is_refused() -> None:
    found = held()
    with pytest.raises(InputError, match="ridge above 0; found 0"):
        train_holders(found, ridge=0.0)
    with pytest.raises(InputError, match="starts at w_p"):
        train_holders(found, ridge=RIDGE, method=FedAvg(init="random"))
    with pytest.raises(MismatchError, match=r"divides 120 rows .* there are 5 inputs"):
        holders(found.model, np.zeros((5, 8)), np.zeros(5, np.int64), PARTITION)
    with pytest.raises(InputError, match="no preconditioner"):
        CurvatureSolver("cg").inverse(found.clients["a"].rows, RIDGE)
