"""Certified removal of logistic heads: the bound holds, the budget adds up, and ends."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize

from probekit.errors import InputError
from probekit.federated.client import answer
from probekit.federated.message import Ask
from probekit.federated.methods.guo import RECORD, Guo
from probekit.federated.partition import partition
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.linear.logistic import loss_and_gradient
from probekit.testing.planted import planted_set
from probekit.unlearning.choice import can_unlearn, unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import Relabelled, UnlearnRequest
from probekit.values import EmbeddingSet, Partition

Array = NDArray[np.float64]
RIDGE = 2.0
WIDE = "guo:epsilon=100000"
"""A promise that says nothing, so that steps can be looked at."""


@cache
def run_of(seed: int, classes: int, scaling: str) -> tuple[EmbeddingSet, Partition, Trained, Material]:
    data = planted_set(90, dimension=3 + seed % 3, classes=classes, seed=seed)
    split = partition(data.labels, "dirichlet:0.7", clients=5, server_share=0.1, seed=seed)
    options = Guo(sigma=5.0, ridge=None)
    ridge = RIDGE if scaling == "sum" else RIDGE / 90
    drawn = np.random.default_rng(seed).normal(scale=5.0, size=(data.dimension + 1, classes))
    with patch("probekit.federated.methods.guo.draw_objective", lambda problem, sigma: drawn):  # else nobody can again
        trained = train(data, split, method=options, ridge=ridge, scaling=scaling)
    return data, split, trained, Material(data, split, options=options)


def objective(data: EmbeddingSet, split: Partition, trained: Trained, params: Array) -> tuple[float, Array]:
    """The loss of the clients that are left, as a sum, written out."""
    rows = np.concatenate([split.clients[name] for name in trained.counts])
    columns = np.hstack([data.to_numpy()[rows], np.ones((len(rows), 1))])
    loss, gradient = loss_and_gradient(params, columns, data.labels[rows])
    assert trained.objective is not None
    double = 2.0 if len(data.class_names) == 2 else 1.0  # scikit-learn's ridge for two classes
    penalty = double * trained.mean_ridge(len(rows)) * len(rows)
    whole = loss + penalty / 2 * float((params**2).sum()) + float((trained.objective * params).sum())
    return whole, gradient + penalty * params + trained.objective


def spent(trained: Trained) -> float:
    record: Any = trained.kept[RECORD].plain
    return float(record["spent"])


@pytest.mark.parametrize("scaling", ["sum", "mean"])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_never_below_the_gradient_that_is_left(seed: int, classes: int, scaling: str) -> None:
    data, split, trained, material = run_of(seed, classes, scaling)
    start = np.linalg.norm(objective(data, split, trained, trained.params)[1])
    assert start == pytest.approx(spent(trained), rel=1e-3)
    before = spent(trained)
    for client in list(trained.counts)[:3]:
        trained = unlearn(trained, UnlearnRequest.of([client]), method=WIDE, material=material).trained_after
        left = float(np.linalg.norm(objective(data, split, trained, trained.params)[1]))
        assert before < spent(trained)
        assert 1e-6 < left <= spent(trained)
        before = spent(trained)


def test_one_sample_leaves_little_and_the_step_is_newtons() -> None:
    data, split, trained, material = run_of(1, 3, "sum")
    sample = data.ids[int(split.clients["0"][0])]
    done = unlearn(trained, UnlearnRequest.of(samples=[sample]), method="guo:epsilon=2", material=material)
    after = done.trained_after
    rows = np.concatenate([split.clients[name] for name in trained.counts])
    rows = rows[rows != int(split.clients["0"][0])]
    columns = np.hstack([data.to_numpy()[rows], np.ones((len(rows), 1))])

    def whole(flat: Array) -> tuple[float, Array]:
        params = flat.reshape(trained.params.shape)
        loss, gradient = loss_and_gradient(params, columns, data.labels[rows])
        assert trained.objective is not None
        value = loss + RIDGE / 2 * float((flat**2).sum()) + float((trained.objective * params).sum())
        return value, (gradient + RIDGE * params + trained.objective).ravel()

    left = float(np.linalg.norm(whole(after.params.ravel())[1]))
    best = optimize.minimize(whole, trained.params.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    moved = np.linalg.norm(best - trained.params.ravel())
    assert left <= spent(after) < 2.0
    assert np.linalg.norm(best - after.params.ravel()) < 0.05 * moved
    assert "(2, 0.0001)-certified removal" in done.note
    assert after.objective is trained.objective


def test_the_budget_ends_with_a_sentence_and_retraining_begins_another() -> None:
    data, split, trained, material = run_of(0, 3, "sum")
    with pytest.raises(InputError, match=r"sigma 5 hides 1\.14 at \(1, 0\.0001\)\. Use retrain"):
        unlearn(trained, UnlearnRequest.of(["1"]), method="guo", material=material)
    again = unlearn(trained, UnlearnRequest.of(["1"]), method="retrain", material=material).trained_after
    assert spent(again) < 1e-4
    assert again.objective is not None
    assert trained.objective is not None
    assert not np.array_equal(again.objective, trained.objective)
    assert np.linalg.norm(objective(data, split, again, again.params)[1]) < 1e-4


def test_every_need_is_checked_by_taking_it_away() -> None:
    data, split, trained, material = run_of(0, 3, "sum")
    assert can_unlearn(trained, material)["guo"] == ""
    assert "retained clients online" in can_unlearn(trained)["guo"]
    assert "method=guo" in can_unlearn(replace(trained, kept={}), material)["guo"]
    assert "method=guo" in can_unlearn(replace(trained, objective=None), material)["guo"]
    ridge = train(data, split, ridge=RIDGE)
    assert "method=guo" in can_unlearn(ridge, material)["guo"]
    assert "secret linear term" in can_unlearn(trained, material)["fedremoval"]


def test_it_takes_away_and_nothing_else() -> None:
    data, split, trained, material = run_of(0, 3, "sum")
    sample = data.ids[int(split.clients["0"][0])]
    request = UnlearnRequest(relabelled=(Relabelled(sample, 1),))
    with pytest.raises(InputError, match="labels are put right by retrain"):
        unlearn(trained, request, method="guo", material=material)
    with pytest.raises(InputError, match="delta"):
        unlearn(trained, UnlearnRequest.of(["1"]), method="guo:delta=2", material=material)


def test_the_curvature_that_clients_answer_is_that_of_their_loss() -> None:
    data, split, trained, _ = run_of(2, 4, "sum")
    holding = trained.problem.hold(data, split.clients["0"])
    generator = np.random.default_rng(0)
    at, v = generator.normal(size=(2, *trained.params.shape))
    found = answer(Ask("curvature", {"params": v, "at": at}), holding, {}, name="0")[0].arrays["product"]
    sums, step = holding.squares(), 1e-5
    wanted = (sums.gradient(at + step * v) - sums.gradient(at - step * v)) / (2 * step)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-7)
    scales = answer(Ask("scales", plan={"ridge": 0.0, "batch": 1}), holding, {}, name="0")[0].values
    longest = np.square(holding.columns).sum(axis=1).max()
    assert scales["curvature"] == pytest.approx(longest / 2)


def test_two_draws_of_the_secret_term_differ() -> None:
    data, split, _, _ = run_of(0, 3, "sum")
    one, other = (train(data, split, method=Guo(ridge=RIDGE)).params for _ in range(2))
    assert not np.allclose(one, other)
    with pytest.raises(InputError, match="penalised"):
        train(data, split, method=Guo(), design=replace(train(data, split, ridge=1.0).problem.design, intercept="none"))
