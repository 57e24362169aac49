"""Linearized networks trained across clients, against dense least squares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from probekit.errors import InputError, MismatchError
from probekit.federated.in_process import InProcess
from probekit.federated.methods.cg import FederatedCg
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.linearize import Linearized
from probekit.models.fitting import FitPlan
from probekit.models.network_holding import NetworkHolding
from probekit.models.network_problem import NetworkProblem
from probekit.models.networks import described, linearized, network
from probekit.models.optimiser import Optimiser
from probekit.models.pretraining import Pretraining, pretrain
from probekit.values import EmbeddingSet, EncodingSpec, Partition

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


def small(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network small enough for dense algebra."""
    return nn.Sequential(nn.Linear(shape[0], 6), nn.LeakyReLU(0.01), nn.Linear(6, classes))


@dataclass(frozen=True, eq=False)
class Held:
    """Three clients and a server; client a's labels are all 0."""

    problem: NetworkProblem
    data: EmbeddingSet

    @property
    def model(self) -> Linearized:
        return linearized(self.problem.network)

    def client(self, name: str) -> NetworkHolding:
        return self.problem.hold(self.data, PARTITION.clients[name])

    def train(self, **options: Any) -> Trained:
        return train(self.data, PARTITION, problem=self.problem, **{"ridge": RIDGE, **options})


def held(*, centre: str = "wp", precision: str = "float64") -> Held:
    inputs, labels = inputs_and_labels()
    name = "py:tests.federated.test_network:small"
    rows = inputs[90:].astype(np.float32)
    trained = pretrain(network(name, (8,), 3), rows, labels[90:], options=Pretraining(epochs=5))
    labels = labels.copy()
    labels[:30] = 0
    spec = EncodingSpec("made", "0" * 64, {}, "raw", "float64")
    data = EmbeddingSet(spec, inputs, labels, [f"{row:064d}" for row in range(120)], ("x", "y", "z"))
    return Held(NetworkProblem(described(trained, name, (8,), 3, precision=precision), centre), data)


