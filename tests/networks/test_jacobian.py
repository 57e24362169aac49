"""Products with a network's Jacobian against the dense one of torch.func and finite differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import vector_to_parameters

from probekit.embeddings import EmbeddingSet
from probekit.networks import jacobian
from probekit.networks.architectures import built
from probekit.networks.network import Network
from probekit.objective import CrossEntropy, RowsObjective, Squares, softmax
from tests.networks.modules import CLASSES, SHAPES, model_of, samples_of
from tests.oracles import Array, one_hot

ROWS = 4
EXACT = [name for name in SHAPES if name not in ("resnet18", "backward_only")]


def inputs_of(model: Network, rows: EmbeddingSet) -> torch.Tensor:
    return torch.tensor(rows.to_numpy()).view(-1, *model.sample_shape)


def dense_jacobian(model: Network, params: Array, rows: EmbeddingSet) -> tuple[Array, Array]:
    """f (n, k) and J (n, k, p), of torch's own module in float64."""
    module = built(model.architecture, len(model.weights))
    tensors = {}
    first = 0
    for name, parameter in module.named_parameters():
        part = params[first : first + parameter.numel()]
        tensors[name] = torch.tensor(part).view(parameter.shape)
        first += parameter.numel()
    buffers = {name: buffer.double() for name, buffer in module.named_buffers()}
    inputs = inputs_of(model, rows).double()

    def outputs(params: dict[str, torch.Tensor]) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            scores: torch.Tensor = functional_call(module, {**params, **buffers}, (inputs,))
        return scores

    parts = jacrev(outputs)(tensors)
    joined = torch.cat([part.flatten(start_dim=2) for part in parts.values()], dim=2)
    return outputs(tensors).numpy(), joined.numpy()


def near(actual: Array, expected: Array, tolerance: float = 1e-10) -> bool:
    assert actual.shape == expected.shape
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


@dataclass
class Problem:
    """A model, rows, and random vectors of its shapes."""

    model: Network
    rows: EmbeddingSet
    params: Array
    vector: Array
    cotangent: Array
    weights: Array


def problem(name: str, linearize: bool = True, **options: object) -> Problem:
    """Parameters are not those of the start, so that the place of J can be noticed."""
    model = model_of(name, linearize=linearize, **options)
    generator = np.random.default_rng(1)
    size = len(model.weights)
    return Problem(
        model,
        samples_of(model, ROWS),
        model.weights + 0.1 * generator.standard_normal(size),
        generator.standard_normal(size),
        generator.standard_normal((ROWS, CLASSES)),
        generator.uniform(0.5, 2, ROWS),
    )


