"""Whole networks trained by clients, against plain loops of torch; a linear layer is a head."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probekit.errors import InputError, MissingClients
from probekit.federated.federation import Federation, InProcess
from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.federated.state import Trainer
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.federated.transports.loopback import Loopback
from probekit.linear.model import LinearModel
from probekit.networks import architectures
from probekit.networks.architectures import Own
from probekit.networks.pretraining import network_model
from probekit.objective import CrossEntropy, Squares
from probekit.records import dump, parse
from tests.networks.loops import RIDGE, Linearized, Problem, as_head, make_problem
from tests.networks.modules import samples_of
from tests.oracles import Array, relative_error

PLANS = {
    "all rows": LocalPlan(0.05, steps=3),
    "momentum": LocalPlan(0.02, epochs=2, batch_size=5, optimizer=Sgd(0.9), seed=3),
    "adam": LocalPlan(0.01, epochs=2, batch_size=4, drop_last=True, optimizer=Adam()),
    "adam with decay": LocalPlan(0.01, steps=5, batch_size=6, optimizer=Adam(weight_decay=0.1)),
}
FEW = LocalPlan(0.03, epochs=1, batch_size=8, optimizer=Sgd(0.5))


def check_fedavg(problem: Problem, *, rounds: int = 3, uniform: bool = False) -> None:
    """What training adds to the start is what the loops add; smaller than the parameters."""
    loops = problem.loops
    start = problem.model.start()
    np.testing.assert_array_equal(start, loops.start)
    expected = loops.rounds(loops.start, "abc", range(rounds)) - loops.start
    state = FedAvg(rounds, loops.plan, uniform=uniform).train(problem.asked, ridge=RIDGE)
    assert relative_error(state.params - start, expected.numpy()) < 1e-10


@pytest.mark.parametrize("linearize", [True, False])
@pytest.mark.parametrize(
    ("network", "plan"),
    [(name, plan) for name in ("mlp:5-4", "pooled") for plan in PLANS] + [("residual", "momentum")],
)
def test_fedavg_is_a_loop_over_torchs_optimizers(network: str, linearize: bool, plan: str) -> None:
    check_fedavg(make_problem(network, linearize=linearize, plan=PLANS[plan]))


@pytest.mark.parametrize("linearize", [True, False])
def test_fedavg_of_the_papers_cnn(linearize: bool) -> None:
    plan = LocalPlan(0.01, epochs=1, batch_size=7, optimizer=Sgd(0.9))
    check_fedavg(make_problem("cnn", linearize=linearize, plan=plan), rounds=2)


@pytest.mark.parametrize(
    "options",
    [
        {"linearize": True, "squares": False},
        {"linearize": True, "squares": False, "center": "zero"},
        {"linearize": True, "center": "zero"},
        {"linearize": False, "squares": True},
        {"linearize": False, "uniform": True},
    ],
)
def test_losses_centers_and_averages(options: dict[str, Any]) -> None:
    problem = make_problem("mlp:5-4", plan=FEW, **options)
    check_fedavg(problem, uniform=problem.loops.uniform)


def jacobian_and_scores(problem: Problem) -> tuple[Array, Array, Array]:
    """J (n k, p) and f(x; w_p) (n, k) of all clients' rows by autograd, and one-hot labels."""
    module = problem.loops.module
    assert isinstance(module, Linearized)
    clients = problem.loops.clients.values()
    pairs = [module.expansion(sample) for samples, _ in clients for sample in samples]
    J = np.concatenate([jacobian.numpy() for _, jacobian in pairs])
    f = np.stack([scores.numpy() for scores, _ in pairs])
    return J, f, np.eye(3)[np.concatenate([labels for _, labels in clients])]


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("center", ["wp", "zero"])
@pytest.mark.parametrize("network", ["mlp:5-4", "pooled"])
def test_cg_ends_where_the_dense_jacobian_says(network: str, center: str, precision: Any) -> None:
    """d minimizes 1/2n |f + J d - y|^2 + ridge/2 |d + w_p - center|^2, by an SVD."""
    problem = make_problem(network, linearize=True, plan=FEW, center=center)
    J, f, Y = jacobian_and_scores(problem)
    origin = (problem.loops.center - problem.loops.start).numpy()
    rows = np.vstack([J / np.sqrt(len(Y)), np.sqrt(RIDGE) * np.eye(J.shape[1])])
    right = np.concatenate([(Y - f).ravel() / np.sqrt(len(Y)), np.sqrt(RIDGE) * origin])
    expected = np.linalg.lstsq(rows, right, rcond=None)[0]
    model = replace(problem.model, precision=precision)
    asked = Federation.of(InProcess(problem.rows), model)
    state = ConjugateGradients(tolerance=1e-12).train(asked, ridge=RIDGE)
    assert relative_error(state.params - model.start(), expected) < 1e-10


