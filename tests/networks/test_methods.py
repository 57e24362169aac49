"""Unlearning from whole networks, against plain loops of torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.federated.state import State
from probekit.federated.training.fedavg import FedAvg
from tests.networks.loops import RIDGE, Loops, Problem, make_problem
from tests.oracles import relative_error
from tests.unlearning.problems import forget

ROUNDS = 4
LEAVER = "b"
RETAINED = "ac"
PLANS = {
    "all rows": LocalPlan(0.05, steps=3),
    "momentum": LocalPlan(0.02, epochs=3, batch_size=5, optimizer=Sgd(0.9), seed=3),
    "adam": LocalPlan(0.01, steps=5, batch_size=6, optimizer=Adam()),
}


@dataclass(frozen=True, eq=False)
class Trained:
    """A network that FedAvg trained, by probekit and in loops; one client leaves."""

    problem: Problem
    state: State

    @property
    def loops(self) -> Loops:
        return self.problem.loops

    @cached_property
    def rounds(self) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """The parameters before each round, and those that the clients sent back."""
        rounds = []
        params = self.loops.start
        for number in range(ROUNDS):
            rounds.append((params, self.loops.locals(params, "abc", number)))
            params = self.loops.mean(rounds[-1][1])
        return rounds

    @property
    def end(self) -> Tensor:
        return self.loops.mean(self.rounds[-1][1])

    def error(self, method: str, expected: Tensor) -> float:
        """Of what a method changes, as a share of that."""
        after = forget(self.state, self.problem.asked, method, clients={LEAVER}).params
        return relative_error(after - self.end.numpy(), (expected - self.end).numpy())

    def tensors(self, vector: Tensor) -> list[Tensor]:
        """The parts of a flat vector, layer by layer."""
        return list(vector.split([weight.numel() for weight in self.loops.module.parameters()]))


@pytest.fixture(scope="module", params=PLANS)
def plan(request: pytest.FixtureRequest) -> LocalPlan:
    return PLANS[request.param]


@pytest.fixture(
    scope="module",
    params=[(name, linearize) for name in ("mlp:5-4", "pooled") for linearize in (True, False)],
    ids=lambda pair: f"{'linearized' if pair[1] else 'conventional'} {pair[0]}",
)
def trained(request: pytest.FixtureRequest, plan: LocalPlan) -> Trained:
    network, linearize = request.param
    problem = make_problem(network, linearize=linearize, plan=plan)
    trainer = FedAvg(ROUNDS, plan, keep=frozenset({"history"}))
    return Trained(problem, trainer.train(problem.asked, ridge=RIDGE))


def test_retraining_starts_anew_without_the_client(trained: Trained) -> None:
    loops = trained.loops
    expected = loops.rounds(loops.start, RETAINED, range(ROUNDS))
    assert trained.error("retrain", expected) < 1e-10


def test_continued_training_goes_on_without_the_client(trained: Trained) -> None:
    expected = trained.loops.rounds(trained.end, RETAINED, range(ROUNDS, ROUNDS + 3))
    assert trained.error("cf:rounds=3", expected) < 1e-10


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ("steps=7,rate_scale=0.5", {}),
        ("steps=9,rate_scale=2,max_norm=0.02", {"radius": 0.02}),
        ("steps=4,rate_scale=1,clip=0.05", {"clip": 0.05}),
    ],
)
def test_ascent_climbs_the_clients_loss(trained: Trained, options: str, limits: Any) -> None:
    chosen = dict(pair.split("=") for pair in options.split(","))
    rate = float(chosen["rate_scale"]) * (trained.loops.plan.rate or 0)
    plan = replace(trained.loops.plan, rate=rate, steps=int(chosen["steps"]), epochs=None)
    share = limits.get("radius", 0.1)
    radius = share * float((trained.end - trained.loops.center).norm())
    limits = {**limits, "radius": radius}
    climbing = replace(trained.loops, plan=plan)
    expected = climbing.local(trained.end, LEAVER, ROUNDS, climb=True, **limits)
    assert trained.error(f"sga:{options}", expected) < 1e-10


@pytest.mark.parametrize("post", [0, 2])
def test_projected_ascent_starts_at_the_retained_mean(trained: Trained, post: int) -> None:
    """From (w - p_u w_u) / (1 - p_u) up in a ball, then rounds without the client."""
    loops = trained.loops
    share = loops.shares("abc")[LEAVER]
    reference = (trained.end - share * trained.rounds[-1][1][LEAVER]) / (1 - share)
    climbing = replace(loops, plan=replace(loops.plan, steps=6, epochs=None))
    radius = 0.03 * float((reference - loops.center).norm())
    expected = climbing.local(reference, LEAVER, ROUNDS, climb=True, radius=radius)
    expected = loops.rounds(expected, RETAINED, range(ROUNDS + 1, ROUNDS + 1 + post))
    assert trained.error(f"pga:steps=6,post={post}", expected) < 1e-10


def test_federaser_calibrates_each_layer_of_each_client(trained: Trained) -> None:
    """M + sum p_c |U_c| V_c / |V_c|, with half of the local steps, rounded up, for V_c."""
    loops = trained.loops
    plan = loops.plan
    half = replace(plan, steps=-(-plan.steps // 2)) if plan.steps else replace(plan, epochs=2)
    short = replace(loops, plan=half)
    shares = loops.shares(RETAINED)
    model = loops.mean({name: trained.rounds[0][1][name] for name in RETAINED})
    for number in range(1, ROUNDS):
        start, uploads = trained.rounds[number]
        step = torch.zeros_like(model)
        for name, upload in short.locals(model, RETAINED, number).items():
            pairs = zip(
                trained.tensors(uploads[name] - start), trained.tensors(upload - model), strict=True
            )
            layers = [kept.norm() * made / made.norm() for kept, made in pairs]
            step += shares[name] * torch.cat(layers)
        model = model + step
    assert trained.error("federaser", model) < 1e-10


@pytest.mark.parametrize("weights", ["squares", "sum"])
def test_fedrecovery_subtracts_residuals(trained: Trained, weights: str) -> None:
    """w - sum q_i p_u (U_u - a_i) / (1 - p_u), with q_i = |a_i|^2 / sum |a_j|^2, or 1."""
    share = trained.loops.shares("abc")[LEAVER]
    updates = [trained.loops.mean(uploads) - start for start, uploads in trained.rounds]
    squares = torch.stack([update.square().sum() for update in updates])
    factors = squares / squares.sum() if weights == "squares" else torch.ones_like(squares)
    expected = trained.end
    for factor, update, (start, uploads) in zip(factors, updates, trained.rounds, strict=True):
        expected = expected - factor * share * (uploads[LEAVER] - start - update) / (1 - share)
    assert trained.error(f"fedrecovery:weights={weights}", expected) < 1e-10
