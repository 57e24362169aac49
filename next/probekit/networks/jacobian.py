"""A module as a function of one flat vector of parameters, and the products with its Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from probekit.arrays import Array, Indices
from probekit.errors import InputError
from probekit.objective import Place

BLOCK_BYTES = 1 << 29
"""What the intermediate values of the rows that are computed at once may take."""
MOST_ROWS = 4096
VECTORS = 12
"""Vectors of parameters that training holds beside a batch, at most."""
AGREEMENT = 1e-4
MEMORY = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def differentiable() -> Iterator[None]:
    """Attention by kernels that both modes can differentiate."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass(frozen=True, eq=False)
class FlatModule:
    """f(x; w) with w flat; the buffers are frozen.

    columns: which of the module's outputs count.
    """

    module: nn.Module
    buffers: Mapping[str, Tensor]
    columns: Indices
    dtype: torch.dtype

    @cached_property
    def tensors(self) -> Mapping[str, Place]:
        """Where each tensor stands in the flat vector, and its shape."""
        return places(self.module)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """An array as a tensor of the dtype in which it is computed."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.dtype)

    def outputs(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """f(x; w), (rows, columns)."""
        outputs = self.all_outputs(flat, inputs)
        if outputs.shape[1] == len(self.columns):
            return outputs
        return outputs[:, torch.from_numpy(self.columns)]

    def all_outputs(self, flat: Tensor, inputs: Tensor) -> Tensor:
        params = {name: flat[span].view(shape) for name, (span, shape) in self.tensors.items()}
        with differentiable():
            outputs = functional_call(self.module, {**params, **self.buffers}, (inputs,))
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(inputs):
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise InputError(
                f"A network must return a tensor (rows, classes); of {len(inputs)} rows this one "
                f"returned {shape}. Return the logits alone."
            )
        return outputs

    def push(self, flat: Tensor, vector: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """f(x; w) and J v."""
        result = jvp(lambda w: self.outputs(w, inputs), (flat,), (vector,))
        return result[0], result[1]

    def linearize(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """f(x; w), and u -> J^T u."""
        outputs, pull = vjp(lambda w: self.outputs(w, inputs), flat)[:2]
        return outputs, lambda cotangent: pull(cotangent)[0]

    def row_gradients(
        self, flat: Tensor, inputs: Tensor, cotangents: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """J_i^T u_i of some rows at a time, (m, p)."""

        def gradient(row: Tensor, cotangent: Tensor) -> Tensor:
            return self.linearize(flat, row[None])[1](cotangent[None])

        size = max(1, BLOCK_BYTES // (4 * len(flat) * flat.element_size()))
        batched = vmap(gradient)
        for first in range(0, len(inputs), size):
            part = slice(first, first + size)
            pairs = inputs[part], cotangents[part]
            try:
                gradients = batched(*pairs)
            except (RuntimeError, NotImplementedError):  # not all layers have a rule for it
                gradients = torch.stack([gradient(*pair) for pair in zip(*pairs, strict=True)])
            yield part, gradients

    def row_bytes(self, flat: Tensor, inputs: Tensor) -> int:
        """What one row's intermediate values take, by those that backward passes would keep."""
        fixed = {flat.untyped_storage().data_ptr(), inputs.untyped_storage().data_ptr()}
        fixed |= {buffer.untyped_storage().data_ptr() for buffer in self.buffers.values()}
        sizes: dict[int, int] = {}

        def note(saved: Tensor) -> Tensor:
            storage = saved.untyped_storage()
            if storage.data_ptr() not in fixed:
                sizes[storage.data_ptr()] = storage.nbytes()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            outputs = self.outputs(flat.detach().requires_grad_(), inputs)
        total = sum(sizes.values()) + outputs.nbytes + inputs.nbytes
        return 2 * total // len(inputs)  # forward mode carries a tangent beside each value


def places(module: nn.Module) -> dict[str, Place]:
    """Where each parameter stands in one flat vector, and its shape; tied ones stand there once."""
    spans: dict[str, Place] = {}
    first = 0
    for name, parameter in module.named_parameters():
        spans[name] = (slice(first, first + parameter.numel()), tuple(parameter.shape))
        first += parameter.numel()
    return spans


