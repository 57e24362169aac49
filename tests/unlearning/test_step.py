"""FedRemoval and its relatives against the algebra they rest on, with explicit matrices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError, NotFoundError, SolverError
from probekit.federated.federation import Answers
from probekit.federated.in_process import InProcess
from probekit.federated.message import Ask
from probekit.federated.methods.closed_form import ClosedForm
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.trained import Trained
from probekit.linear.design import INTERCEPTS, SCALINGS
from probekit.linear.spectrum import rows_effective_dimension
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material, Unlearner, method
from probekit.unlearning.methods.fedremoval import FedRemoval, server_plan
from probekit.unlearning.methods.line import FedRemovalLine
from probekit.unlearning.methods.pcg import FedRemovalPcg
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.oracles import columns, one_hot, relative
from tests.unlearning.conftest import Run, make_run

Array = NDArray[np.float64]
FORGET = UnlearnRequest.of(["1"])
BIASED = FedAvg(rounds=7, local_steps=5)


@dataclass(frozen=True)
class Explicit:
    """The retained problem and the server's curvature as matrices, made from rows."""

    curvature: Array
    linear: Array
    server: Array
    server_gram: Array
    gram: Array

    @classmethod
    def of(cls, run: Run, *clients: str) -> Explicit:
        design, rows = run.trained.problem.design, run.rows_without(*clients)
        X = columns(run.embeddings.to_numpy()[rows], intercept=design.intercept, view=design.view)
        Xp = columns(run.embeddings.to_numpy()[run.partition.server], intercept=design.intercept, view=design.view)
        Y = one_hot(run.embeddings.labels[rows], design.classes)
        ridge = run.trained.ridge / (1 if run.trained.scaling == "mean" else len(rows))
        P = np.eye(X.shape[1])
        P[-1, -1] = 0 if design.intercept == "free" else 1
        gram, server_gram = X.T @ X / len(X), Xp.T @ Xp / len(Xp)
        return cls(gram + ridge * P, X.T @ Y / len(X), server_gram + ridge * P, server_gram, gram)

    def gradient(self, params: Array) -> Array:
        return self.curvature @ params - self.linear

    @property
    def optimum(self) -> Array:
        return np.asarray(np.linalg.solve(self.curvature, self.linear))

    def loss(self, params: Array) -> float:
        return float((params * (self.curvature @ params / 2 - self.linear)).sum())


@dataclass(eq=False)
class Counting(InProcess):
    """Clients that count how often each question is put to them."""

    asked: Counter[str] = field(default_factory=Counter)

    def ask(self, kind: str, *args: Any, **options: Any) -> Answers:
        self.asked[kind] += len(options.get("clients") or self.clients)
        return super().ask(kind, *args, **options)


def online(run: Run, *gone: str) -> Counting:
    return Counting(run.trained.problem, run.online(*gone).holdings)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("keep", ["statistics", "gradients"])
@pytest.mark.parametrize("method", ["closed-form", BIASED])
def test_the_step_is_the_servers_newton_step_with_the_ridge_once(
    intercept: str, scaling: str, keep: str, method: Any
) -> None:
    ridge = 0.1 if scaling == "mean" else 10.0
    run = make_run(design={"intercept": intercept}, scaling=scaling, keep=keep, method=method, ridge=ridge)
    here = Explicit.of(run, "1")
    start = run.trained.params
    wanted = start - np.linalg.solve(here.server, here.gradient(start))
    found = FedRemoval().unlearn(Removal(run.trained, FORGET))
    assert relative(found.trained_after.params, wanted) < 1e-10
    assert set(found.trained_after.counts) == {"0", "2", "3", "4"}
    assert found.cost.rounds == 0
    assert (found.trained_after.statistics is None) == (keep == "gradients")
    assert found.trained_after.gradients is None
    # E1: the error is exactly -H_p^-1 dG (w - w*)
    away = start - here.optimum
    error = -np.linalg.solve(here.server, (here.gram - here.server_gram) @ away)
    assert np.linalg.norm((found.trained_after.params - here.optimum) - error) < 1e-10 * max(
        np.linalg.norm(away), np.linalg.norm(error)
    )


