"""Any torch module as an affine model of its weights: f(w_p) + J (w - w_p), J its Jacobian at w_p.

Parameters are one column of p numbers. Counted from w_p (centre "wp") they are w - w_p and the offset is f(w_p);
counted from zero (centre "zero", as the paper has it) they are w and the offset is f(w_p) - J w_p. A ridge then
always pulls towards parameters of zero.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from probekit.errors import InputError
from probekit.jacobian.batches import FEWER, BatchPlan, plan_batches
from probekit.jacobian.inspection import inspect, refuse_modes
from probekit.jacobian.memory import Prediction, free_memory
from probekit.jacobian.tape import Fresh, Tape, Tensors
from probekit.linear.affine import ModelSquares
from probekit.linear.design import CENTRES
from probekit.linear.squares import Curvature

Array = NDArray[np.float64]
Inputs = Tensor | NDArray[Any]


def linearize(
    module: nn.Module,
    params: Mapping[str, Tensor] | Array | None = None,
    subset: str | Sequence[str] | int | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> Linearized:
    """A torch module as an affine model of its weights.

    module: the network; it is not touched: a copy in eval mode is linearized, with its buffers frozen.
    params: the weights to linearize around, by name, or all that move in one column; left out, its own.
    subset: which parameters move: patterns of names ("head.*"), or the last so many layers; None for all.
    dtype, device: of the copy; left out, the module's.
    Gives a Linearized, whose `over(inputs)` has the products with the Jacobian.
    """
    refuse_modes(module)
    own = copy.deepcopy(module).eval().requires_grad_(False).to(device=device, dtype=dtype)
    names = _selected(own, subset)
    found = Linearized(own, names)
    if params is None:
        return found
    values = params if isinstance(params, Mapping) else dict(zip(names, found.split(params), strict=True))
    known = dict(own.named_parameters())
    for name, value in values.items():
        if name not in known or tuple(value.shape) != tuple(known[name].shape):
            wanted = tuple(known[name].shape) if name in known else f"one of {', '.join(list(known)[:6])}, ..."
            raise InputError(f"Weights must fit the network: {name} should be {wanted}, found {tuple(value.shape)}.")
        known[name].copy_(value)
    return Linearized(own, names)


class Linearized:
    """A frozen copy of a module and the names of the parameters that move."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        self.module, self.names = module, names
        known = dict(module.named_parameters())
        self.base: Tensors = tuple(known[name].detach() for name in names)
        self._fixed = {name: known[name] for name in known.keys() - set(names)} | dict(module.named_buffers())
        self._sizes = [one.numel() for one in self.base]
        self.size, self.dtype, self.device = sum(self._sizes), self.base[0].dtype, self.base[0].device

    @property
    def weights(self) -> Array:
        """w_p, (p, 1)."""
        return column(torch.cat([one.reshape(-1) for one in self.base]))

    def forward(self, tensors: Tensors, inputs: Tensor) -> Tensor:
        """The network's outputs at other values of the moving parameters."""
        # buffers go in as copies of the same storage: what writes to one is caught, not kept
        state = {**self._fixed, **dict(zip(self.names, tensors, strict=True))}
        outputs: Tensor = functional_call(self.module, state, (inputs,))
        return outputs

    def split(self, params: Array | Tensor) -> Tensors:
        """A column of parameters as tensors of the network's own shapes."""
        if tuple(params.shape) != (self.size, 1):
            raise InputError(f"Parameters are one column of {self.size} numbers; found shape {tuple(params.shape)}.")
        given = tensor_of(params) if isinstance(params, np.ndarray) else params
        flat = given.to(device=self.device, dtype=self.dtype).reshape(-1)
        return tuple(one.view(base.shape) for one, base in zip(torch.split(flat, self._sizes), self.base, strict=True))

    def over(
        self,
        inputs: Inputs,
        *,
        centre: str = "wp",
        batch: int | None = None,
        memory: int | None = None,
        keep: bool = True,
    ) -> LinearizedRows:
        """The affine model of these inputs' outputs, in batches that fit into `memory` bytes (what is free).

        `keep` passes each batch through the network once and keeps the pass, where memory allows.
        """
        if centre not in CENTRES:
            raise InputError(f"The parameters are counted from one of {', '.join(CENTRES)}; found {centre!r}.")
        numbers = inputs.size if isinstance(inputs, np.ndarray) else inputs.numel()
        free = free_memory(self.device) if memory is None else memory
        # before the rows are copied into the network's type
        Prediction({"inputs": numbers * self.base[0].element_size()}).require(free, remedy=FEWER)
        rows = self.rows(inputs)
        outputs = inspect(self.forward, self.base, rows[:8].to(self.device))
        plan = plan_batches(self.forward, self.base, rows, outputs=outputs, batch=batch, memory=memory, keep=keep)
        return LinearizedRows(self, rows, centre, outputs, plan)

    def rows(self, inputs: Inputs) -> Tensor:
        """Inputs as a tensor; numbers that are not whole get the network's type, where they are."""
        rows = tensor_of(inputs) if isinstance(inputs, np.ndarray) else inputs
        if not len(rows):
            raise InputError("A network is linearized over at least one input; found none.")
        return rows.to(self.dtype) if rows.is_floating_point() else rows


