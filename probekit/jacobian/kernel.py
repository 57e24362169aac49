"""The kernel J J^T of a network's rows, layer by layer, without the Jacobian.

A linear layer with inputs a and gradients b of its outputs has the gradient b a^T, so that two rows' inner product
is <a, a'> <b, b'> (one more for the bias): small matrices instead of rows as long as the layer. Where a layer
meets a row many times (patches of a convolution, tokens of attention) the sum of b a^T over them is formed, as
long as that layer alone. Parameters of other layers (norms, tokens) get explicit rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from probekit.jacobian.linearize import Linearized, LinearizedRows, tensor_of
from probekit.jacobian.memory import free_memory
from probekit.jacobian.tape import Tensors, differentiable

BLOCK_BYTES = 2**26
AGREEMENT = 1e-3
"""How far, relatively, the kernel of few rows may be from jvp(vjp(.)) before the layers are not trusted."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of some rows: rows of the Jacobian itself, (n, k, q), or the factors of such rows.

    A layer met once per row has `inputs` a beside the gradients b in `rows`:
    J J^T = (a a^T [weight] + 1 [bias]) * (b b^T), entry by entry.
    """

    rows: Tensor
    inputs: Tensor | None = None
    weight: bool = False
    bias: bool = False

    @property
    def tensors(self) -> Tensors:
        """What it holds."""
        return (self.rows,) if self.inputs is None else (self.rows, self.inputs)

    def with_tensors(self, rows: Tensor, inputs: Tensor | None = None) -> Layer:
        """The same layer of other rows."""
        return Layer(rows, inputs, self.weight, self.bias)

    def joined(self, parts: Sequence[Layer]) -> Layer:
        """The same layer of all these parts' rows."""
        return self.with_tensors(*map(torch.cat, zip(*(one.tensors for one in parts), strict=True)))

    def kernel(self, other: Layer) -> Tensor:
        """Against another's rows, (n, k, m, k)."""
        (n, k, q), m = self.rows.shape, len(other.rows)
        found: Tensor = (self.rows.reshape(n * k, q) @ other.rows.reshape(m * k, q).T).view(n, k, m, k)
        if self.inputs is not None and other.inputs is not None:
            found.mul_(self._meeting(self.inputs @ other.inputs.T)[:, None, :, None])
        return found

    def blocks(self) -> Tensor:
        """Each row against itself, (n, k, k)."""
        found = torch.einsum("nkq,nlq->nkl", self.rows, self.rows)
        return found if self.inputs is None else found * self._meeting(self.inputs.square().sum(1))[:, None, None]

    def _meeting(self, inner: Tensor) -> Tensor:
        return inner.mul_(float(self.weight)).add_(float(self.bias))