@pytest.mark.parametrize("seed", range(25))
def test_e3_bounds_the_step_in_the_norm_of_the_curvature(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = make_run(seed=seed, ridge=10.0 ** random.uniform(-4, 0), server=random.uniform(0.05, 0.4))
    here = Explicit.of(run, "1")
    values, vectors = np.linalg.eigh(here.curvature)
    root = vectors / np.sqrt(values) @ vectors.T
    eta = float(np.abs(np.linalg.eigvalsh(root @ (here.server - here.curvature) @ root)).max())
    found = FedRemoval().unlearn(Removal(run.trained, FORGET)).trained_after.params

    def norm(v: Array) -> float:
        return float(np.sqrt((v * (here.curvature @ v)).sum()))

    before, after = norm(run.trained.params - here.optimum), norm(found - here.optimum)
    if eta < 1:
        assert after <= eta / (1 - eta) * before * (1 + 1e-9)
    assert 2 * (here.loss(found) - here.loss(here.optimum)) == pytest.approx(after**2, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_the_line_search_never_raises_the_retained_loss(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = make_run(
        seed=seed,
        ridge=10.0 ** random.uniform(-6, 0),
        server=0.03,
        data={"rows": 150, "dimension": 12},
        design={"intercept": INTERCEPTS[seed % 3]},
    )
    here = Explicit.of(run, "1")
    found = FedRemovalLine().unlearn(Removal(run.trained, FORGET))
    change = here.loss(found.trained_after.params) - here.loss(run.trained.params)
    assert change <= 1e-14
    assert found.loss_change == pytest.approx(change, rel=1e-6, abs=1e-13)
    plain = FedRemoval().unlearn(Removal(run.trained, FORGET)).trained_after.params
    direction = run.trained.params - plain
    for length in np.linspace(-0.5, 1.5, 21):
        there = here.loss(run.trained.params - length * direction)
        assert here.loss(found.trained_after.params) <= there + 1e-12


def test_the_plain_step_can_be_worse_than_none_and_says_so_before() -> None:
    run = make_run(ridge=1e-6, server=0.05, data={"rows": 240, "dimension": 20})
    here = Explicit.of(run, "1")
    plan = server_plan(Removal(run.trained, FORGET))
    found = FedRemoval().unlearn(Removal(run.trained, FORGET))
    assert here.loss(found.trained_after.params) > here.loss(run.trained.params)
    assert plan.warnings == found.warnings
    assert "fewer than 4 times their effective dimension" in found.warnings[0]
    wide = make_run(ridge=1.0, server=0.4)
    assert not server_plan(Removal(wide.trained, FORGET)).warnings


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_the_effective_dimension_is_a_trace(intercept: str) -> None:
    run = make_run(design={"intercept": intercept})
    here = Explicit.of(run, "1")
    server = run.trained.server
    assert server is not None
    assert server.statistics is not None
    wanted = float(np.trace(here.server_gram @ np.linalg.inv(here.server)))
    assert rows_effective_dimension(server.statistics, 0.1) == pytest.approx(wanted)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_gradient_rounds_lead_from_the_papers_step_to_the_exact_answer(intercept: str, scaling: str) -> None:
    ridge = 0.01 if scaling == "mean" else 1.0
    run = make_run(design={"intercept": intercept}, scaling=scaling, ridge=ridge, keep="gradients", method=BIASED)
    here = Explicit.of(run, "1")
    errors, losses = [], []
    for rounds in (0, 1, 3, 8, 30):
        clients = online(run, "1")
        method = FedRemovalPcg(rounds)
        found = method.unlearn(Removal(run.trained, FORGET, Material(clients=clients)))
        used = found.solution.steps
        assert used <= rounds
        # the start is kept; a round for each product, and one to check
        assert clients.asked == {"gradient": (used + 1) * 4}
        assert found.cost.rounds == used + 1
        params = found.trained_after.params
        sizes = [one.size for one in clients.ask("gradient", {"params": params}).each()]
        assert found.cost.up == (used + 1) * sum(sizes)
        asked = [
            Ask("gradient", {"params": params}, number=n, problem=run.trained.problem.digest)
            for n in range(1, used + 2)
        ]
        assert found.cost.down == 4 * sum(one.size for one in asked)
        errors.append(relative(params, here.optimum))
        losses.append(here.loss(params))
        kept = found.trained_after.gradients
        assert kept is not None
        ridge_part = params * (run.trained.ridge / (1 if scaling == "mean" else sum(clients.counts.values())))
        if intercept == "free":
            ridge_part[-1] = 0
        assert list(kept.aggregate) == list(found.trained_after.counts)
        for one in clients.ask("gradient", {"params": params}).each():
            assert relative(kept.aggregate[one.client], one.arrays["gradient"] / one.count + ridge_part) < 1e-12
    plain = FedRemoval().unlearn(Removal(run.trained, FORGET)).trained_after.params
    assert errors[0] == pytest.approx(relative(plain, here.optimum), rel=1e-9)
    assert errors[-1] < 1e-10
    assert all(later <= before + 1e-13 for before, later in pairwise(losses))
    assert losses[1] < losses[0]


def test_a_second_removal_goes_on_from_the_first_ones_gradients() -> None:
    run = make_run(ridge=0.01, keep="gradients")
    first = FedRemovalPcg(30).unlearn(Removal(run.trained, FORGET, Material(clients=online(run, "1"))))
    second = FedRemoval().unlearn(Removal(first.trained_after, UnlearnRequest.of(["2"])))
    here = Explicit.of(run, "1", "2")
    start = first.trained_after.params
    assert relative(second.trained_after.params, start - np.linalg.solve(here.server, here.gradient(start))) < 1e-9


@pytest.mark.parametrize("method", [FedRemoval(), FedRemovalLine(), FedRemovalPcg(3)])
def test_statistics_rows_and_clients_online_give_the_same_head(method: Unlearner) -> None:
    run = make_run(keep="statistics", ridge=0.05)
    heads = [method.unlearn(Removal(run.trained, FORGET, Material())).trained_after.params]
    bare = replace(run.trained, statistics=None, gradients=None)
    heads.append(method.unlearn(Removal(bare, FORGET, run.material)).trained_after.params)
    heads.append(method.unlearn(Removal(bare, FORGET, Material(clients=online(run, "1")))).trained_after.params)
    assert relative(heads[1], heads[0]) < 1e-10
    assert relative(heads[2], heads[0]) < 1e-10


def test_single_samples_from_rows() -> None:
    run = make_run(keep="gradients", ridge=0.05)
    row = int(run.partition.clients["0"][0])
    request = UnlearnRequest.of(samples=[run.embeddings.ids[row]])
    found = FedRemovalPcg(30).unlearn(Removal(run.trained, request, run.material)).trained_after
    rows = np.setdiff1d(run.rows_without(), [row])
    assert relative(found.params, run.oracle(rows)) < 1e-9
    with pytest.raises(InputError, match="cached rows of the retained clients"):
        carried_out(Removal(run.trained, request), FedRemoval())


@pytest.mark.parametrize("solver", ["cg", "adam"])
def test_other_solvers_solve_the_same_equations(solver: str) -> None:
    run = make_run(ridge=0.1)
    wanted = FedRemoval().unlearn(Removal(run.trained, FORGET)).trained_after.params
    found = FedRemoval(solver).unlearn(Removal(run.trained, FORGET))
    close = 1e-7 if solver == "cg" else 0.05
    assert relative(found.trained_after.params, wanted) < close
    assert found.method == f"fedremoval:{solver}"
    here, v = Explicit.of(run, "1"), run.trained.params - found.trained_after.params
    gradient = here.gradient(run.trained.params)
    true = np.linalg.norm(here.server @ v - gradient) / np.linalg.norm(gradient)
    assert found.solution.residual == pytest.approx(true, rel=1e-6, abs=1e-12)


def test_the_published_schedule_makes_its_known_mistakes() -> None:
    run = make_run(ridge=0.5)
    found = FedRemoval("f2l2").unlearn(Removal(run.trained, FORGET))
    here = Explicit.of(run, "1")
    start = run.trained.params
    right = start - np.linalg.solve(here.server, here.gradient(start))
    wrong = start - np.linalg.solve(here.server_gram + 0.01 * np.eye(len(start)), here.gradient(start) - 0.5 * start)
    after = found.trained_after.params
    assert np.linalg.norm(after - wrong) < 0.5 * np.linalg.norm(after - right)
    assert "weight decay" in found.note
    again = FedRemoval("f2l2").unlearn(Removal(run.trained, FORGET))
    assert np.array_equal(again.trained_after.params, after)


def test_what_is_missing_is_named(run: Run) -> None:
    without_server: Trained = replace(run.trained, server=None)
    with pytest.raises(InputError, match="server share"):
        carried_out(Removal(without_server, FORGET), FedRemoval())
    with pytest.raises(InputError, match='keep="gradients"'):
        carried_out(Removal(replace(run.trained, statistics=None), FORGET), FedRemoval())
    with pytest.raises(InputError, match="clients online"):
        carried_out(Removal(make_run(keep="gradients").trained, FORGET), FedRemovalLine())
    viewed = make_run(method=ClosedForm(standardise="centre"))
    with pytest.raises(InputError, match="feature scaling, class weights"):
        carried_out(Removal(viewed.trained, FORGET), FedRemoval())
    with pytest.raises(MismatchError, match="Ask the retained"):
        carried_out(Removal(run.trained, FORGET, Material(clients=online(run))), FedRemovalLine())
    with pytest.raises(NotFoundError, match="cholesky"):
        method("fedremoval:cholesk").unlearn(Removal(run.trained, FORGET))
    with pytest.raises(InputError, match="whole number"):
        method("fedremoval-pcg:many")
    assert method("fedremoval-pcg:0").rounds == 0


def test_without_a_ridge_a_small_server_set_is_refused() -> None:
    run = make_run(ridge=1e-3, server=0.02, data={"rows": 300, "dimension": 20})
    bare = replace(run.trained, ridge=0.0)
    with pytest.raises((SolverError, InputError), match="ridge"):
        FedRemovalPcg(2).unlearn(Removal(bare, FORGET))