@pytest.mark.parametrize("linearize", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_products_are_those_of_the_dense_jacobian(name: str, linearize: bool) -> None:
    case = problem(name, linearize)
    point = case.model.weights if linearize else case.params
    scores, J = dense_jacobian(case.model, point, case.rows)
    if linearize:
        scores = scores + J @ (case.params - point)
    outputs = case.model.outputs(case.rows)
    assert near(outputs.at(case.params)[0], scores)
    assert near(outputs.push(case.params, case.vector), J @ case.vector)
    pulled = np.einsum("nk,nkp->p", case.cotangent, J)
    assert near(outputs.pull(case.params, case.cotangent), pulled)
    assert near(outputs.at(case.params)[1](case.cotangent), pulled)
    diagonal = np.einsum("n,nkp->p", case.weights, J**2)
    assert near(outputs.diagonal(case.params, case.weights), diagonal)
    lengths = np.linalg.norm(np.einsum("nk,nkp->np", case.cotangent, J), axis=1)
    assert near(outputs.lengths(case.params, case.cotangent), lengths)


@pytest.mark.parametrize("name", ["residual", "attention", "encoder", "gru", "tied", "mlp:5-4"])
def test_gradients_and_curvature_are_those_of_the_dense_jacobian(name: str) -> None:
    case = problem(name, loss=CrossEntropy())
    rows = replace(case.rows, weights=case.weights)
    start, J = dense_jacobian(case.model, case.model.weights, rows)
    scores = start + J @ (case.params - case.model.weights)
    targets = one_hot(rows.labels, CLASSES)
    squares = RowsObjective.of(replace(case.model, loss=Squares()), rows)
    slope = case.weights[:, None] * (scores - targets)
    assert near(squares.value_and_gradient(case.params)[1], np.einsum("nk,nkp->p", slope, J))
    product = np.einsum("n,nkp,nkq,q->p", case.weights, J, J, case.vector)
    assert near(squares.product(case.params, case.vector), product)
    entropy = RowsObjective.of(case.model, rows)
    p = softmax(scores)
    slope = case.weights[:, None] * (p - targets)
    assert near(entropy.value_and_gradient(case.params)[1], np.einsum("nk,nkp->p", slope, J))
    H = np.einsum("nk,kl->nkl", p, np.eye(CLASSES)) - np.einsum("nk,nl->nkl", p, p)
    product = np.einsum("n,nkp,nkl,nlq,q->p", case.weights, J, H, J, case.vector)
    assert near(entropy.product(case.params, case.vector), product)


def test_resnet18_in_float32_is_near_the_dense_jacobian_in_float64() -> None:
    case = problem("resnet18", precision="float32")
    rows = case.rows.take(np.arange(2))
    scores, J = dense_jacobian(case.model, case.model.weights, rows)
    outputs = case.model.outputs(rows)
    cotangent = case.cotangent[:2]
    assert near(outputs.at(case.model.weights)[0], scores, 1e-5)
    assert near(outputs.push(case.params, case.vector), J @ case.vector, 1e-5)
    pulled = np.einsum("nk,nkp->p", cotangent, J)
    assert near(outputs.pull(case.params, cotangent), pulled, 1e-5)
    squares = RowsObjective.of(case.model, rows)
    product = np.einsum("nkp,nk->p", J, J @ case.vector)
    assert near(squares.product(case.params, case.vector), product, 1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_jacobians_are_finite_differences_of_the_module(name: str) -> None:
    case = problem(name)
    module = built(case.model.architecture, len(case.model.weights)).double()
    inputs = inputs_of(case.model, case.rows)

    def scores(length: float) -> Array:
        params = case.model.weights + length * case.vector / np.linalg.norm(case.vector)
        vector_to_parameters(torch.tensor(params), module.parameters())
        with torch.no_grad():
            outputs: Array = module(inputs).numpy()
        return outputs

    try:
        differences = (scores(1e-5) - scores(-1e-5)) / 2e-5 * np.linalg.norm(case.vector)
    finally:
        module.float()
    moved = case.model.outputs(case.rows).push(case.params, case.vector)
    assert near(moved, differences, 1e-6)


@pytest.mark.parametrize("name", [*EXACT, "resnet18"])
def test_float32_is_near_float64(name: str) -> None:
    case = problem(name, precision="float32")
    exact = RowsObjective.of(case.model.exact, case.rows)
    product = RowsObjective.of(case.model, case.rows).product(case.params, case.vector)
    assert near(product, exact.product(case.params, case.vector), 1e-4)


@given(seed=st.integers(0, 10**6), count=st.integers(1, 7), linearize=st.booleans())
def test_pull_is_the_adjoint_of_push(seed: int, count: int, linearize: bool) -> None:
    model = model_of("mlp:5-4", linearize=linearize)
    outputs = model.outputs(samples_of(model, count, seed=seed))
    generator = np.random.default_rng(seed)
    params, vector = generator.standard_normal((2, len(model.weights)))
    cotangent = generator.standard_normal((count, CLASSES))
    moved = outputs.push(params, vector)
    pulled = outputs.pull(params, cotangent)
    size = np.linalg.norm(moved) * np.linalg.norm(cotangent)
    assert abs((moved * cotangent).sum() - (vector * pulled).sum()) <= 1e-12 * size + 1e-14


def test_layers_without_forward_mode_are_pushed_by_reverse_mode() -> None:
    case = problem("lstm", precision="float32")
    single = case.model.outputs(case.rows)
    moved = single.push(case.params, case.vector)
    assert not single.network.has_forward_mode
    double = case.model.exact.outputs(case.rows)
    assert near(moved, double.push(case.params, case.vector), 1e-5)
    lengths = single.lengths(case.params, case.cotangent)
    assert near(lengths, double.lengths(case.params, case.cotangent), 1e-5)
    assert double.network.has_forward_mode


def test_functions_with_a_backward_alone_are_pushed_by_it() -> None:
    """torch.func refuses them; `sine` is the same network in torch's own operations."""
    case = problem("backward_only")
    _, J = dense_jacobian(model_of("sine"), case.model.weights, case.rows)
    outputs = case.model.outputs(case.rows)
    assert near(outputs.push(case.params, case.vector), J @ case.vector)
    lengths = np.linalg.norm(np.einsum("nk,nkp->np", case.cotangent, J), axis=1)
    assert near(outputs.lengths(case.params, case.cotangent), lengths)


def test_both_ways_to_push_agree() -> None:
    case = problem("residual")
    outputs = case.model.outputs(case.rows)
    forward = outputs.push(case.params, case.vector)
    reverse_only = replace(outputs.network)
    reverse_only.has_forward_mode = False
    reverse = replace(outputs, network=reverse_only)
    assert near(reverse.push(case.params, case.vector), forward, 1e-13)


def test_a_subset_of_the_classes_is_those_rows_of_the_jacobian() -> None:
    case = problem("tied")
    kept = np.array([0, 2])
    narrowed = case.model.narrowed(kept)
    scores, J = dense_jacobian(case.model, case.model.weights, case.rows)
    outputs = narrowed.outputs(case.rows)
    assert near(outputs.at(case.model.weights)[0], scores[:, kept])
    assert near(outputs.push(case.params, case.vector), (J @ case.vector)[:, kept])
    pulled = np.einsum("nk,nkp->p", case.cotangent[:, :2], J[:, kept])
    assert near(outputs.pull(case.params, case.cotangent[:, :2]), pulled)
    diagonal = np.einsum("n,nkp->p", case.weights, J[:, kept] ** 2)
    assert near(outputs.diagonal(case.params, case.weights), diagonal)
    again = narrowed.narrowed(np.array([1]))
    assert near(again.outputs(case.rows).at(case.model.weights)[0], scores[:, [2]])


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("residual")
    expected = RowsObjective.of(case.model, case.rows).product(case.params, case.vector)
    lengths = case.model.outputs(case.rows).lengths(case.params, case.cotangent)
    monkeypatch.setattr(jacobian, "BLOCK_BYTES", 1)
    small = replace(case.model)
    assert (small.block, case.model.block > ROWS) == (1, True)
    assert near(RowsObjective.of(small, case.rows).product(case.params, case.vector), expected)
    assert near(small.outputs(case.rows).lengths(case.params, case.cotangent), lengths)


def test_rows_at_once_follow_from_what_the_layers_keep() -> None:
    model = model_of("mlp:1000-1000", precision="float32")
    kept = model.network.row_bytes(
        model.network.tensor(model.weights), torch.zeros(8, *model.sample_shape)
    )
    activations = 4 * (9 + 1000 + 1000)
    assert activations < kept < 10 * activations
    assert model.block == min(jacobian.BLOCK_BYTES // kept, jacobian.MOST_ROWS)


def test_a_module_is_left_as_it_is() -> None:
    case = problem("residual")
    module = built(case.model.architecture, len(case.model.weights))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    RowsObjective.of(case.model, case.rows).value_and_gradient(case.params)
    RowsObjective.of(case.model, case.rows).product(case.params, case.vector)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_rows_that_cannot_be_written_are_read() -> None:
    model = model_of("mlp:5-4")
    rows = samples_of(model, ROWS).to_numpy()
    expected = model.outputs_of(rows).at(model.weights)[0]
    fixed = rows.copy()
    fixed.flags.writeable = False
    assert near(model.outputs_of(fixed).at(model.weights)[0], expected, 0)


def test_free_memory_is_the_least_of_machine_and_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\n")
    monkeypatch.setattr(jacobian, "MEMORY", meminfo)
    monkeypatch.setattr(jacobian, "CGROUP", tmp_path)
    assert jacobian.free_memory() == 2000 * 1024
    (tmp_path / "memory.current").write_text("600000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert jacobian.free_memory() == 2000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    assert jacobian.free_memory() == 400000
    monkeypatch.setattr(jacobian, "MEMORY", tmp_path / "none")
    assert jacobian.free_memory() == 400000
