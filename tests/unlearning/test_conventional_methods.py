"""Adapters, blindness and auxiliary layers on networks as they are, with cross-entropy and with squared loss."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from probekit.federated.methods.fedau import FedAu
from probekit.federated.training import train
from probekit.models.adapters import matrices_of
from probekit.models.conventional_problem import ConventionalProblem
from probekit.models.networks import described, network
from probekit.testing.planted_runs import PlantedRun, _rows
from probekit.unlearning.choice import carried_out
from probekit.values import Array

LOSSES = ("cross-entropy", "squared")


@cache
def run_of(loss: str) -> PlantedRun:
    data, split = _rows()
    made = described(network("mlp", (5,), 3, seed=1).double(), "mlp", (5,), 3, precision="float64")
    problem = ConventionalProblem(made, "zero", data.class_names, data.spec.digest, criterion=loss)
    options = FedAu(rounds=3, local_steps=3, learning_rate=0.1, auxiliary_steps=5)
    trained = train(data, split, problem=problem, ridge=0.01, method=options, keep="nothing")
    return PlantedRun(loss, data, split, trained, options)


@pytest.mark.parametrize("loss", LOSSES)
def test_an_adapter_changes_the_most_sensitive_layers_by_its_rank(loss: str) -> None:
    run = run_of(loss)
    after = carried_out(run.removal(), "fused:rank=2,rounds=2,layers=1").trained_after
    change, moved = after.params - run.trained.params, []
    for name, (where, shape) in matrices_of(run.trained.problem).items():
        if change[where].any():
            moved.append(name)
            assert np.linalg.matrix_rank(change[where].reshape(shape), tol=1e-10) <= 2
            change[where] = 0.0
    assert len(moved) == 1
    assert not change.any()


@pytest.mark.parametrize("loss", LOSSES)
def test_outputs_become_blind_to_the_region(loss: str) -> None:
    run = run_of(loss)
    problem, generator = run.trained.problem, np.random.default_rng(0)
    rows = run.embeddings.to_numpy()[run.partition.clients["1"]]
    moved = rows + 0.3 * generator.normal(size=rows.shape) * np.array([1.0, 1.0, 0.0, 0.0, 0.0])

    def apart(params: Array) -> float:
        scores = [problem.scores(problem.head(params, ridge=0.0, recipe={}), one) for one in (rows, moved)]
        both = [one - one.mean(axis=1, keepdims=True) for one in scores]
        return float(np.linalg.norm(both[0] - both[1], axis=1).mean())

    found = [
        apart(carried_out(run.removal(), f"ferrari:region=0:2,rate=0.01,steps={steps}").trained_after.params)
        for steps in (5, 30)
    ]
    assert apart(run.trained.params) > found[0] > found[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_of_blindness_is_that_of_its_loss(loss: str) -> None:
    """By finite differences, through the problem's own gradients alone."""
    from probekit.models.fitting import Noise
    from probekit.models.sensitivity import sensitivity_gradient

    run, noise = run_of(loss), Noise(draws=1)
    problem, generator = run.trained.problem, np.random.default_rng(2)
    chosen = run.partition.clients["1"][:6]
    rows = run.embeddings.to_numpy()[chosen]
    moved = generator.normal(size=rows.shape) * np.array([0.5, 0.5, 0.0, 0.0, 0.0])
    holding = problem.hold(run.embeddings, run.partition.clients["1"])

    def value(params: Array) -> float:
        head = problem.head(params, ridge=0.0, recipe={})
        apart = problem.scores(head, rows) - problem.scores(head, rows + moved)
        if loss == "cross-entropy":
            apart = apart - apart.mean(axis=1, keepdims=True)
        return float((np.linalg.norm(apart, axis=1) / np.linalg.norm(moved, axis=1)).mean())

    params = run.trained.params
    found = sensitivity_gradient(holding, params, rows, moved, chosen=chosen, noise=noise)
    for _ in range(3):
        way = generator.normal(size=params.shape)
        wanted = (value(params + 1e-6 * way) - value(params - 1e-6 * way)) / 2e-6
        assert float((found * way).sum()) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_last_layer_alone_is_mixed_with_the_auxiliary_one(loss: str) -> None:
    run = run_of(loss)
    after = carried_out(run.removal(), "fedau").trained_after.params
    blocks = run.trained.problem.blocks
    moved = [name for name, where in blocks.items() if (after[where] != run.trained.params[where]).any()]
    assert moved == list(blocks)[-2:]
