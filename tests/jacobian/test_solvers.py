"""The kernel of a network's rows and the solves of its curvature, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from probekit.errors import InputError, NotFoundError, SolverError
from probekit.jacobian import kernel
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.inverse import DualInverse
from probekit.jacobian.kernel import factor_bytes, factors
from probekit.jacobian.linearize import LinearizedRows, linearize
from probekit.jacobian.memory import size_text
from probekit.linear.design import Design, Solution
from probekit.linear.ridge import fit
from probekit.linear.solvers import ConjugateGradient
from probekit.linear.statistics import statistics
from probekit.models.adam import AdamSteps
from probekit.models.networks import network

Array = NDArray[np.float64]
SHAPES = {"mlp": (1, 6, 6), "cnn": (3, 16, 16), "lenet": (1, 12, 12), "resnet": (3, 8, 8), "vit": (3, 8, 8)}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def rows_of(module: nn.Module, inputs: Tensor, subset: str | None = None) -> LinearizedRows:
    return linearize(module.double().eval(), None, subset).over(inputs.double(), batch=3)


def jacobian(rows: LinearizedRows) -> Array:
    """J, explicitly."""
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.func.jacrev(lambda p: rows.model.forward(p, rows.inputs))(rows.model.base)
    return np.asarray(torch.cat([one.reshape(rows.count * rows.classes, -1) for one in found], dim=1).numpy())


def small(*, count: int = 24, seed: int = 0) -> LinearizedRows:
    """A perceptron of 12-8-6-3: small enough for a dense solve."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(12, 8), nn.LeakyReLU(0.01), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    return rows_of(module, torch.randn(count, 12) * 3)


def check_kernel(rows: LinearizedRows) -> None:
    held, dense = factors(rows), jacobian(rows)
    wanted = dense @ dense.T
    assert np.abs(held.kernel(held).numpy() - wanted).max() <= 1e-10 * np.abs(wanted).max()
    blocks = wanted.reshape(rows.count, rows.classes, rows.count, rows.classes)
    own = np.stack([blocks[number, :, number] for number in range(rows.count)])
    assert np.abs(held.blocks().numpy() - own).max() <= 1e-10 * np.abs(own).max()
    assert factor_bytes(rows) == sum(one.nbytes for layer in held.layers for one in layer.tensors)


@pytest.mark.parametrize("subset", [None, "*.bias", "*weight"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_kernel_by_layers_equals_the_jacobians(name: str, subset: str | None) -> None:
    torch.manual_seed(0)
    check_kernel(rows_of(network(name, SHAPES[name], 3), torch.randn(4, *SHAPES[name]), subset))


def test_linear_layers_need_no_rows_as_long_as_themselves() -> None:
    held = factors(small())
    assert [one.inputs is not None for one in held.layers] == [True] * 3


class Twice(nn.Module):
    """One layer met twice, and one whose weight is used outside it."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        inner: Tensor = torch.tanh(self.again(torch.tanh(self.again(x))))
        found: Tensor = self.last(inner) + functional.linear(x, self.last.weight)
        return found


class Spare(nn.Module):
    """A layer whose output is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        self.spare(x)
        found: Tensor = self.last(x)
        return found


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        found: Tensor = self.last(torch.tanh(self.two(torch.tanh(self.one(x)))))
        return found


@pytest.mark.parametrize(
    "module",
    [
        Twice(),
        Tied(),
        Spare(),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)),
        nn.Sequential(nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 4, 1, groups=2), nn.Flatten(), nn.Linear(8, 2)),
    ],
    ids=["twice", "tied", "spare", "in place", "groups"],
)
def test_layers_that_cannot_be_trusted_get_explicit_rows(module: nn.Module) -> None:
    check_kernel(rows_of(module, torch.randn(4, 4)))


