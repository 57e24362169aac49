"""Networks as models: on wires, with other code, and a linear layer, which is a head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, MismatchError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.training.cg import ConjugateGradients
from probekit.linear.model import LinearModel
from probekit.networks.architectures import Mlp, built
from probekit.networks.network import LinearizedNetwork, Network
from probekit.objective import CrossEntropy, RowsObjective, Squares
from probekit.records import dump, parse
from tests.networks import modules
from tests.networks.modules import CLASSES, model_of, samples_of
from tests.oracles import one_hot, relative_error, ridge_by_lstsq

RIDGE = 0.1


def trained_linear_layer(center: str) -> tuple[Network, EmbeddingSet, np.ndarray]:
    """A linear layer, linearized and trained on two clients; its parameters as a head's."""
    model = model_of("linear", center=center)
    rows = samples_of(model, 30)
    clients = {"a": rows.take(np.arange(12)), "b": rows.take(np.arange(12, 30))}
    federation = Federation.of(InProcess(clients), model)
    params = ConjugateGradients(tolerance=1e-13).train(federation, ridge=RIDGE).params
    return model, rows, as_head(params)


def as_head(params: np.ndarray) -> np.ndarray:
    """A layer's weights (k, d) and bias (k) as (d + 1, k)."""
    return np.vstack([params[: -1 * CLASSES].reshape(CLASSES, -1).T, params[-CLASSES:]])


def test_a_linear_layer_has_the_heads_minimum() -> None:
    _, rows, head = trained_linear_layer("zero")
    targets = one_hot(rows.labels, CLASSES)
    expected = ridge_by_lstsq(rows.to_numpy(), targets, RIDGE, intercept="penalized")
    assert relative_error(head, expected) < 1e-10


def test_around_its_weights_it_fits_what_they_leave() -> None:
    model, rows, head = trained_linear_layer("wp")
    start = as_head(model.weights)
    rest = one_hot(rows.labels, CLASSES) - rows.to_numpy() @ start[:-1] - start[-1]
    expected = start + ridge_by_lstsq(rows.to_numpy(), rest, RIDGE, intercept="penalized")
    assert relative_error(head, expected) < 1e-10


@pytest.mark.parametrize("linearize", [True, False])
@pytest.mark.parametrize("loss", [Squares(), CrossEntropy()])
def test_a_linear_layer_is_a_linear_model(linearize: bool, loss: Any) -> None:
    model = model_of("linear", linearize=linearize, loss=loss)
    rows = samples_of(model, 20)
    head = RowsObjective.of(LinearModel(rows.width, CLASSES, loss, "penalized"), rows)
    layer = RowsObjective.of(model, rows)
    generator = np.random.default_rng(0)
    params, vector = generator.standard_normal((2, len(model.weights)))
    value, gradient = head.value_and_gradient(as_head(params))
    layer_value, layer_gradient = layer.value_and_gradient(params)
    assert layer_value == pytest.approx(value, rel=1e-13)
    assert relative_error(as_head(layer_gradient), gradient) < 1e-13
    product = head.product(as_head(params), as_head(vector))
    assert relative_error(as_head(layer.product(params, vector)), product) < 1e-13


@pytest.mark.parametrize("linearize", [True, False])
@pytest.mark.parametrize("name", ["residual", "mlp:5-4"])
def test_models_survive_the_wire(name: str, linearize: bool) -> None:
    model = model_of(name, linearize=linearize, precision="float32", loss=CrossEntropy())
    narrowed = model.narrowed(np.array([0, 2]))
    again = parse(dump(narrowed), type(narrowed), max_bytes=10**6)
    assert type(again) is (LinearizedNetwork if linearize else Network)
    assert (again.loss, again.precision, again.classes) == (CrossEntropy(), "float32", 2)
    rows = samples_of(narrowed, 5)
    params = model.weights + 0.1
    expected = narrowed.outputs(rows).at(params)[0]
    assert (again.outputs(rows).at(params)[0] == expected).all()
    assert (again.center == model.center).all()
    assert again.tensors == model.tensors
    assert again.tensors[next(iter(again.tensors))][0].start == 0


def scaled(num_classes: int) -> nn.Module:
    """Code that changes between two runs of it."""
    return nn.Sequential(nn.Linear(4, num_classes), Scale())


class Scale(nn.Module):
    factor = 1.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.factor


def test_other_code_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "scaled", scaled, raising=False)
    model = model_of("scaled")
    data = dump(model)
    monkeypatch.setattr(Scale, "factor", 1.0 + 1e-6)
    assert parse(data, LinearizedNetwork, max_bytes=10**6).network.columns.tolist() == [0, 1, 2]
    for factor in (1.05, float("nan")):
        monkeypatch.setattr(Scale, "factor", factor)
        with pytest.raises(MismatchError, match="must be that of training"):
            parse(data, LinearizedNetwork, max_bytes=10**6).network  # noqa: B018
    monkeypatch.setattr(modules, "scaled", lambda num_classes: nn.Linear(4, 2))
    built.cache_clear()
    with pytest.raises(InputError, match="as many as its parameters, 10; found 15"):
        parse(data, LinearizedNetwork, max_bytes=10**6).network  # noqa: B018


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"columns": np.array([0, 3])}, "columns"),
    ({"columns": np.array([-1])}, "columns"),
    ({"columns": np.array([], np.int64)}, "columns"),
    ({"canary": np.zeros((2, 1))}, "columns"),
    ({"canary": np.zeros((1, 3))}, "canary"),
    ({"canary": np.zeros(3)}, "canary"),
    ({"canary": np.full((2, 3), np.nan)}, "must be that of training"),
    ({"buffers": np.zeros(3)}, "buffers"),
    ({"weights": np.zeros(3)}, "as many as its parameters"),
    ({"sample_shape": (-3, -3)}, "shape above 0"),
    ({"sample_shape": (2, 2)}, "must take samples"),
    ({"architecture": Mlp((9, 7))}, "as many as its parameters"),
    ({"precision": "half"}, "float32 or float64"),
    ({"pull_to": "w0"}, "wp"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_damaged_models_are_refused(change: dict[str, Any], reason: str) -> None:
    model = model_of("mlp:5-4")
    with pytest.raises((InputError, MismatchError), match=reason):
        replace(model, **change).outputs(samples_of(model, 2))