@dataclass(frozen=True, eq=False)
class LinearizedRows:
    """outputs = offset + jvp(params) for some inputs; `vjp` is the adjoint of `jvp`."""

    model: Linearized
    inputs: Tensor
    centre: str
    classes: int
    plan: BatchPlan

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters."""
        return (self.model.size, 1)

    @cached_property
    def offset(self) -> Array:
        """The outputs at parameters of zero, (n, k)."""
        found = np.concatenate([rows_of(batch.outputs) for batch in self._batches])
        return found if self.centre == "wp" else found - self.jvp(self.model.weights)

    def outputs(self, params: Array) -> Array:
        """The linearized network's outputs, (n, k)."""
        return np.asarray(self.offset + self.jvp(params))

    def jvp(self, params: Array) -> Array:
        """J v, (n, k)."""
        tangents = self.model.split(params)
        return np.concatenate([rows_of(batch.jvp(tangents)) for batch in self._batches])

    def vjp(self, outputs: Array) -> Array:
        """J^T u, (p, 1): summed over batches in float64."""
        if outputs.shape != (self.count, self.classes):
            raise InputError(f"Outputs must have shape {(self.count, self.classes)}; found {outputs.shape}.")
        total = torch.zeros(self.model.size, dtype=torch.float64, device=self.model.device)
        for some, batch in zip(torch.split(tensor_of(outputs), self.plan.batch), self._batches, strict=True):
            pulled = batch.vjp(some.to(device=self.model.device, dtype=self.model.dtype))
            total += torch.cat([one.reshape(-1) for one in pulled])
        return column(total)

    def cast(self, dtype: torch.dtype) -> LinearizedRows:
        """The same in other numbers."""
        if self.model.dtype == dtype:
            return self
        model = linearize(self.model.module, None, self.model.names, dtype=dtype)
        return model.over(self.inputs, centre=self.centre)

    def curvature(self, ridge: float) -> Curvature:
        """J^T J / n + ridge."""
        nothing = np.broadcast_to(np.float64(0), (self.count, self.classes))
        return Curvature(ModelSquares(self, nothing), ridge)

    @cached_property
    def _batches(self) -> tuple[Tape | Fresh, ...]:
        model, plan = self.model, self.plan
        return tuple(
            (Tape if place < plan.kept else Fresh)(model.forward, model.base, some)
            for place, some in enumerate(self.input_batches())
        )

    def input_batches(self) -> Iterator[Tensor]:
        """The inputs of each batch, where the network is."""
        return (some.to(self.model.device) for some in torch.split(self.inputs, self.plan.batch))


def tensor_of(array: NDArray[Any]) -> Tensor:
    """An array as a tensor, without a copy where it may be written to (torch knows no read-only ones)."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def column(flat: Tensor) -> Array:
    """A flat tensor as a (p, 1) array of float64."""
    return np.asarray(flat.detach().to("cpu", torch.float64).numpy()).reshape(-1, 1)


def rows_of(outputs: Tensor) -> Array:
    """Outputs as an array of float64."""
    return np.asarray(outputs.detach().to("cpu", torch.float64).numpy())


def _selected(module: nn.Module, subset: str | Sequence[str] | int | None) -> tuple[str, ...]:
    """The names of the parameters that move, in the module's order."""
    known = [name for name, one in module.named_parameters() if one.is_floating_point()]
    if not known:
        raise InputError(f"{type(module).__name__} has no parameters to linearize in.")
    if subset is None:
        return tuple(known)
    if isinstance(subset, int):
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in known))
        if not 0 < subset <= len(layers):
            raise InputError(f"The last layers are counted from 1 to {len(layers)} here; found {subset}.")
        last = set(layers[-subset:])
        return tuple(name for name in known if name.rpartition(".")[0] in last)
    patterns = [subset] if isinstance(subset, str) else list(subset)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InputError(f"No parameter's name matches {pattern!r}; the first are {', '.join(known[:8])}.")
    return tuple(name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns))
