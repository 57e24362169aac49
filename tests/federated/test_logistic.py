"""Logistic heads trained across clients, against scikit-learn on all their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from probekit.errors import InputError, SolverError
from probekit.federated.client import answer
from probekit.federated.message import Ask
from probekit.federated.methods.logistic import Logistic
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.linear.logistic import NO_EXACT_UNLEARNING
from probekit.models.fitting import FitPlan
from probekit.models.linear_problem import HeadProblem
from probekit.models.logistic_problem import LogisticProblem
from probekit.models.problem import backend_named, problem_of
from probekit.unlearning.choice import can_unlearn, unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet
from tests.oracles import numerical_gradient

Array = NDArray[np.float64]
MakeSet = Callable[..., EmbeddingSet]


def scikit_learn(data: EmbeddingSet, rows: NDArray[np.int64], *, c: float = 1.0, intercept: str = "free") -> Array:
    """Its parameters for these rows, a column per class (two classes: the second's less the first's)."""
    solver = "newton-cg" if len(data.class_names) > 2 else "newton-cholesky"
    model = LogisticRegression(C=c, tol=1e-12, max_iter=10_000, solver=solver, fit_intercept=intercept == "free")
    model.fit(np.asarray(data.embeddings)[rows].astype(np.float64), data.labels[rows])
    return np.vstack([model.coef_.T, np.broadcast_to(model.intercept_, (1, len(model.coef_)))])


def seen(params: Array) -> Array:
    return params if params.shape[1] > 2 else params[:, 1:] - params[:, :1]


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("intercept", ["free", "none"])
@pytest.mark.parametrize("ridge", [None, 0.05])
def test_the_head_is_scikit_learns_on_all_rows(
    make_set: MakeSet, clients: int, classes: int, intercept: str, ridge: float | None
) -> None:
    data = make_set(rows=300, dimension=8, classes=classes, dtype="float32")
    split = partition(data.labels, "dirichlet:0.5", clients=clients, seed=2, server_share=0.1)
    held = np.concatenate(list(split.clients.values()))
    design = design_for(data, intercept=intercept)
    trained = train(
        data, split, method="logistic" if ridge is None else Logistic(ridge=None), ridge=ridge, design=design
    )
    c = 1.0 if ridge is None else 1 / (0.05 * len(held))
    wanted = scikit_learn(data, held, c=c, intercept=intercept)
    assert np.allclose(seen(trained.head.params), wanted, rtol=0, atol=2e-6)
    assert trained.solution.residual < 1e-7
    assert (trained.scaling, trained.statistics, trained.gradients) == ("sum" if ridge is None else "mean", None, None)
    recipe = trained.head.recipe
    assert (recipe["head"], recipe["rows"]) == ("logistic", len(held))
    assert recipe["C"] == pytest.approx(c)
    assert trained.head.ridge == pytest.approx(1 / c)
    assert trained.server is not None


def test_rows_stay_with_their_clients(make_set: MakeSet) -> None:
    data = make_set(rows=400)
    split = partition(data.labels, "iid", clients=2)
    trained = train(data, split, method="logistic")
    sent = trained.traffic["rounds"]
    assert sent.rounds == trained.rounds + 3  # the start, the statistics and the end
    assert sent.up < sent.rounds * 2 * (7 * 3 * 8 + 500)


def test_a_client_answers_with_sums_of_the_loss_and_steps_down_it(make_set: MakeSet) -> None:
    data = make_set(rows=40)
    problem = Logistic().configure(head_problem(data, design_for(data, intercept="free")))
    holding = problem.hold(data, np.arange(5, 25))
    X = np.hstack([np.asarray(data.embeddings)[5:25], np.ones((20, 1))])
    W = np.random.default_rng(0).normal(size=(7, 3)) / 3

    def loss(params: Array) -> float:
        scores = np.exp(X @ params)
        return -float(np.log(scores[np.arange(20), data.labels[5:25]] / scores.sum(axis=1)).sum())

    found, _ = answer(Ask("gradient", {"params": W}, {"loss": True}), holding, {}, name="a")
    assert found.values["loss"] == pytest.approx(loss(W))
    slope = numerical_gradient(loss, W)
    assert np.allclose(found.arrays["gradient"], slope, atol=1e-6)
    penalty = np.append(np.full(6, 0.1), 0.0)[:, None]
    for batch in (None, 20):
        plan = FitPlan(steps=1, batch=batch, ridge=0.1).plain
        stepped, _ = answer(Ask("fit", {"params": W}, plan), holding, {}, name="a")
        assert np.allclose(W - stepped.arrays["params"], slope / 20 + penalty * W, atol=1e-6)
    right, _ = answer(Ask("evaluate", {"params": W}), holding, {}, name="a")
    assert right.arrays["confusion"].sum() == 20
    assert right.values["loss"] == pytest.approx(loss(W))


def test_it_is_no_quadratic_problem_and_says_so(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=3, server_share=0.2)
    trained = train(data, split, method="logistic")
    problem = problem_of(trained.head)
    assert isinstance(problem, LogisticProblem)
    assert problem.traits == trained.problem.traits == {"trainer", "softmax"}
    assert problem.digest == trained.problem.digest
    sent = backend_named("embeddings").from_plain(problem.plain, problem.arrays)
    assert (type(sent), sent.digest) == (LogisticProblem, problem.digest)
    assert problem.digest != HeadProblem(problem.design, problem.classes, problem.spec_digest).digest
    why = can_unlearn(trained, Material(data, split))
    assert why["retrain"] == ""
    assert {why["exact"], why["fedremoval"], why["fedremoval-pcg"]} == {NO_EXACT_UNLEARNING}


@pytest.mark.parametrize("clients", [2, 4])
def test_training_again_forgets_a_client(make_set: MakeSet, clients: int) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=clients)
    trained = train(data, split, method=Logistic(ridge=None), ridge=0.01)
    found = unlearn(trained, UnlearnRequest(("0",)), method="retrain", material=Material(data, split))
    rest = np.concatenate([rows for name, rows in split.clients.items() if name != "0"])
    assert np.allclose(found.trained_after.head.params, scikit_learn(data, rest, c=1 / (0.01 * len(rest))), atol=2e-6)
    assert found.trained_after.head.recipe["C"] == pytest.approx(1 / (0.01 * len(rest)))
    assert found.trained_after.head.classes == data.class_names


def test_what_a_logistic_head_cannot_have_is_refused(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=2)
    with pytest.raises(InputError, match="can keep nothing; found 'statistics'"):
        train(data, split, method="logistic", keep="statistics")
    with pytest.raises(InputError, match="no statistics"):
        train(data, split, method=Logistic(ridge=None), ridge="auto")
    with pytest.raises(InputError, match='is "free" or "none"; found "penalised"'):
        train(data, split, method="logistic", design=design_for(data))
    with pytest.raises(InputError, match="ridge above 0; found 0"):
        train(data, split, method=Logistic(ridge=None), ridge=0.0)
    with pytest.raises(InputError, match="closed form"):
        train(data, split, method="logistic", objective_noise=1.0)
    with pytest.raises(SolverError, match="larger ridge") as caught:
        train(data, split, method="logistic:rounds=2")
    assert caught.value.best is not None


def test_a_client_that_has_all_rows_is_asked_once(make_set: MakeSet) -> None:
    data = make_set()
    split = partition(data.labels, "iid", clients=1)
    trained = train(data, split, method="logistic")
    assert (trained.rounds, trained.traffic["rounds"].rounds) == (1, 3)
    hard = replace(data, embeddings=np.asarray(data.embeddings) * 1e3)
    with pytest.raises(SolverError, match="relative gradient"):
        train(hard, split, method="logistic:tolerance=1e-30")
