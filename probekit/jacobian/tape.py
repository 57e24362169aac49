"""One batch of a network around fixed weights: products with its Jacobian J and with J^T.

`Tape` passes the batch through the network once and keeps the pass. J^T u is a replay of its backward pass;
that is linear in u, so J v is the derivative of <J^T u, v> with respect to u: a replay as well. No product
passes through the network again. `Fresh` keeps nothing and passes through it for every product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Tensors = tuple[Tensor, ...]
Forward = Callable[[Tensors, Tensor], Tensor]


@contextmanager
def differentiable() -> Iterator[None]:
    """Attention by kernels that have forward-mode and second derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class Tape:
    """A batch whose pass through the network is kept."""

    def __init__(self, forward: Forward, params: Tensors, inputs: Tensor) -> None:
        self._leaves = tuple(one.detach().requires_grad_() for one in params)
        with torch.enable_grad(), differentiable(), _Convolutions():
            self._outputs = forward(self._leaves, inputs)
            self._seed = torch.zeros_like(self._outputs, requires_grad=True)
            pulled = torch.autograd.grad(self._outputs, self._leaves, self._seed, create_graph=True, allow_unused=True)
        used = {place: one for place, one in enumerate(pulled) if one is not None and one.requires_grad}
        # edges of the graph instead of the tensors: their values, zeros as large as the network, are not kept
        self._pulled = {place: get_gradient_edge(one) for place, one in used.items()}

    @property
    def outputs(self) -> Tensor:
        """The network's outputs at the fixed weights."""
        return self._outputs.detach()

    def jvp(self, tangents: Tensors) -> Tensor:
        """J v."""
        if not self._pulled:
            return torch.zeros_like(self._outputs)
        seeds = [tangents[place] for place in self._pulled]
        return torch.autograd.grad(tuple(self._pulled.values()), self._seed, seeds, retain_graph=True)[0]

    def vjp(self, cotangents: Tensor) -> Tensors:
        """J^T u."""
        return torch.autograd.grad(
            self._outputs, self._leaves, cotangents, retain_graph=True, allow_unused=True, materialize_grads=True
        )


class Fresh:
    """A batch that is passed through the network whenever it is asked."""

    def __init__(self, forward: Forward, params: Tensors, inputs: Tensor) -> None:
        self._forward, self._params, self._inputs = forward, params, inputs

    @property
    def outputs(self) -> Tensor:
        """The network's outputs at the fixed weights."""
        with torch.no_grad(), differentiable():
            return self._forward(self._params, self._inputs)

    def jvp(self, tangents: Tensors) -> Tensor:
        """J v, in forward mode."""
        return self.both(tangents)[1]

    def both(self, tangents: Tensors) -> tuple[Tensor, Tensor]:
        """The outputs and J v, from one pass."""
        with torch.no_grad(), differentiable():
            outputs, pushed, *_ = torch.func.jvp(self._function, self._params, tangents)
        return outputs, pushed

    def vjp(self, cotangents: Tensor) -> Tensors:
        """J^T u."""
        with differentiable():
            _, pull, *_ = torch.func.vjp(self._function, *self._params)
            found: Tensors = pull(cotangents)
        return tuple(one.detach() for one in found)

    def _function(self, *params: Tensor) -> Tensor:
        return self._forward(params, self._inputs)


class _Convolutions(TorchFunctionMode):
    """Convolutions whose second derivative computes what a tape asks for, half of what PyTorch's does."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is functional.conv2d and (given := _conv2d_arguments(*args, **(kwargs or {}))) is not None:
            return _Convolution.apply(*given)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _conv2d_arguments(
    input: Tensor,  # noqa: A002 (torch's own name for it)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...] | None:
    """The arguments in one form, or None for those left to PyTorch."""
    if isinstance(padding, str) or input.dim() != 4:
        return None
    pairs = [list(one) if isinstance(one, Sequence) else [one, one] for one in (stride, padding, dilation)]
    if any(len(pair) != 2 for pair in pairs):
        return None
    return (input, weight, bias, *pairs, groups)


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options, ctx.biased = options, bias is not None
        return _convolved(x, weight, bias, options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mask = [*ctx.needs_input_grad[:2], ctx.biased and ctx.needs_input_grad[2]]
        found = _Backward.apply(gradient, *ctx.saved_tensors, mask, ctx.options)  # type: ignore[no-untyped-call]
        return (*found, None, None, None, None)


class _Backward(Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool], options: Any) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.options = options
        ctx.set_materialize_grads(False)
        *where, groups = options
        return torch.ops.aten.convolution_backward(
            gradient, x, weight, [len(weight)], *where, False, [0, 0], groups, mask
        )

    @staticmethod
    def backward(ctx: Any, in_x: Tensor | None, in_weight: Tensor | None, in_bias: Tensor | None) -> Any:
        # only what leads back to the gradient: the tangent of the convolution's output
        x, weight = ctx.saved_tensors
        parts = []
        if in_x is not None:
            parts.append(_convolved(in_x, weight, None, ctx.options))
        if in_weight is not None:
            parts.append(_convolved(x, in_weight, in_bias, ctx.options))
        elif in_bias is not None:
            parts.append(in_bias[None, :, None, None].expand_as(_convolved(x, weight, None, ctx.options)))
        return (sum(parts) if parts else None, None, None, None, None)


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, options: Sequence[Any]) -> Tensor:
    *where, groups = options  # stride, padding, dilation
    found: Tensor = torch.ops.aten.convolution(x, weight, bias, *where, False, [0, 0], groups)
    return found
