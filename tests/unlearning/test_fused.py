"""Adapters: their closed form, what they are put on, and the way back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import InputError, NotFoundError
from probekit.federated.client import answer
from probekit.federated.federation import checked
from probekit.federated.message import Ask
from probekit.models.adapters import Adapters, matrices_of
from probekit.models.fitting import FitPlan
from probekit.testing.planted_runs import PlantedRun, _fedavg, _network
from probekit.unlearning.choice import can_unlearn, carried_out
from probekit.unlearning.method import Material
from probekit.unlearning.methods.fused import ADAPTER, dropped
from probekit.unlearning.rounds import local_plan, retained_rounds


@pytest.fixture(scope="module")
def run() -> PlantedRun:
    return _fedavg()


@pytest.mark.parametrize("rounds", [1, 5])
@pytest.mark.parametrize("rank", [1, 2])
def test_with_a_frozen_a_it_is_continued_training_projected(run: PlantedRun, rank: int, rounds: int) -> None:
    removal = run.removal()
    continued = retained_rounds(removal, removal.params, local_plan(removal), rounds) - removal.params
    done = carried_out(run.removal(), f"fused:rank={rank},freeze=true,rounds={rounds},seed=3")
    found = done.trained_after.params - removal.params
    # A as drawn: random orthonormal rows
    drawn = np.random.Generator(np.random.PCG64([3, 25])).normal(size=(removal.problem.shape[1], rank))
    a = np.linalg.qr(drawn)[0].T
    assert np.abs(a @ a.T - np.eye(rank)).max() < 1e-14
    assert np.abs(found - continued @ a.T @ a).max() < 1e-12
    assert np.linalg.matrix_rank(found, tol=1e-10) == rank
    assert np.linalg.norm(continued - found) > 1e-3 * np.linalg.norm(continued)


def test_of_full_rank_and_frozen_it_is_continued_training(run: PlantedRun) -> None:
    removal = run.removal()
    continued = retained_rounds(removal, removal.params, local_plan(removal), 4)
    found = carried_out(run.removal(), "fused:rank=16,freeze=true,rounds=4").trained_after.params
    assert np.abs(found - continued).max() < 1e-12


def test_trained_on_both_sides_it_stays_of_its_rank_and_lowers_the_retained_loss(run: PlantedRun) -> None:
    removal = run.removal()
    found = carried_out(run.removal(), "fused:rank=2,rounds=10,steps=1").trained_after.params
    assert np.linalg.matrix_rank(found - removal.params, tol=1e-10) == 2
    loss = [removal.loss.gradient_and_loss(one)[1] for one in (removal.params, found)]
    assert loss[1] < loss[0]


def test_the_old_head_comes_back_without_the_adapter(run: PlantedRun) -> None:
    after = carried_out(run.removal(), "fused").trained_after
    assert np.abs(dropped(after) - run.trained.params).max() < 1e-14
    assert run.leaver not in after.kept[ADAPTER].about
    with pytest.raises(NotFoundError, match="no adapter"):
        dropped(run.trained)


def test_of_a_network_only_the_layers_that_change_most_get_one() -> None:
    planted = _network()
    problem = planted.trained.problem
    [(name, (where, shape))] = matrices_of(problem).items()
    assert shape == problem.network.weights[name].shape
    after = carried_out(planted.removal(), "fused:rank=2,rounds=2").trained_after
    change = after.params - planted.trained.params
    assert np.linalg.matrix_rank(change[where].reshape(shape), tol=1e-10) == 2
    rest = np.ones(len(change), bool)
    rest[where] = False
    assert rest.any()
    assert not change[rest].any()


def test_its_gradient_is_that_of_the_loss() -> None:
    planted = _fedavg()
    problem, generator = planted.trained.problem, np.random.default_rng(0)
    adapters = Adapters.of(problem, (), 2)
    column = generator.normal(size=(adapters.size, 1))
    target = generator.normal(size=problem.shape)

    def loss(one: np.ndarray) -> float:
        return float(((adapters.change(one) - target) ** 2).sum()) / 2

    found = adapters.pull(adapters.change(column) - target, column)
    for place in range(adapters.size):
        step = np.zeros_like(column)
        step[place] = 1e-6
        assert found[place, 0] == pytest.approx((loss(column + step) - loss(column - step)) / 2e-6, rel=1e-5, abs=1e-7)


def test_answers_of_another_size_are_refused() -> None:
    planted = _fedavg()
    problem = planted.trained.problem
    adapters = Adapters.of(problem, (), 1)
    plan = FitPlan(steps=1, rate=0.1, rank=1).plain
    ask = Ask("fit", {"params": planted.trained.params, "adapter": adapters.start(0)}, plan)
    holding = problem.hold(planted.embeddings, planted.partition.clients["0"])
    found = answer(ask, holding, {}, name="0")[0]
    assert checked(found, ask, problem.shape) == ""
    wrong = replace(found, arrays={"params": planted.trained.params})
    assert "wanted" in checked(wrong, ask, problem.shape)


def test_bad_options_and_missing_clients_are_refused(run: PlantedRun) -> None:
    with pytest.raises(InputError, match="rank"):
        carried_out(run.removal(), "fused:rank=0")
    with pytest.raises(InputError, match="Known and close: head"):
        Adapters.of(run.trained.problem, ("heads",), 1)
    assert "retained clients online" in can_unlearn(run.trained, Material(options=run.options))["fused"]
