"""Unlearning from whole networks, against plain loops of torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from probekit.certificates.certificate import certify
from probekit.federated.federation import Federation, InProcess
from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.federated.state import State
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.fedavg import FedAvg
from probekit.unlearning.methods.ascent import POWER_STEPS
from probekit.unlearning.methods.ferrari import NOISE_STREAM
from probekit.unlearning.methods.flipping import LABEL_STREAM
from probekit.unlearning.methods.fused import ADAPTER_STREAM
from tests.networks.loops import (
    RIDGE,
    Adapted,
    Loops,
    Problem,
    flat_weights,
    make_problem,
    tensors,
)
from tests.networks.modules import CLASSES
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


PROBLEMS = [
    ("mlp:5-4", "linearized", "all rows"),
    ("mlp:5-4", "conventional", "momentum"),
    ("mlp:5-4", "conventional", "adam"),
    ("pooled", "linearized", "momentum"),
    ("pooled", "linearized", "adam"),
    ("pooled", "conventional", "all rows"),
    pytest.param(("cnn", "conventional", "momentum"), marks=pytest.mark.slow),
    pytest.param(("cnn", "linearized", "adam"), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=PROBLEMS, ids=", ".join)
def trained(request: pytest.FixtureRequest) -> Trained:
    network, kind, plan_name = request.param
    plan = PLANS[plan_name]
    problem = make_problem(network, linearize=kind == "linearized", plan=plan)
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


def changes(trained: Trained) -> list[Tensor]:
    """How far a round of the retained clients moves the weights of each layer, in the mean."""
    uploads = trained.loops.locals(trained.end, RETAINED, ROUNDS)
    moved = torch.stack([(upload - trained.end).abs() for upload in uploads.values()])
    return trained.tensors(moved.mean(dim=0))


def drawn() -> np.random.Generator:
    """The stream of FUSED's default seed."""
    return np.random.Generator(np.random.PCG64([0, ADAPTER_STREAM]))


def with_adapter(trained: Trained, adapter: list[Tensor], added: Any) -> Tensor:
    """The weights after two rounds of the adapter alone."""
    module = Adapted(trained.loops.module, trained.end, adapter, added)
    adapted = replace(trained.loops, module=module)
    end = adapted.rounds(adapted.start, RETAINED, range(ROUNDS, ROUNDS + 2))
    nn.utils.vector_to_parameters(end, module.parameters())
    return module.weights.detach()


def test_fused_trains_some_entries_of_the_layers_that_change_most(trained: Trained) -> None:
    numbers = trained.tensors(torch.arange(len(trained.end)))
    pairs = sorted(zip(changes(trained), numbers, strict=True), key=lambda pair: -pair[0].mean())
    candidates = torch.cat([part for _, part in pairs[:2]]).numpy()
    entries = np.sort(drawn().choice(candidates, round(0.3 * len(candidates)), replace=False))

    def added(adapter: list[nn.Parameter]) -> Tensor:
        return torch.zeros_like(trained.end).index_add(0, torch.from_numpy(entries), adapter[0])

    expected = with_adapter(trained, [torch.zeros(len(entries), dtype=torch.float64)], added)
    assert trained.error("fused:rounds=2,density=0.3", expected) < 1e-10


def test_fused_adds_a_matrix_of_low_rank(trained: Trained) -> None:
    """A B^T on the matrix that changes most; of a convolution, with a row for each kernel."""
    layers = list(trained.loops.module.parameters())
    moved = changes(trained)
    matrices = [number for number, layer in enumerate(layers) if layer.ndim > 1]
    chosen = max(matrices, key=lambda number: moved[number].mean())
    rows = len(layers[chosen])
    columns = layers[chosen].numel() // rows
    down = torch.from_numpy(np.linalg.qr(drawn().normal(size=(rows, 2)))[0])
    up = torch.zeros(columns, 2, dtype=torch.float64)

    def added(adapter: list[nn.Parameter]) -> Tensor:
        parts = [torch.zeros_like(part) for part in trained.tensors(trained.end)]
        parts[chosen] = (adapter[0] @ adapter[1].T).flatten()
        return torch.cat(parts)

    expected = with_adapter(trained, [down, up], added)
    assert trained.error("fused:rounds=2,rank=2", expected) < 1e-10


