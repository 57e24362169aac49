"""A linearized network against its explicit Jacobian, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from probekit.errors import InputError
from probekit.jacobian.linearize import Linearized, linearize
from probekit.models.networks import network

Array = NDArray[np.float64]
SHAPES = {
    "mlp": (1, 6, 6),
    "mlp-large": (1, 5, 5),
    "cnn": (3, 16, 16),
    "lenet": (1, 12, 12),
    "resnet": (3, 8, 8),
    "vit": (3, 8, 8),
}
CLASSES, ROWS = 3, 5


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def pictures(name: str, *, rows: int = ROWS, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.standard_normal((rows, *SHAPES[name])))


def lively(name: str, *, seed: int = 0) -> nn.Module:
    """A network whose batch norms have seen something."""
    module = network(name, SHAPES[name], CLASSES, seed=seed).double()
    module.train()
    with torch.no_grad():
        module(pictures(name, rows=8, seed=seed + 1) * 2 + 1)
    return module.eval()


def jacobian(model: Linearized, inputs: Tensor) -> Array:
    """Row by row of J, by reverse mode through torch.func."""
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.func.jacrev(lambda p: model.forward(p, inputs))(model.base)
    rows = len(inputs) * found[0].shape[1]
    return np.asarray(torch.cat([one.reshape(rows, -1) for one in found], dim=1).numpy())


def near(found: Array, wanted: Array, tolerance: float = 1e-10) -> bool:
    return bool(np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_products_equal_the_explicit_jacobian(name: str, keep: bool) -> None:
    model, inputs = linearize(lively(name)), pictures(name)
    rows, dense = model.over(inputs, batch=2, keep=keep), jacobian(model, inputs)
    random = np.random.default_rng(3)
    v, u = random.standard_normal(rows.shape), random.standard_normal((ROWS, CLASSES))
    assert rows.plan.kept == (3 if keep else 0)
    assert near(rows.jvp(v), (dense @ v).reshape(ROWS, CLASSES))
    assert near(rows.vjp(u), dense.T @ u.reshape(-1, 1))
    assert near(rows.curvature(0.3).matvec(v), dense.T @ (dense @ v) / ROWS + 0.3 * v)
    with torch.no_grad():
        assert near(rows.offset, model.module(inputs).numpy())


@pytest.mark.parametrize("name", ["mlp", "cnn", "vit"])
def test_float32_is_as_good_as_float32_can_be(name: str) -> None:
    exact, coarse = linearize(lively(name)), linearize(lively(name), dtype=torch.float32)
    v = np.random.default_rng(0).standard_normal((exact.size, 1))
    wanted = exact.over(pictures(name)).curvature(0.1).matvec(v)
    found = coarse.over(pictures(name)).curvature(0.1).matvec(v)
    assert coarse.dtype == torch.float32
    assert near(found, wanted, 1e-4)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 7),
    batch=st.integers(1, 7),
    keep=st.booleans(),
    centre=st.sampled_from(["wp", "zero"]),
)
def test_vjp_is_the_adjoint_of_jvp(seed: int, rows: int, batch: int, keep: bool, centre: str) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(seed)
    module = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2)).double()
    inputs = random.standard_normal((rows, 4))
    model = linearize(module).over(inputs, batch=batch, keep=keep, centre=centre)
    v, u = random.standard_normal(model.shape), random.standard_normal((rows, 2))
    left, right = float((model.jvp(v) * u).sum()), float((v * model.vjp(u)).sum())
    assert abs(left - right) <= 1e-12 * np.linalg.norm(model.jvp(v)) * np.linalg.norm(u) + 1e-14


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_outputs_at_the_start_are_the_networks(centre: str) -> None:
    rows = linearize(lively("mlp")).over(pictures("mlp"), centre=centre)
    with torch.no_grad():
        wanted = rows.model.module(pictures("mlp")).numpy()
    start = np.zeros(rows.shape) if centre == "wp" else rows.model.weights
    assert near(rows.outputs(start), wanted)
    moved = start + 1e-6
    assert near(rows.outputs(moved) - wanted, rows.jvp(np.full(rows.shape, 1e-6)), 1e-6)


def test_a_subset_is_those_columns_of_the_jacobian() -> None:
    module, inputs = lively("cnn"), pictures("cnn")
    whole, names = linearize(module), [name for name, _ in module.named_parameters()]
    ends = np.cumsum([0, *(one.numel() for one in module.parameters())])
    dense = jacobian(whole, inputs)
    for subset, chosen in (
        (["0.*", "*.bias"], [n for n in names if n.startswith("0.") or n.endswith("bias")]),
        (2, names[-4:]),
        ("11.weight", ["11.weight"]),
    ):
        part = linearize(module, None, subset)
        assert list(part.names) == chosen
        columns = np.concatenate([np.arange(ends[names.index(n)], ends[names.index(n) + 1]) for n in chosen])
        v = np.random.default_rng(0).standard_normal((part.size, 1))
        assert near(part.over(inputs).jvp(v).reshape(-1, 1), dense[:, columns] @ v)


def test_weights_can_be_given_by_name_or_in_a_column() -> None:
    module, other, inputs = lively("mlp"), lively("mlp", seed=5), pictures("mlp")
    by_name = linearize(module, dict(other.named_parameters()))
    in_column = linearize(module, linearize(other).weights)
    with torch.no_grad():
        wanted = other(inputs).numpy()
    assert near(by_name.over(inputs).offset, wanted)
    assert near(in_column.over(inputs).offset, wanted)
    with pytest.raises(InputError, match=r"1\.weight should be \(100, 36\), found \(2, 2\)"):
        linearize(module, {"1.weight": torch.zeros(2, 2)})
    with pytest.raises(InputError, match=r"one column of .* numbers; found shape"):
        linearize(module, np.zeros((3, 1)))


def test_the_module_given_is_left_alone() -> None:
    module = lively("resnet")
    before = {name: one.clone() for name, one in module.state_dict().items()}
    rows = linearize(module).over(pictures("resnet"))
    rows.vjp(np.ones((ROWS, CLASSES)))
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert all(one.requires_grad and one.grad is None for one in module.parameters())


def test_torchs_own_attention_layers_work() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).double().eval()
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 2).double())
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 3, 8)))
    model = linearize(module.eval())
    v = np.random.default_rng(1).standard_normal((model.size, 1))
    assert near(model.over(inputs).jvp(v).reshape(-1, 1), jacobian(model, inputs) @ v)


class Noisy(nn.Linear):
    """Functional dropout that no mode turns off."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return functional.dropout(super().forward(input), 0.5, training=True)