def test_cg_ends_where_torchs_gradient_of_cross_entropy_is_0() -> None:
    problem = make_problem("pooled", linearize=True, squares=False, plan=FEW)
    state = ConjugateGradients(tolerance=1e-12).train(problem.asked, ridge=RIDGE)
    loops = problem.loops
    samples, labels = (torch.cat(parts) for parts in zip(*loops.clients.values(), strict=True))
    norms = []
    for params in (problem.model.start(), state.params):
        nn.utils.vector_to_parameters(torch.tensor(params), loops.module.parameters())
        slopes = torch.autograd.grad(
            loops.loss(loops.module, samples, labels), list(loops.module.parameters())
        )
        norms.append(float(nn.utils.parameters_to_vector(slopes).norm()))
    assert norms[1] < 1e-12 < norms[0]


@pytest.mark.parametrize("loss", [Squares(), CrossEntropy()])
@pytest.mark.parametrize("linearize", [True, False])
@pytest.mark.parametrize("plan", PLANS)
def test_a_linear_layer_trains_as_a_head(plan: str, linearize: bool, loss: Any) -> None:
    squares = isinstance(loss, Squares)
    problem = make_problem(
        "linear", linearize=linearize, squares=squares, center="zero", plan=PLANS[plan]
    )
    trainer = FedAvg(3, PLANS[plan])
    trained = trainer.train(problem.asked, ridge=RIDGE).params
    head = Federation.of(InProcess(problem.rows), LinearModel(6, 3, loss, "penalized"))
    start = as_head(problem.model.start())
    expected = trainer.continued(head, start, range(3), ridge=RIDGE)
    assert relative_error(as_head(trained) - start, expected - start) < 1e-12


@pytest.mark.parametrize("loss", [Squares(), CrossEntropy()])
def test_a_linear_layer_ends_where_a_head_does(loss: Any) -> None:
    squares = isinstance(loss, Squares)
    problem = make_problem("linear", linearize=True, squares=squares, center="zero", plan=FEW)
    trained = ConjugateGradients(tolerance=1e-12).train(problem.asked, ridge=RIDGE).params
    head = Federation.of(InProcess(problem.rows), LinearModel(6, 3, loss, "penalized"))
    solver = ClosedForm() if squares else LbfgsRounds(tolerance=1e-11)
    expected = solver.train(head, ridge=RIDGE).params
    assert relative_error(as_head(trained), expected) < 1e-10


