"""Networks that are not linearized: local training, buffers, the loss, and their code's identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probekit.errors import InputError, MismatchError
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.partition import partition
from probekit.federated.training import train
from probekit.models import flat_module
from probekit.models.conventional_problem import ConventionalHolding, ConventionalProblem
from probekit.models.fitting import FitPlan, local_steps
from probekit.models.networks import module_at
from probekit.models.optimiser import Optimiser
from probekit.models.problem import backend_named
from probekit.models.serving import load_head, save_head, scores
from probekit.testing.planted import planted_set
from probekit.values import Array, EmbeddingSet, Indices, Partition

NORMED = """
from torch import nn

def normed(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, classes))

def dropped(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 6), nn.Dropout(0.5), nn.Linear(6, classes))
"""


@dataclass(frozen=True)
class Options:
    """Of the backend."""

    network: str = "mlp"
    subset: str | None = None
    centre: str = "wp"
    precision: str = "float64"
    pretrain_epochs: int = 0
    pretrain_batch: int = 3
    pretrain_rate: float = 0.01
    network_weights: str | None = None
    loss: str = "cross-entropy"
    seed: int = 0


@pytest.fixture
def rows() -> tuple[EmbeddingSet, Partition]:
    """A small set for three clients."""
    data = planted_set(90)
    return data, partition(data.labels, "iid", clients=3, server_share=0.1, seed=1)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's own networks."""
    (tmp_path / "own_networks.py").write_text(NORMED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "own_networks.py"


def prepared(rows: tuple[EmbeddingSet, Partition], **given: Any) -> tuple[ConventionalProblem, ConventionalHolding]:
    problem = backend_named("network").prepare(*rows, Options(**given))
    assert isinstance(problem, ConventionalProblem)
    return problem, problem.hold(rows[0], rows[1].clients["0"])


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_the_gradient_is_that_of_the_loss(rows: tuple[EmbeddingSet, Partition], loss: str, centre: str) -> None:
    problem, holding = prepared(rows, loss=loss, centre=centre)
    generator = np.random.default_rng(3)
    params = problem.start + 0.1 * generator.standard_normal(problem.shape)
    way = generator.standard_normal(problem.shape)
    step = 1e-7  # leaky ReLU has kinks
    measured = (problem.loss(holding, params + step * way) - problem.loss(holding, params - step * way)) / (2 * step)
    assert np.isclose(float((holding.squares().gradient(params) * way).sum()), measured, rtol=1e-4)
    outputs = problem.scores(problem.head(params, ridge=0.0, recipe={}), holding.picked)
    if loss == "squared":
        wanted = float(np.square(outputs - np.eye(outputs.shape[1])[holding.labels]).sum()) / 2
    else:
        logs = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
        wanted = -float(logs[np.arange(len(logs)), holding.labels].sum())
    assert np.isclose(problem.loss(holding, params), wanted)


PLANS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "full batch": ({"steps": 4}, ()),
    "momentum": ({"epochs": 2, "batch": 8, "optimiser": Optimiser("momentum")}, ()),
    "adam": ({"epochs": 2, "batch": 8, "optimiser": Optimiser("adam"), "rate": 0.01}, ()),
    "ascent in a ball": ({"steps": 6, "batch": 8, "sign": -1.0, "clip": 0.5, "ball": 0.2}, ("centre",)),
    "until it is far": ({"steps": 9, "batch": 8, "stop": 0.3}, ("away",)),
    "anchored": ({"steps": 5, "batch": 8}, ("importance", "anchor")),
    "masked": ({"steps": 5, "batch": 8}, ("mask",)),
    "uniform": ({"steps": 5, "batch": 8, "targets": "uniform"}, ()),
    "false": ({"steps": 5, "batch": 8, "targets": "false"}, ()),
    "random of a batch": ({"steps": 5, "batch": 8, "targets": "random-batch"}, ()),
    "a teacher's": ({"steps": 5, "batch": 8, "targets": "teacher"}, ("teacher",)),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_local_training_takes_the_steps_that_a_plan_says(
    rows: tuple[EmbeddingSet, Partition], name: str, centre: str
) -> None:
    given, points = PLANS[name]
    problem, holding = prepared(rows, centre=centre)
    plan, generator = FitPlan(**{"rate": 0.1, "ridge": 0.02, **given}), np.random.default_rng(5)
    arrays = {"params": problem.start + 0.1 * generator.standard_normal(problem.shape)}
    for point in points:
        drawn = generator.standard_normal(problem.shape)
        arrays[point] = np.abs(drawn) if point == "importance" else arrays["params"] + 0.01 * drawn
    if "mask" in points:
        arrays["mask"] = (generator.random(problem.shape) < 0.5).astype(np.float64)

    def teacher() -> Array:
        return problem.softened(problem.scores(problem.head(arrays["teacher"], ridge=0, recipe={}), holding.picked))

    drawn_labels = plan.drawn(holding.labels, problem.outputs, "0", teacher)

    def gradient(params: Array, some: Indices) -> Array:
        some = some[some >= 0] if some.size else np.arange(holding.count)
        wanted = None if drawn_labels is None else drawn_labels(some)
        return holding.batch_gradient(params, some, wanted) + problem.penalty(plan.ridge) * params

    wanted = local_steps(plan, arrays, plan.batches(holding.count, "0"), gradient)
    found = problem.fit(holding, "0", plan, arrays)
    assert np.allclose(found, wanted, rtol=1e-7, atol=1e-9)
    assert not np.array_equal(found, arrays["params"])
    assert found.tobytes() == problem.fit(holding, "0", plan, arrays).tobytes()


def test_importance_is_the_sum_of_squared_gradients_of_rows(rows: tuple[EmbeddingSet, Partition]) -> None:
    problem, holding = prepared(rows)
    params = problem.start + 0.1
    each = [holding.batch_gradient(params, np.array([row])) for row in range(holding.count)]
    assert np.allclose(holding.importance(params), np.square(each).sum(axis=0), rtol=1e-9)


def test_a_bounded_loss_drives_the_labels_away(rows: tuple[EmbeddingSet, Partition]) -> None:
    problem, holding = prepared(rows)
    plan = FitPlan(steps=30, rate=0.5, loss="bounded")
    found = problem.fit(holding, "0", plan, {"params": problem.start})

    def shares(params: Array) -> Array:
        chances = problem.softened(problem.scores(problem.head(params, ridge=0.0, recipe={}), holding.picked))
        return chances[np.arange(holding.count), holding.labels]

    def loss(params: Array) -> float:
        return float(-np.log(1 - shares(params) / 2).mean())

    assert loss(found) < loss(problem.start) / 2
    squared, other = prepared(rows, loss="squared")
    with pytest.raises(InputError, match="one of cross-entropy"):
        squared.fit(other, "0", plan, {"params": squared.start})


def test_buffers_are_averaged_and_never_penalised(rows: tuple[EmbeddingSet, Partition], own: Path) -> None:
    problem, holding = prepared(rows, network="py:own_networks:normed")
    assert problem.averaged == ("1.running_mean", "1.running_var")
    moving = sum(one.numel() for one in module_at(problem.network).parameters())
    assert problem.shape == (moving + 12, 1)
    assert (problem.penalty(2.0)[:moving] == 2).all()
    assert (problem.penalty(2.0)[moving:] == 0).all()
    assert (holding.squares().gradient(problem.start)[moving:] == 0).all()
    options = FedAvg(rounds=1, local_steps=3, learning_rate=0.1, batch_size=10, server_learning_rate=0.5)
    trained = train(*rows, problem=problem, ridge=0.01, method=options)
    plan = FitPlan(3, None, 10, rate=0.1, ridge=0.01).plain
    uploads = [
        problem.fit(problem.hold(rows[0], held), name, FitPlan.from_plain(plan), {"params": problem.start})
        for name, held in rows[1].clients.items()
    ]
    shares = [len(held) for held in rows[1].clients.values()]
    assert np.allclose(trained.params[moving:], np.average(uploads, axis=0, weights=shares)[moving:])
    middle = np.average(uploads, axis=0, weights=shares) / 2
    assert np.allclose(trained.params[:moving], middle[:moving])


def test_batches_of_one_row_and_layers_that_draw(rows: tuple[EmbeddingSet, Partition], own: Path) -> None:
    problem, holding = prepared(rows, network="py:own_networks:normed")
    with pytest.raises(InputError, match="cannot take a batch of 1 rows"):
        problem.fit(holding, "0", FitPlan(steps=1, batch=1), {"params": problem.start})
    problem, holding = prepared(rows, network="py:own_networks:dropped")
    one, two, other = (
        problem.fit(holding, "0", FitPlan(steps=3, rate=0.1, seed=seed), {"params": problem.start})
        for seed in (1, 1, 2)
    )
    assert one.tobytes() == two.tobytes()
    assert not np.allclose(one, other)


@pytest.mark.parametrize("backend", ["network", "jvp"])
def test_other_code_with_the_same_weights_is_refused(
    rows: tuple[EmbeddingSet, Partition], own: Path, tmp_path: Path, backend: str, fresh: Callable[[str], None]
) -> None:
    problem = backend_named(backend).prepare(*rows, Options(network="py:own_networks:normed", pretrain_epochs=1))
    head = problem.head(problem.start, ridge=0.0, recipe={})
    before = scores(head, rows[0])
    folder = save_head(head, tmp_path / "head")
    fresh("own_networks")
    assert np.allclose(scores(load_head(folder), rows[0]), before)
    own.write_text(NORMED.replace("nn.Tanh()", "nn.Sigmoid()"))
    fresh("own_networks")
    with pytest.raises(MismatchError, match="is not the one it was trained with"):
        scores(load_head(folder), rows[0])


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Forgets a module, so that it is imported anew."""
    import importlib
    import sys

    def forget(name: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return forget


def test_rows_pass_in_parts_where_a_pass_keeps_much(
    rows: tuple[EmbeddingSet, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, holding = prepared(rows)
    whole, loss = holding.squares().gradient(problem.start), problem.loss(holding, problem.start)
    assert problem.chunk == flat_module.CHUNK
    monkeypatch.setattr(flat_module, "CHUNK_BYTES", 40_000)
    problem, holding = prepared(rows)
    assert problem.chunk == flat_module.LEAST_CHUNK < holding.count
    assert np.allclose(holding.squares().gradient(problem.start), whole)
    assert np.isclose(problem.loss(holding, problem.start), loss)


def test_another_process_makes_the_same_problem(rows: tuple[EmbeddingSet, Partition]) -> None:
    problem, _ = prepared(rows, loss="squared", centre="zero")
    again = backend_named("network").from_plain(problem.plain, problem.arrays)
    assert again.digest == problem.digest
    assert problem.digest != prepared(rows, centre="zero")[0].digest


def test_float32_is_near_float64(rows: tuple[EmbeddingSet, Partition]) -> None:
    plan = FitPlan(steps=5, batch=8, rate=0.1)
    found = {}
    for precision in ("float32", "float64"):
        problem, holding = prepared(rows, precision=precision, centre="zero")
        found[precision] = problem.fit(holding, "0", plan, {"params": problem.start})
    assert np.allclose(found["float32"], found["float64"], atol=1e-5)
    assert not np.array_equal(found["float32"], found["float64"])
    assert torch.get_default_dtype() == torch.float32