def minimum(found: Held, names: list[str]) -> Array:
    """The minimum of these clients' loss by a dense solve."""
    dense, aims = [], []
    for name in names:
        squares = found.client(name).squares()
        rows = squares.rows
        jacobian = torch.func.jacrev(lambda p, x=rows.inputs: found.model.forward(p, x))(found.model.base)
        dense.append(torch.cat([one.reshape(rows.count * 3, -1) for one in jacobian], dim=1).numpy())
        aims.append((squares.targets - rows.offset).reshape(-1, 1))
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
    trained = found.train(method=FederatedCg(tolerance=1e-10))
    wanted = minimum(found, ["a", "b", "c"])
    assert np.linalg.norm(trained.params - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert trained.solution.residual < 1e-9
    plain = found.train(method=FederatedCg(tolerance=1e-10, precondition=False, rounds=500))
    assert trained.rounds < plain.rounds
    sent = trained.traffic["rounds"]
    assert sent.rounds == trained.rounds + 1
    assert sent.rounds * 3 * found.model.size * 8 < sent.up < sent.rounds * 3 * (found.model.size * 8 + 500)


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_fedavg_with_one_full_step_descends_to_the_same_minimum(centre: str) -> None:
    found = held(centre=centre)
    trained = found.train(method=FedAvg(rounds=400, local_steps=1))
    assert trained.losses[-1] < trained.losses[0]
    best = found.train(method=FederatedCg(tolerance=1e-10))
    assert trained.losses[-1] - best.losses[-1] < 0.05 * (trained.losses[0] - best.losses[-1])


def test_minibatches_see_every_row_once_in_an_epoch() -> None:
    found = held(centre="zero")
    plan, client = FitPlan(epochs=1, batch=7, rate=1e-9, ridge=RIDGE), found.client("b")
    start = found.problem.start + np.random.default_rng(0).standard_normal((found.model.size, 1))
    # steps this small do not change the gradient, so an epoch sums the batches' gradients
    moved = (start - found.problem.fit(client, "b", plan, {"params": start})) / 1e-9
    batches = plan.batches(20, "b")
    assert sorted(batches[batches >= 0].tolist()) == list(range(20))
    squares = client.squares()
    wanted = np.zeros_like(start)
    for some in batches:
        some = some[some >= 0]
        part = found.model.over(squares.rows.inputs[some], centre="zero")
        residual = part.outputs(start) - squares.targets[some]
        wanted += part.vjp(residual) / len(some) + RIDGE * start
    assert np.linalg.norm(moved - wanted) <= 1e-5 * np.linalg.norm(wanted)


def test_adam_lowers_the_loss_in_float32() -> None:
    options = FedAvg(
        rounds=4, local_steps=None, local_epochs=1, batch_size=8, learning_rate=1e-2, optimiser=Optimiser("adam")
    )
    trained = held(precision="float32").train(method=options)
    assert trained.losses[-1] < trained.losses[0] * 0.9


def test_a_minibatch_rate_is_chosen_from_the_rows() -> None:
    found = held()
    clients = InProcess.of(found.problem, found.data, PARTITION.clients)
    answers = clients.ask("scales", plan={"ridge": RIDGE, "batch": 4})
    tops = []
    for name in PARTITION.clients:
        rows = found.client(name).squares().rows
        for row in range(rows.count):
            jacobian = torch.func.jacrev(lambda p, x=rows.inputs[row : row + 1]: found.model.forward(p, x))(
                found.model.base
            )
            dense = torch.cat([part.reshape(3, -1) for part in jacobian], dim=1).numpy()
            tops.append(np.linalg.norm(dense, 2) ** 2)
    assert np.isclose(max(one.values["curvature"] for one in answers.each()), max(tops) + RIDGE)


def test_importance_is_the_diagonal_of_the_curvature() -> None:
    found = held()
    clients = InProcess.of(found.problem, found.data, PARTITION.clients)
    total = clients.ask("importance", {"params": found.problem.start}).total()
    each = [found.client(name).squares() for name in PARTITION.clients]
    basis = np.eye(found.model.size)
    wanted = [sum(float(np.square(one.rows.jvp(v[:, None])).sum()) for one in each) for v in basis]
    assert np.allclose(total.arrays["importance"][:, 0], wanted, rtol=1e-9, atol=1e-12)


def test_gradients_kept_are_those_of_each_clients_loss() -> None:
    found = held(centre="zero")
    trained = found.train(method=FedAvg(rounds=2, local_steps=2))
    assert trained.gradients is not None
    assert set(trained.gradients.aggregate) == {"a", "b", "c"}
    for name, gradient in trained.gradients.aggregate.items():
        one = found.client(name).squares()
        residual = one.rows.outputs(trained.params) - one.targets
        wanted = one.rows.vjp(residual) / one.count + RIDGE * trained.params
        assert np.allclose(gradient, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_a_random_start_is_a_network_made_anew(centre: str) -> None:
    problem = held(centre=centre).problem
    one, two, other = (FedAvg(init="random", seed=seed).initial(problem) for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.allclose(one, other)
    sizes = [
        float(np.abs((start + problem.origin)[problem.blocks[name]]).max())
        for start in (one, other)
        for name in list(problem.blocks)[:1]
    ]
    assert all(0 < size < 1 for size in sizes)  # as layers usually are
    assert float(np.abs(one - problem.start).max()) > 0


def test_what_cannot_be_done_is_refused() -> None:
    found = held()
    with pytest.raises(InputError, match=r"ridge above 0; found 0"):
        found.train(ridge=0.0, method="cg")
    with pytest.raises(InputError, match="closed-form needs statistics"):
        found.train(method="closed-form")
    with pytest.raises(MismatchError, match=r"divides 120 rows, the embedding set has 5"):
        replace(found, data=found.data.select(np.arange(5))).train(method="cg")
    with pytest.raises(InputError, match="no preconditioner"):
        CurvatureSolver("cg").inverse(found.client("a").squares().rows, RIDGE)