def in_place(kind: str, activation: type[nn.Module]) -> LinearizedRows:
    """Twelve rows of a network with a layer whose output is changed in place, which the first three do not show."""
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, padding=1) if kind == "conv" else nn.Linear(32, 48)
    changed = activation(inplace=True)
    first = [layer, changed, nn.Flatten()] if kind == "conv" else [nn.Flatten(), layer, changed]
    inputs = torch.randn(12, 2, 4, 4) * 0.1
    with torch.no_grad():
        layer.weight.uniform_(0.0, 0.2)
        nn.init.constant_(layer.get_parameter("bias"), 2.5 if activation is nn.Hardswish else 0.0)
        inputs[:3].abs_().add_(5)
        last = nn.Linear(48, 3)
        last.weight.mul_(100)
    return rows_of(nn.Sequential(*first, last), inputs)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Hardswish])
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_an_operation_in_place_after_a_layer_leaves_the_kernel_right(kind: str, activation: type[nn.Module]) -> None:
    """C18: the rows that the layers are tried on show nothing of it, and the layers keep their structure."""
    rows = in_place(kind, activation)
    check_kernel(rows)
    assert len(factors(rows).layers) == 2


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_certain_rows_of_a_network_with_operations_in_place_do_not_flip(kind: str) -> None:
    """C18: as far as the kernel calls a row certain, no move of the weights flips it; hardswish is steeper than 1."""
    rows = in_place(kind, nn.Hardswish)
    dense = jacobian(rows).reshape(rows.count, rows.classes, -1)
    scores = rows.model.forward(rows.model.base, rows.inputs).detach().numpy()
    for number, blocks in enumerate(factors(rows).blocks().numpy()):
        best = int(scores[number].argmax())
        for other in {*range(rows.classes)} - {best}:
            lead = scores[number, best] - scores[number, other]
            apart = np.sqrt(blocks[best, best] + blocks[other, other] - 2 * blocks[best, other])
            certain = 0.999 * lead / apart  # a move of the weights up to which the kernel calls the row certain
            assert lead > certain * np.linalg.norm(dense[number, best] - dense[number, other])


@pytest.mark.parametrize("ridge", [1e-1, 1e-3])
def test_dual_preconditioned_and_dense_solves_agree(ridge: float) -> None:
    rows = small()
    dense = jacobian(rows)
    matrix = dense.T @ dense / rows.count + ridge * np.eye(rows.model.size)
    rhs = np.random.default_rng(0).standard_normal(rows.shape)
    wanted = np.linalg.solve(matrix, rhs)
    for solver in (
        CurvatureSolver("dual", 1e-10),
        CurvatureSolver("pcg", 1e-10, landmarks=6),
        CurvatureSolver("cg", 1e-10),
    ):
        solution = solver.solve(rows.curvature(ridge), rhs)
        assert np.linalg.norm(solution.value - wanted) <= 1e-6 * np.linalg.norm(wanted)
        true = np.linalg.norm(matrix @ solution.value - rhs) / np.linalg.norm(rhs)
        assert solution.residual <= 1e-10
        assert abs(solution.residual - true) <= 1e-12
        assert solution.method == solver.way


def test_the_preconditioner_saves_most_of_the_steps() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 3))
    rows = linearize(module.double()).over(torch.randn(60, 20).double() * torch.logspace(1, -2, 20).double())
    rhs = np.random.default_rng(0).standard_normal(rows.shape)
    plain = CurvatureSolver("cg", 1e-8).solve(rows.curvature(1e-3), rhs)
    helped = CurvatureSolver("pcg", 1e-8, landmarks=20).solve(rows.curvature(1e-3), rhs)
    exact = CurvatureSolver("dual", 1e-8).solve(rows.curvature(1e-3), rhs)
    assert helped.steps < plain.steps / 2
    assert exact.steps <= 4


def test_float32_networks_are_solved_in_float64() -> None:
    exact = small()
    coarse = linearize(exact.model.module, dtype=torch.float32).over(exact.inputs.float())
    rhs = np.random.default_rng(0).standard_normal(exact.shape)
    solution = CurvatureSolver(tolerance=1e-10).solve(coarse.curvature(1e-3), rhs)
    assert solution.residual <= 1e-10
    wanted = CurvatureSolver(tolerance=1e-10).solve(exact.curvature(1e-3), rhs).value
    assert np.linalg.norm(solution.value - wanted) <= 1e-4 * np.linalg.norm(wanted)