class Mixing(nn.Linear):
    """Centres a batch by its own mean."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        found = super().forward(input)
        return found - found.mean(0)


class Writing(nn.Linear):
    """Writes into a tensor of its own."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.scratch: Any = torch.zeros(2)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        found = super().forward(input)
        self.scratch.copy_(found[0] * 0)
        changed: Tensor = found + self.scratch
        return changed


def infinite() -> nn.Module:
    """A layer with a weight that is no number."""
    layer = nn.Linear(4, 2)
    nn.init.constant_(layer.weight, float("inf"))
    return layer


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "dropout in train mode": (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)).train(), r"train mode.*eval\(\)"),
    "batch norm in train mode": (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).train(), r"train mode.*eval\(\)"),
    "batch norm without memory": (
        nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False)).eval(),
        "no running statistics",
    ),
    "randomness": (Noisy(4, 2).eval(), "two calls gave different ones"),
    "mixed rows": (Mixing(4, 2).eval(), "must not depend on other rows"),
    "in place": (Writing().eval(), "in place.*without the trailing underscore"),
    "another input": (nn.Linear(5, 2).eval(), r"cannot take inputs of shape \(4,\)"),
    "no scores": (nn.Sequential(nn.Linear(4, 2), nn.Unflatten(1, (1, 2))).eval(), "one score per class for each input"),
    "not finite": (infinite(), "finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_linearized_is_refused_with_the_reason(case: str) -> None:
    module, reason = REFUSED[case]
    with pytest.raises(InputError, match=reason) as caught:
        linearize(module).over(torch.randn(6, 4))
    assert "\n" not in str(caught.value)


def test_wrong_shapes_and_names_are_refused() -> None:
    model = linearize(nn.Linear(4, 2))
    rows = model.over(torch.randn(6, 4))
    with pytest.raises(InputError, match=r"one column of 10 numbers; found shape \(10,\)"):
        rows.jvp(np.zeros(10))
    with pytest.raises(InputError, match=r"shape \(6, 2\); found \(5, 2\)"):
        rows.vjp(np.zeros((5, 2)))
    with pytest.raises(InputError, match="at least one input"):
        model.over(torch.randn(0, 4))
    with pytest.raises(InputError, match="counted from one of wp, zero"):
        model.over(torch.randn(6, 4), centre="middle")
    with pytest.raises(InputError, match="No parameter's name matches 'head"):
        linearize(nn.Linear(4, 2), None, "head.*")
    with pytest.raises(InputError, match="counted from 1 to 1 here; found 2"):
        linearize(nn.Linear(4, 2), None, 2)
    with pytest.raises(InputError, match="no parameters"):
        linearize(nn.Flatten())


def test_memory_is_predicted_and_decides_what_is_kept() -> None:
    model, inputs = linearize(lively("cnn")), pictures("cnn", rows=64)
    rich = model.over(inputs, batch=8)
    assert rich.plan.kept == 8
    need = rich.plan.prediction.total
    poor = model.over(inputs, batch=8, memory=need)
    assert 0 < poor.plan.kept < 8
    assert poor.plan.prediction.total <= need
    v = np.random.default_rng(0).standard_normal((model.size, 1))
    assert near(poor.jvp(v), rich.jvp(v))
    with pytest.raises(
        InputError, match=r"needs .* MiB \(weights and gradients .* of memory, and 977 KiB is to be had"
    ):
        model.over(inputs, memory=10**6)


def test_fewer_rows_are_taken_at_once_where_memory_is_short() -> None:
    model, inputs = linearize(lively("cnn")), pictures("cnn", rows=64)
    free = model.over(inputs).plan.prediction.parts["weights and gradients"] * 2
    assert model.over(inputs, memory=free).plan.batch < model.over(inputs).plan.batch