TRAINERS: dict[str, Trainer] = {
    "fedavg": FedAvg(2, FEW, keep=frozenset({"history", "gradients"})),
    "fedavg of some": FedAvg(3, PLANS["adam"], participation=0.7, uniform=True),
    "fedavg from elsewhere": FedAvg(1, FEW, start="random"),
    "knot": KnotTraining(2, FedAvg(2, FEW)),
    "cg": ConjugateGradients(keep=frozenset({"gradients"})),
}


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("trainer", "linearize"),
    [(name, linearize) for name in TRAINERS for linearize in (True, False)][:-1],
)
def test_bytes_give_the_same_bits(trainer: str, linearize: bool, precision: Any) -> None:
    problem = make_problem("pooled", linearize=linearize, plan=FEW)
    model = replace(problem.model, precision=precision)
    states = [
        TRAINERS[trainer].train(Federation.of(transport(problem.rows), model), ridge=RIDGE)
        for transport in (InProcess, Loopback)
    ]
    assert dump(states[0]) == dump(states[1])
    assert not np.array_equal(states[0].params, model.start())


@pytest.mark.parametrize(
    ("trainer", "linearize", "reason"),
    [
        (ClosedForm(), True, "needs a LinearModel"),
        (LbfgsRounds(), True, "for heads; this is a LinearizedNetwork. Train by cg"),
        (ConjugateGradients(), False, r"linearize \(--linearize\)"),
        (FedAvg(1, LocalPlan(steps=1)), True, "Pass a rate"),
        (FedAvg(1, LocalPlan(steps=1)), False, "Pass a rate"),
        (FedAvg(1, FEW, keep=frozenset({"statistics"})), False, "keep gradients or history"),
        (KnotTraining(2, FedAvg(1, FEW), frozenset({"statistics"})), True, "those of a head"),
    ],
)
def test_trainers_of_heads_refuse_networks_and_ask_nobody(
    trainer: Trainer, linearize: bool, reason: str
) -> None:
    asked = make_problem("mlp:5-4", linearize=linearize, plan=FEW).asked
    with pytest.raises(InputError, match=reason):
        trainer.train(asked, ridge=RIDGE)
    assert asked.traffic.rounds == 0


OWN = """
from torch import nn


def factory(num_classes, width=4):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, num_classes))
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of code that nobody has asked for yet."""
    (tmp_path / "somebodys_network.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(architectures, "_named", set())
    monkeypatch.delitem(sys.modules, "somebodys_network", raising=False)
    return "py:somebodys_network:factory:width=5"


def forget_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    monkeypatch.setattr(architectures, "_named", set())
    monkeypatch.delitem(sys.modules, "somebodys_network", raising=False)
    architectures.built.cache_clear()


@pytest.mark.parametrize("linearize", [True, False])
def test_own_code_is_run_where_it_was_named(
    own_code: str, linearize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    architectures.trust(own_code)
    named = architectures.architecture(own_code, (4,), 3)
    options: Any = {"sample_shape": (4,), "classes": 3, "loss": CrossEntropy()}
    model = network_model(named, linearize=linearize, **options)
    clients = {name: samples_of(model, 20, seed=seed) for seed, name in enumerate("ab")}
    trainer = FedAvg(2, FEW)
    here = trainer.train(Federation.of(InProcess(clients), model), ridge=RIDGE)
    forget_code(monkeypatch)
    elsewhere = Federation.of(Loopback(clients), model)
    with pytest.raises(MissingClients) as caught:
        trainer.train(elsewhere, ridge=RIDGE)
    for failure in caught.value.reasons.values():
        assert failure.reason == "refused"
        assert f"{own_code} is own code" in failure.detail
    assert "somebodys_network" not in sys.modules
    architectures.trust(own_code)
    assert dump(trainer.train(elsewhere, ridge=RIDGE)) == dump(here)
    assert "somebodys_network" in sys.modules


@pytest.mark.parametrize("name", ["somebodys_network:factory", "mlp", "cnn", "", "py:"])
def test_nothing_else_is_taken_for_a_name_that_was_given(own_code: str, name: str) -> None:
    """What a message calls own code is never run for looking like the name of a packaged one."""
    architectures.trust(own_code)
    network = parse(dump(Own(name, 3)), Own, max_bytes=10**4)
    with pytest.raises(InputError, match="is own code"):
        network.build()
    assert "somebodys_network" not in sys.modules
