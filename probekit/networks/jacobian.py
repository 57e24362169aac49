"""A module as a function of one flat vector of parameters, and the products with its Jacobian."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import grad
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


Parts = tuple[Tensor, ...]


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


@dataclass(eq=False)
class FlatModule:
    """f(x; w) with w flat; the buffers are frozen.

    columns: which of the module's outputs count.
    """

    module: nn.Module
    buffers: Mapping[str, Tensor]
    columns: Indices
    dtype: torch.dtype
    has_forward_mode: bool = field(default=True, init=False)

    @cached_property
    def tensors(self) -> Mapping[str, Place]:
        """Where each trained parameter stands in the flat vector, and its shape."""
        spans: dict[str, Place] = {}
        first = 0
        for name, parameter in trained_parameters(self.module).items():
            spans[name] = (slice(first, first + parameter.numel()), tuple(parameter.shape))
            first += parameter.numel()
        return spans

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """An array as a tensor of the dtype in which it is computed."""
        return torch.tensor(np.ascontiguousarray(array), dtype=self.dtype)

    def all_outputs(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """f(x; w), (rows, outputs), those outside the columns too."""
        return self._all_outputs(self._parts(flat), inputs)

    def push(self, flat: Tensor, vector: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """f(x; w) and J v."""
        params, tangents = self._parts(flat), self._parts(vector)
        if self.has_forward_mode:
            try:
                result = jvp(lambda *w: self._outputs(w, inputs), params, tangents)
                return result[0], result[1]
            except (NotImplementedError, RuntimeError):  # a layer without it, as LSTM in float32
                self.has_forward_mode = False
        return self._push_by_reverse(params, tangents, inputs)

    def _push_by_reverse(
        self, params: Parts, tangents: Parts, inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """J^T u is linear in u, and its derivative along the tangents is J v."""
        outputs, params = self._recorded(params, inputs)
        cotangent = torch.zeros_like(outputs, requires_grad=True)
        pulled = grad(outputs, params, cotangent, create_graph=True, materialize_grads=True)
        moved = grad(pulled, cotangent, tangents)[0]
        return outputs.detach(), moved

    def linearize(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """f(x; w), and u -> J^T u."""
        outputs, params = self._recorded(self._parts(flat), inputs)

        def pull(cotangent: Tensor) -> Tensor:
            return _joined(
                grad(outputs, params, cotangent, retain_graph=True, materialize_grads=True)
            )

        return outputs.detach(), pull

    def row_gradients(
        self, flat: Tensor, inputs: Tensor, cotangents: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """J_i^T u_i of some rows at a time, (m, p)."""
        params = self._parts(flat)

        def gradient(row: Tensor, cotangent: Tensor) -> Tensor:
            pull = vjp(lambda *w: self._outputs(w, row[None]), *params)[1]
            return _joined(pull(cotangent[None]))

        batched = vmap(gradient)
        size = max(1, BLOCK_BYTES // (4 * len(flat) * flat.element_size()))
        for first in range(0, len(inputs), size):
            part = slice(first, first + size)
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "There is a performance drop")
                    gradients = batched(inputs[part], cotangents[part])
            except (RuntimeError, NotImplementedError):  # not all layers have a rule for it
                pairs = zip(inputs[part], cotangents[part], strict=True)
                gradients = torch.stack(
                    [
                        self.linearize(flat, row[None])[1](cotangent[None])
                        for row, cotangent in pairs
                    ]
                )
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
            outputs = self._recorded(self._parts(flat), inputs)[0]
        total = sum(sizes.values()) + outputs.nbytes + inputs.nbytes
        return 2 * total // len(inputs)  # forward mode carries a tangent beside each value

    def _parts(self, flat: Tensor) -> Parts:
        """The module's tensors as views of the flat vector."""
        size = max(span.stop for span, _ in self.tensors.values())
        if flat.shape != (size,):
            raise InputError(
                f"A network's parameters must be one vector of {size:,}; found shape "
                f"{tuple(flat.shape)}. Use the code and the file that belong together."
            )
        return tuple(flat[span].view(shape) for span, shape in self.tensors.values())

    def _recorded(self, params: Parts, inputs: Tensor) -> tuple[Tensor, Parts]:
        """f(x; w) with its graph, and the tensors that it leads to."""
        leaves = tuple(part.detach().requires_grad_() for part in params)
        with torch.enable_grad():
            return self._outputs(leaves, inputs), leaves

    def _outputs(self, params: Parts, inputs: Tensor) -> Tensor:
        outputs = self._all_outputs(params, inputs)
        if outputs.shape[1] == len(self.columns):
            return outputs
        return outputs[:, torch.from_numpy(self.columns)]

    def _all_outputs(self, params: Parts, inputs: Tensor) -> Tensor:
        tensors = {**dict(zip(self.tensors, params, strict=True)), **self.buffers}
        with differentiable():
            outputs = functional_call(self.module, tensors, (inputs,))
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(inputs):
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise InputError(
                f"A network must return a tensor (rows, classes); of {len(inputs)} rows this one "
                f"returned {shape}. Return the logits alone."
            )
        return outputs