def frozen_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that values depend on in eval mode, which are real numbers."""
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


def flatten(tensors: Mapping[str, Tensor]) -> Array:
    """Tensors as one vector in float64."""
    return np.concatenate([np.zeros(0), *(as_array(tensor).ravel() for tensor in tensors.values())])


def unflatten(flat: Array, like: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """One vector as tensors of these shapes."""
    tensors: dict[str, Tensor] = {}
    first = 0
    for name, tensor in like.items():
        part = flat[first : first + tensor.numel()]
        tensors[name] = torch.from_numpy(part.copy()).to(dtype).view(tensor.shape)
        first += tensor.numel()
    return tensors


def as_array(tensor: Tensor) -> Array:
    """A tensor as float64."""
    return np.asarray(tensor.detach().numpy(), np.float64)


def rows_at_once(network: FlatModule, flat: Tensor, inputs: Tensor) -> int:
    """How many rows are computed at once, by what a few of them keep; the same on every machine."""
    row_bytes = network.row_bytes(flat, inputs)
    needed = row_bytes + VECTORS * 8 * len(flat)
    free = free_memory()
    if needed > free:
        raise InputError(
            f"A network of {len(flat):,} parameters needs {needed / 1e9:.1f} GB for one row of "
            f"{tuple(inputs.shape[1:])}; {free / 1e9:.1f} GB are free. Take a smaller network, or "
            "smaller pictures (pixels:SIDE)."
        )
    return max(1, min(MOST_ROWS, BLOCK_BYTES // max(1, row_bytes)))


def free_memory() -> float:
    """Bytes that can still be allocated: of the machine, and of a control group of this process."""
    free = float("inf")
    if MEMORY.is_file():
        entries = dict(line.split(":") for line in MEMORY.read_text().splitlines())
        free = 1024.0 * int(entries["MemAvailable"].split()[0])
    limit, used = CGROUP / "memory.max", CGROUP / "memory.current"
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdecimal():
        free = min(free, float(int(most) - int(used.read_text())))
    return free


def check_module(network: FlatModule, flat: Tensor, inputs: Tensor) -> None:
    """Refuse, before any work, what is no function of parameters and of one row."""
    training = [name or "it" for name, part in network.module.named_modules() if part.training]
    if training:
        raise InputError(
            f"A network must be in eval mode, where it is a function; {training[0]} is in train "
            "mode. Call .eval()."
        )
    before = inputs.clone()
    outputs = network.outputs(flat, inputs)
    if not torch.equal(inputs, before):
        raise InputError("A network must leave its input as it is; this one writes into it.")
    if not torch.isfinite(outputs).all():
        raise InputError("A network's outputs must be finite; found others. Check its weights.")
    if not torch.equal(outputs, network.outputs(flat, inputs)):
        raise InputError(
            "A network must give the same outputs twice; these differ. Take out what is random."
        )
    alone = torch.cat([network.outputs(flat, row[None]) for row in inputs])
    if not _agree(outputs, alone):
        raise InputError(
            "A network must treat each row by itself; with others a row has other outputs. Set "
            "track_running_stats of batch norm, or use layer or group norm."
        )
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(len(flat), generator=generator).to(flat.dtype)
    cotangent = torch.randn(outputs.shape, generator=generator).to(flat.dtype)
    try:
        moved = network.push(flat, vector, inputs)[1]
        pulled = network.linearize(flat, inputs)[1](cotangent)
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(
            "A network must be differentiable in forward and reverse mode; torch says: "
            f"{str(error).partition(chr(10))[0]} Replace that layer."
        ) from error
    if not _agree((moved * cotangent).sum(), (pulled * vector).sum(), moved.norm() * len(vector)):
        raise InputError(
            "Forward and reverse mode must agree; for this network they do not. Replace layers "
            "with derivatives of their own (torch.autograd.Function)."
        )


def _agree(left: Tensor, right: Tensor, scale: Tensor | float = 0.0) -> bool:
    size = torch.maximum(left.abs().max(), right.abs().max()) + 1e-3 * torch.as_tensor(scale)
    return bool((left - right).abs().max() <= AGREEMENT * size + 1e-12)