@dataclass(frozen=True, eq=False)
class Elastic(Loops):
    """Loops whose clients climb their loss minus 1/2 sum pull_i (w_i - anchor_i)^2."""

    anchor: Tensor = field(kw_only=True)
    pull: Tensor = field(kw_only=True)

    def loss(self, module: nn.Module, samples: Tensor, labels: Tensor) -> Tensor:
        moved = flat_weights(module) - self.anchor
        return super().loss(module, samples, labels) - (self.pull * moved.square()).sum() / 2


def jacobians(loops: Loops, params: Tensor, clients: str) -> tuple[Tensor, Tensor]:
    """J (n, k, p) and the scores of the clients' rows at these parameters, one by one."""
    module = copy.deepcopy(loops.module)
    nn.utils.vector_to_parameters(params.clone(), module.parameters())
    weights = list(module.parameters())
    scores = torch.cat([module(loops.clients[client][0]) for client in clients])
    rows = [torch.autograd.grad(score, weights, retain_graph=True) for score in scores.flatten()]
    flat = torch.stack([nn.utils.parameters_to_vector(row) for row in rows])
    return flat.view(*scores.shape, -1), scores.detach()


@pytest.mark.parametrize("source", ["retained", "target"])
def test_elastic_ascent_is_pulled_back_by_importance(trained: Trained, source: str) -> None:
    """F_i = 1/n sum |df/dw_i|^2, at least 0.05 of its mean; its strength from J^T l'' J."""
    loops = trained.loops
    if len(trained.end) > 1000:
        pytest.skip("its curvature does not fit into memory")
    J = jacobians(loops, trained.end, RETAINED if source == "retained" else LEAVER)[0]
    importance = J.square().sum(dim=(0, 1)) / len(J)
    importance = importance.clamp(min=0.05 * float(importance.mean()))
    J, scores = jacobians(loops, trained.end, LEAVER)
    p = scores.softmax(dim=1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    if loops.squares:
        curvature = torch.eye(CLASSES).double().expand_as(curvature)
    H = torch.einsum("nkp,nkl,nlq->pq", J, curvature, J) / len(J)
    scaled = (
        (H + RIDGE * torch.eye(len(H)).double()) / importance.sqrt() / importance.sqrt()[:, None]
    )
    vector = torch.from_numpy(np.random.default_rng(0).normal(size=len(H)))
    for _ in range(POWER_STEPS):
        vector = scaled @ (vector / vector.norm())
    pull = 1.2 * vector.norm() * importance
    plan = LocalPlan(1 / float(pull.max()), steps=7)
    options = {"anchor": trained.end, "pull": pull, "plan": plan}
    climbing = Elastic(**{**vars(loops), **options})
    radius = 0.1 * float((trained.end - loops.center).norm())
    expected = climbing.local(trained.end, LEAVER, ROUNDS, climb=True, radius=radius)
    assert trained.error(f"ew-sga:steps=7,importance={source}", expected) < 1e-10


@pytest.mark.parametrize("labels", ["row", "client"])
def test_flipping_trains_the_client_on_drawn_labels(trained: Trained, labels: str) -> None:
    loops = trained.loops
    samples, truth = loops.clients[LEAVER]
    params = trained.end
    for number in range(ROUNDS, ROUNDS + 2):
        generator = replace(loops.plan, round=number).generator(LEAVER, LABEL_STREAM)
        size = len(truth) if labels == "row" else 1
        drawn = torch.from_numpy(generator.integers(CLASSES, size=size)).expand(len(truth))
        flipped = replace(loops, clients={**loops.clients, LEAVER: (samples, drawn)})
        params = loops.mean(flipped.locals(params, "abc", number))
    expected = loops.rounds(params, RETAINED, [ROUNDS + 2])
    assert trained.error(f"flipping:post=1,labels={labels}", expected) < 1e-10


@dataclass(frozen=True, eq=False)
class Blind(Loops):
    """Loops on |f(x) - f(x + d)| / |d|, with d on the first columns, in the mean over draws."""

    generator: np.random.Generator = field(kw_only=True)

    def loss(self, module: nn.Module, samples: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros(len(samples), dtype=torch.float64)
        for _ in range(3):
            size = self.generator.uniform(0.05, 1.0, (len(samples), 1))
            drawn = torch.from_numpy(size * self.generator.normal(size=(len(samples), 4)))
            noise = torch.zeros_like(samples).flatten(start_dim=1)
            noise[:, :4] = drawn
            changed = module(samples) - module(samples + noise.view_as(samples))
            total = total + changed.norm(dim=1) / drawn.norm(dim=1)
        return total.mean() / 3


def test_ferrari_descends_what_the_scores_see_of_noise(trained: Trained) -> None:
    loops = trained.loops
    own = loops.plan
    plan = LocalPlan(0.05, steps=3, batch_size=own.batch_size, seed=own.seed)
    generator = replace(plan, round=ROUNDS).generator(LEAVER, NOISE_STREAM)
    blind = Blind(**{**vars(loops), "plan": plan}, generator=generator)
    expected = blind.local(trained.end, LEAVER, ROUNDS)
    method = "ferrari:columns=0:4,steps=3,rate=0.05,draws=3"
    assert trained.error(method, expected) < 1e-10


class Outputs(nn.Module):
    """Some outputs of a network."""

    def __init__(self, module: nn.Module, columns: list[int]) -> None:
        super().__init__()
        self.module = module
        self.columns = columns

    def forward(self, samples: Tensor) -> Tensor:
        return self.module(samples)[:, self.columns]


@pytest.mark.parametrize("linearize", [True, False])
@pytest.mark.parametrize("method", ["retrain", "cf:rounds=2", "federaser"])
def test_classes_that_nobody_has_leave_the_network(method: str, linearize: bool) -> None:
    """Only the client that leaves has rows of class 1; the others go on with two outputs."""
    plan = PLANS["momentum"]
    problem = make_problem("pooled", linearize=linearize, plan=plan)
    rows = dict(problem.rows)
    for name in RETAINED:
        rows[name] = replace(rows[name], labels=2 * (rows[name].labels // 2))
    samples = {name: tensors(part, problem.model.sample_shape) for name, part in rows.items()}
    loops = replace(problem.loops, clients=samples)
    trainer = FedAvg(ROUNDS, plan, keep=frozenset({"history"}))
    trained = Trained(
        replace(problem, rows=rows, loops=loops),
        trainer.train(Federation.of(InProcess(rows), problem.model), ridge=RIDGE),
    )
    after = forget(trained.state, trained.problem.asked, method, clients={LEAVER})
    assert after.model.classes == 2
    scores = after.model.outputs(rows["a"]).at(after.params)[0]
    wide = problem.model.outputs(rows["a"]).at(after.params)[0]
    np.testing.assert_allclose(scores, wide[:, [0, 2]], rtol=0, atol=1e-14)
    two = {name: (part, labels // 2) for name, (part, labels) in samples.items()}
    narrow = replace(loops, clients=two, module=Outputs(loops.module, [0, 2]))
    if method == "retrain":
        expected = narrow.rounds(loops.start, RETAINED, range(ROUNDS))
        assert trained.error(method, expected) < 1e-10
    if method == "cf:rounds=2":
        expected = narrow.rounds(trained.end, RETAINED, range(ROUNDS, ROUNDS + 2))
        assert trained.error(method, expected) < 1e-10


@pytest.mark.parametrize("distance", [1e-2, 1e-7])
def test_rounds_end_within_the_distance_that_was_asked_for(distance: float) -> None:
    """Also from a training that was far too short, beside which the minimum is large."""
    plan = LocalPlan(1e-4, steps=1)
    problem = make_problem("pooled", linearize=True, plan=plan)
    state = FedAvg(1, plan).train(problem.asked, ridge=RIDGE)
    after = forget(state, problem.asked, f"rounds:distance={distance}", clients={LEAVER})
    retained = problem.asked.without({LEAVER})
    assert certify(after, retained).distance <= distance
    minimum = ConjugateGradients(tolerance=1e-12).train(retained, ridge=RIDGE).params
    assert np.linalg.norm(after.params - minimum) <= distance