def _joined(parts: Parts) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Those that require gradients; tied ones once."""
    return {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}


def frozen_buffers(module: nn.Module) -> dict[str, Tensor]:
    """What values depend on and training leaves: buffers of real numbers, frozen parameters."""
    buffers = dict(module.named_buffers())
    frozen = {name: part for name, part in module.named_parameters() if not part.requires_grad}
    tensors = {**buffers, **frozen}
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


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
    check_memory(len(flat), row_bytes)
    return max(1, min(MOST_ROWS, BLOCK_BYTES // max(1, row_bytes)))


def check_memory(parameters: int, row_bytes: int = 0) -> None:
    """Refuse a network that cannot be trained here, even a row at a time."""
    needed = row_bytes + VECTORS * 8 * parameters
    free = free_memory()
    if needed > free:
        raise InputError(
            f"A network of {parameters:,} parameters needs {needed / 1e9:.1f} GB for one row; "
            f"{free / 1e9:.1f} GB are free. Take a smaller network, or smaller pictures "
            "(pixels:SIDE)."
        )


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


def check_module(network: FlatModule, flat: Tensor, inputs: Tensor) -> Tensor:
    """All outputs; refuses, before any work, what is no function of parameters and of one row."""
    training = [name or "it" for name, part in network.module.named_modules() if part.training]
    if training:
        raise InputError(
            f"A network must be in eval mode, where it is a function; {training[0]} is in train "
            "mode. Call .eval()."
        )
    before = inputs.clone()
    outputs = outputs_of_samples(network, flat, inputs)
    if outputs.shape[1] != len(network.columns):
        raise InputError(
            f"A network must have an output for each of {len(network.columns)} classes or targets; "
            f"this one has {outputs.shape[1]}. Let its factory take num_classes."
        )
    if not torch.equal(inputs, before):
        raise InputError(
            "A network must leave its input as it is; this one writes into it. Let it copy first."
        )
    if not torch.isfinite(outputs).all():
        raise InputError("A network's outputs must be finite; found others. Check its weights.")
    if not torch.equal(outputs, network.all_outputs(flat, inputs)):
        raise InputError(
            "A network must give the same outputs twice; these differ. Take out what is random."
        )
    _check_rows(network, flat, inputs, outputs)
    _check_derivatives(network, flat, inputs, outputs)
    return outputs


def outputs_of_samples(network: FlatModule, flat: Tensor, inputs: Tensor) -> Tensor:
    """All outputs; refuses samples that the network does not take."""
    try:
        return network.all_outputs(flat, inputs)
    except InputError:
        raise
    except Exception as error:  # whatever a module does with such samples
        raise InputError(
            f"A network must take samples of shape {tuple(inputs.shape[1:])}, as {inputs.dtype}; "
            f"it raised {_first_line(error)} Take a network for these, or encode other samples "
            "(pixels:SIDE)."
        ) from error


def _check_rows(network: FlatModule, flat: Tensor, inputs: Tensor, outputs: Tensor) -> None:
    difference = "its outputs differ"
    try:
        alone = torch.cat([network.all_outputs(flat, row[None]) for row in inputs])
        if (outputs - alone).abs().max() <= AGREEMENT * outputs.abs().max():
            return
    except (RuntimeError, ValueError) as error:  # batch norm has no variance of one row
        difference = _first_line(error)
    raise InputError(
        f"A network must treat each row by itself; of a row alone: {difference} Set "
        "track_running_stats of batch norm, or use layer or group norm."
    )


def _check_derivatives(network: FlatModule, flat: Tensor, inputs: Tensor, outputs: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(len(flat), generator=generator).to(flat.dtype)
    cotangent = torch.randn(outputs.shape, generator=generator).to(flat.dtype)
    try:
        moved = network.push(flat, vector, inputs)[1]
        pulled = network.linearize(flat, inputs)[1](cotangent)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise InputError(
            f"A network must have derivatives in its parameters; torch says: {_first_line(error)} "
            "Replace that layer."
        ) from error
    difference = (moved * cotangent).sum() - (pulled * vector).sum()
    if not difference.abs() <= AGREEMENT * moved.norm() * cotangent.norm():
        raise InputError(
            "Forward and reverse mode must agree; for this network they do not. Replace layers "
            "with derivatives of their own (torch.autograd.Function)."
        )


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {line[:160]}."