@dataclass(frozen=True, eq=False)
class Factors:
    """All layers of some rows."""

    layers: tuple[Layer, ...]

    def kernel(self, other: Factors) -> Tensor:
        """J J'^T, (n k, m k), rows first, then classes; a block of rows at a time."""
        first, width = self.layers[0].rows, other.layers[0].rows.shape[:2].numel()
        count, classes = first.shape[:2]
        found = torch.zeros((count * classes, width), dtype=first.dtype, device=first.device)
        step = max(1, BLOCK_BYTES // (classes * width * first.element_size()))
        for start in range(0, count, step):
            block = found[start * classes : (start + step) * classes]
            for one, two in zip(self.layers, other.layers, strict=True):
                taken = one.with_tensors(*(held[start : start + step] for held in one.tensors))
                block += taken.kernel(two).view(block.shape)
        return found

    def blocks(self) -> Tensor:
        """Each row's own k by k kernel, (n, k, k)."""
        return torch.stack([one.blocks() for one in self.layers]).sum(0)


def factors(rows: LinearizedRows) -> Factors:
    """The layers of all rows, held at once."""
    layers = zip(*(batch.layers for batch in batch_factors(rows)), strict=True)
    return Factors(tuple(parts[0].joined(parts) for parts in layers))


def batch_factors(rows: LinearizedRows) -> Iterator[Factors]:
    """The layers of one batch after the other, of no more rows at once than `rows_at_once` says."""
    layers = _trusted(rows)
    most = _room(rows, _row_bytes(rows, layers), free_memory(rows.model.device))
    for some in rows.input_batches():
        for part in torch.split(some, most):
            yield _factors(rows.model, part, rows.classes, layers)


def rows_at_once(rows: LinearizedRows, free: int) -> int:
    """Of how many rows the layers may be held at once: a batch's, or what a quarter of this memory has room for."""
    return _room(rows, factor_bytes(rows) // rows.count, free)


def _room(rows: LinearizedRows, each: int, free: int) -> int:
    return max(1, min(rows.plan.batch, free // (4 * max(1, each))))


def factor_bytes(rows: LinearizedRows) -> int:
    """What the layers of all rows would take."""
    return rows.count * _row_bytes(rows, _trusted(rows))


def _row_bytes(rows: LinearizedRows, layers: dict[str, nn.Module]) -> int:
    """What those of one row take."""
    made = _factors(rows.model, rows.inputs[:1].to(rows.model.device), rows.classes, layers)
    return sum(one.numel() * one.element_size() for layer in made.layers for one in layer.tensors)


def jacobian_diagonal(rows: LinearizedRows) -> Tensor:
    """The diagonal of J^T J, from explicit rows of the Jacobian, as many at a time as fit into a block."""
    model = rows.model
    found = torch.zeros(model.size, dtype=torch.float64)
    step = max(1, BLOCK_BYTES // (rows.classes * model.size * model.base[0].element_size()))
    for start in range(0, rows.count, step):
        some = rows.inputs[start : start + step].to(model.device)
        found += _explicit(model, some, rows.classes, range(len(model.base))).square().sum((0, 1)).to(found)
    return found


def _trusted(rows: LinearizedRows) -> dict[str, nn.Module]:
    """The layers whose structure can be used: those that make the kernel of few rows what it is."""
    model = rows.model
    few = model.over(rows.inputs[:3], keep=False)
    layers = _structured(model, few.inputs.to(model.device))
    made = _factors(model, few.inputs.to(model.device), rows.classes, layers)
    u = torch.linspace(-1, 1, few.count * few.classes, dtype=torch.float64).view(few.count, few.classes)
    wanted = tensor_of(few.jvp(few.vjp(u.numpy()))).view(-1)
    found = made.kernel(made).to("cpu", torch.float64) @ u.view(-1)
    # a weight that is also used outside its layer makes them differ; then no layer is trusted
    return layers if torch.linalg.norm(found - wanted) <= AGREEMENT * torch.linalg.norm(wanted) else {}


def _structured(model: Linearized, inputs: Tensor) -> dict[str, nn.Module]:
    """Linear and plain convolution layers that move, are called once, and share no weight with another."""
    owners = Counter(id(one) for _, one in model.module.named_parameters(remove_duplicate=False))
    found: dict[str, nn.Module] = {}
    for name, layer in model.module.named_modules():
        plain = type(layer) is nn.Linear
        if type(layer) is nn.Conv2d:
            plain = layer.groups == 1 and not isinstance(layer.padding, str) and layer.padding_mode == "zeros"
        own = {f"{name}.{key}".removeprefix("."): one for key, one in layer.named_parameters(recurse=False)}
        if plain and own.keys() & model.names and all(owners[id(one)] == 1 for one in own.values()):
            found[name] = layer
    with torch.no_grad(), differentiable(), _listening(found) as heard:
        model.forward(model.base, inputs)
    calls = Counter(call.name for call in heard)
    return {name: layer for name, layer in found.items() if calls[name] == 1}


class _Call(NamedTuple):
    """A layer's name and input, where its output stands in the graph (None: nowhere), and zeros like that output."""

    name: str
    given: Tensor
    edge: GradientEdge | None
    zeros: Tensor


@contextmanager
def _listening(layers: dict[str, nn.Module]) -> Iterator[list[_Call]]:
    """Notes each call of a layer."""
    calls: list[_Call] = []

    def note(name: str, _: nn.Module, given: Tensors, out: Tensor) -> None:
        # the edge, not the tensor: an operation in place (ReLU(inplace=True)) makes the tensor its own output
        edge = get_gradient_edge(out) if out.requires_grad else None
        calls.append(_Call(name, given[0], edge, out.new_zeros(()).expand(out.shape)))

    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _factors(model: Linearized, inputs: Tensor, classes: int, layers: dict[str, nn.Module]) -> Factors:
    leaves = tuple(one.detach().requires_grad_() for one in model.base)
    found: list[Layer] = []
    covered: set[str] = set()
    if layers:
        with torch.enable_grad(), differentiable(), _listening(layers) as heard:
            outputs = model.forward(leaves, inputs)
            calls = {call.edge: call for call in heard if call.edge is not None}
            sums = outputs.sum(0)  # rows do not mix, so the gradient of a sum over rows holds each row's own
            each = [
                torch.autograd.grad(sums[k], [*calls], retain_graph=True, allow_unused=True) for k in range(classes)
            ]
        for call, *parts in zip(calls.values(), *each, strict=True):
            names = [f"{call.name}.{key}".removeprefix(".") for key in ("weight", "bias")]
            covered.update(names)
            gradients = torch.stack([call.zeros if one is None else one for one in parts], dim=1).detach()
            moving = (one in model.names for one in names)
            found.append(_layer(layers[call.name], call.given.detach(), gradients, *moving))
    rest = [place for place, name in enumerate(model.names) if name not in covered]
    if rest:
        found.append(Layer(_explicit(model, inputs, classes, rest)))
    return Factors(tuple(found))


def _layer(layer: nn.Module, given: Tensor, gradients: Tensor, weight: bool, bias: bool) -> Layer:
    """One layer of a batch: from its inputs (n, ...) and the gradients of its outputs (n, k, ...)."""
    rows, classes = gradients.shape[:2]
    if isinstance(layer, nn.Conv2d):
        options: dict[str, Any] = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}
        seen, felt = functional.unfold(given, layer.kernel_size, **options), gradients.flatten(3)
    elif given.dim() == 2:
        return Layer(gradients, given, weight, bias)
    else:
        seen = given.reshape(rows, -1, given.shape[-1]).transpose(1, 2)
        felt = gradients.reshape(rows, classes, -1, gradients.shape[-1]).transpose(2, 3)
    # one product for all classes of a row: its inputs are not copied for each
    parts = [(felt.flatten(1, 2) @ seen.transpose(1, 2)).reshape(rows, classes, -1)] if weight else []
    return Layer(torch.cat([*parts, felt.sum(3)] if bias else parts, dim=2))


def _explicit(model: Linearized, inputs: Tensor, classes: int, rest: Sequence[int]) -> Tensor:
    """Rows of the Jacobian for some of the parameters, (n, k, q)."""
    own = tuple(model.base[place] for place in rest)

    def outputs(moved: Tensors, row: Tensor) -> Tensor:
        tensors = dict(enumerate(model.base)) | dict(zip(rest, moved, strict=True))
        return model.forward(tuple(tensors.values()), row[None])[0]

    with differentiable():
        try:
            found = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, 0))(own, inputs)
        except RuntimeError:  # not every operation can be batched; one row after the other always can
            each = [torch.func.jacrev(outputs)(own, row) for row in inputs]
            found = tuple(torch.stack(ones) for ones in zip(*each, strict=True))
    return torch.cat([one.detach().reshape(len(inputs), classes, -1) for one in found], dim=2)