def test_a_preconditioner_shrinks_to_what_fits() -> None:
    rows = small()
    rhs = np.random.default_rng(0).standard_normal(rows.shape)
    whole = CurvatureSolver("pcg", 1e-10, landmarks=20).choose(rows, 0.1)
    for memory, name in ((whole.prediction.total, "pcg"), (whole.prediction.total // 3, "pcg"), (500, "cg")):
        solver = CurvatureSolver("pcg", 1e-10, landmarks=20, memory=memory)
        way = solver.choose(rows, 0.1)
        assert way.name == name
        assert way.prediction.total <= memory
        assert (way.landmarks == 20) == (memory == whole.prediction.total)
        assert size_text(memory) in way.why or way.landmarks == 20
        assert solver.solve(rows.curvature(0.1), rhs).residual <= 1e-10
    applied = CurvatureSolver(memory=500).inverse(rows, 0.1).matvec(rhs)
    assert np.array_equal(applied, rhs)  # nothing fits: none at all


def test_layers_of_few_rows_are_held_at_once_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = small()
    whole = torch.cat([one.blocks() for one in kernel.batch_factors(rows)])
    monkeypatch.setattr(kernel, "free_memory", lambda device: 4 * 2 * kernel.factor_bytes(rows) // rows.count)
    parts = [one.blocks() for one in kernel.batch_factors(rows)]
    assert max(map(len, parts)) == 2
    assert torch.allclose(torch.cat(parts), whole)


def test_the_choice_is_explained() -> None:
    rows = small()
    assert "24 rows x 3 classes, a matrix of 72, is factored once" in CurvatureSolver().choose(rows, 0.1).why
    short = CurvatureSolver(memory=2**28 + 80_000, landmarks=5).choose(rows, 0.1)
    assert short.name == "pcg"
    assert "does not fit into 256 MiB" in short.why
    assert "span of 5 rows' Jacobians (15 directions)" in short.why
    assert CurvatureSolver("dual").choose(rows, 0.1).prediction.parts["kernel and factor"] == 2 * 8 * 72**2
    with pytest.raises(InputError, match=r"This needs .* of memory, and 977 KiB is to be had"):
        CurvatureSolver("dual", memory=10**6).choose(rows, 0.1)
    with pytest.raises(NotFoundError, match=r"no way 'duel'.*dual"):
        CurvatureSolver("duel")


def test_what_has_no_inverse_is_refused() -> None:
    rows = small()
    with pytest.raises(InputError, match=r"has rank 72 at most, in 179 parameters.*ridge above 0"):
        CurvatureSolver().solve(rows.curvature(0.0), np.ones(rows.shape))
    with pytest.raises(InputError, match="0 or more; found -1"):
        CurvatureSolver().solve(rows.curvature(-1.0), np.ones(rows.shape))
    with pytest.raises(InputError, match=r"curvature; found Matrix\. Use ConjugateGradient"):
        CurvatureSolver().solve(np.eye(3), np.ones((3, 1)))
    with pytest.raises(SolverError) as caught:
        CurvatureSolver("cg", 1e-12, max_steps=2).solve(rows.curvature(1e-3), np.ones(rows.shape))
    assert isinstance(caught.value.best, Solution)


def test_the_papers_adam_runs_and_tells_its_residual() -> None:
    rows = small()
    rhs = np.random.default_rng(0).standard_normal(rows.shape)
    adam = AdamSteps(steps=50).solve(rows.curvature(1e-2), rhs)
    exact = ConjugateGradient(1e-10).solve(rows.curvature(1e-2), rhs)
    assert adam.residual > 1e-2 > exact.residual


def test_a_linear_layer_on_embeddings_gives_the_embedding_backends_head() -> None:
    random = np.random.default_rng(0)
    embeddings, labels = random.standard_normal((200, 16)) + 1, random.integers(0, 4, 200)
    head = fit(statistics(embeddings, labels, Design(16, 4)), 0.05)
    rows = linearize(nn.Linear(16, 4).double()).over(embeddings, centre="zero")
    assert np.abs(rows.offset).max() < 1e-12
    moment = rows.vjp(np.eye(4)[labels]) / 200
    for way in ("dual", "pcg", "cg"):
        params = CurvatureSolver(way, 1e-11).solve(rows.curvature(0.05), moment).value
        weight, bias = params[:64].reshape(4, 16).T, params[64:].reshape(1, 4)
        assert np.abs(np.vstack([weight, bias]) - head.params).max() < 1e-8


def test_a_shared_preconditioner_trusts_no_curvature_that_its_rows_cannot_tell() -> None:
    torch.manual_seed(0)
    rows = linearize(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()).over(
        torch.randn(9, 6).double()
    )
    v = np.random.default_rng(0).standard_normal(rows.shape)
    dense = np.stack([rows.vjp(one.reshape(9, 3))[:, 0] for one in np.eye(27)])
    floor = float(np.square(dense).sum()) / 9**2
    for ridge in (1e-6, 10 * floor):
        wanted = np.linalg.solve(dense.T @ dense / 9 + max(ridge, floor) * np.eye(rows.shape[0]), v)
        assert np.allclose(CurvatureSolver().shared_inverse(rows, ridge).matvec(v), wanted, rtol=1e-8, atol=1e-10)


def test_a_dual_that_float32_cannot_factor_is_factored_in_float64() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(12, 6).double()
    rows = linearize(nn.Linear(6, 3).double()).over(torch.cat([inputs, inputs]) * 1e3)
    assert DualInverse.of(rows, 1e-2, low_precision=True).factor.dtype == torch.float64
    assert DualInverse.of(rows, 1e4, low_precision=True).factor.dtype == torch.float32
