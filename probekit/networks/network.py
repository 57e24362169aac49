"""Networks as models: linearized around their pretrained weights, or as they are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet, Rows
from probekit.errors import InputError, MismatchError
from probekit.networks import jacobian
from probekit.networks.architectures import Architecture, built, initialized
from probekit.networks.jacobian import FlatModule, as_array
from probekit.objective import CrossEntropy, Loss, Place, Pull, Selection, Squares
from probekit.records import record

Precision = Literal["float32", "float64"]
Center = Literal["wp", "zero"]
CANARY_ROWS = 2
CANARY_AGREEMENT = 1e-3


@dataclass(frozen=True, eq=False)
class NetworkOutputs:
    """f(x; w) of rows that are flattened samples."""

    network: FlatModule
    rows: Rows
    sample_shape: tuple[int, ...]
    block: int

    @property
    def count(self) -> int:
        return len(self.rows)

    @cached_property
    def inputs(self) -> Tensor:
        return self.network.tensor(np.asarray(self.rows)).view(-1, *self.sample_shape)

    def at(self, params: Array) -> tuple[Array, Pull]:
        network = self.network
        scores, pull = network.linearize(self._at(params), self.inputs)
        return as_array(scores), lambda cotangent: as_array(pull(network.tensor(cotangent)))

    def pull(self, params: Array, cotangent: Array) -> Array:
        network = self.network
        pull = network.linearize(self._at(params), self.inputs)[1]
        return as_array(pull(network.tensor(cotangent)))

    def push(self, params: Array, vector: Array) -> Array:
        network = self.network
        return as_array(network.push(self._at(params), network.tensor(vector), self.inputs)[1])

    def diagonal(self, params: Array, weights: Array) -> Array:
        network = self.network
        total = torch.zeros(params.shape, dtype=network.dtype)
        rates = network.tensor(weights)
        for column in range(len(network.columns)):
            cotangents = torch.zeros(self.count, len(network.columns), dtype=network.dtype)
            cotangents[:, column] = 1
            gradients = network.row_gradients(self._at(params), self.inputs, cotangents)
            for part, rows in gradients:
                total += rates[part] @ rows.square()
        return as_array(total)

    def lengths(self, params: Array, cotangents: Array) -> Array:
        network = self.network
        gradients = network.row_gradients(self._at(params), self.inputs, network.tensor(cotangents))
        parts = [rows.norm(dim=1) for _, rows in gradients]
        return as_array(torch.cat(parts)) if parts else np.zeros(0)

    def take(self, selection: Selection) -> Self:
        return replace(self, rows=self.rows[selection])

    def _at(self, params: Array) -> Tensor:
        """Where the Jacobian is taken."""
        return self.network.tensor(params)


@dataclass(frozen=True, eq=False)
class LinearizedOutputs(NetworkOutputs):
    """f(x; w_p) + J (w - w_p), with J at w_p = `around`, wherever it is asked about.

    around_tensor: the same in the network's precision, converted once for all products.
    """

    around: Array
    around_tensor: Tensor

    def at(self, params: Array) -> tuple[Array, Pull]:
        moved_by = self.network.tensor(params - self.around)
        base, moved = self.network.push(self.around_tensor, moved_by, self.inputs)
        return as_array(base + moved), partial(self.pull, params)

    def _at(self, params: Array) -> Tensor:
        return self.around_tensor


@record("model/network")
@dataclass(frozen=True, eq=False)
class Network:
    """A network as it is, trained from `weights`; the penalty pulls to 0.

    buffers: its frozen buffers, flat. columns: the module's outputs that count.
    canary: all outputs of two synthetic samples at `weights`, by which other code is noticed.
    """

    architecture: Architecture
    weights: Array
    buffers: Array
    sample_shape: tuple[int, ...]
    columns: Indices
    canary: Array
    loss: Loss = field(default_factory=CrossEntropy)
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise InputError(f"precision must be float32 or float64; found {self.precision!r}.")
        if min(self.sample_shape, default=1) < 1:
            raise InputError(f"Samples must have a shape above 0; found {self.sample_shape}.")
        if not self.architecture.takes(self.sample_shape):
            raise InputError(
                f"A network must take samples of shape {self.sample_shape}; {self.architecture} "
                "does not. Use the code and the file that belong together."
            )
        if self.weights.ndim != 1:
            raise InputError(
                f"Weights of a network must be one vector; found shape {self.weights.shape}."
            )
        outputs = self.canary.shape[-1]
        if self.canary.shape != (CANARY_ROWS, outputs) or not _are_columns(self.columns, outputs):
            raise InputError(
                f"columns must be some of the outputs of {CANARY_ROWS} samples; found "
                f"{self.columns} and canary outputs of shape {self.canary.shape}. Train again."
            )

    @cached_property
    def network(self) -> FlatModule:
        """The module with these buffers; refused where its outputs are not those of training."""
        module = built(self.architecture, len(self.weights))
        network = flat_module(module, self.buffers, self.columns, self.precision)
        samples = network.tensor(synthetic_samples(self.sample_shape))
        weights = network.tensor(self.weights)
        outputs = as_array(jacobian.outputs_of_samples(network, weights, samples))
        scale = max(float(np.abs(self.canary).max()), 1.0)
        same_shape = outputs.shape == self.canary.shape
        difference = np.abs(outputs - self.canary).max() if same_shape else np.inf
        if not difference <= CANARY_AGREEMENT * scale:
            raise MismatchError(
                f"The code of {self.architecture} must be that of training; its outputs differ by "
                f"{difference:.2g}. Use the version that was trained."
            )
        return network

    @cached_property
    def block(self) -> int:
        """How many rows are computed at once."""
        network = self.network
        samples = network.tensor(synthetic_samples(self.sample_shape))
        return jacobian.rows_at_once(network, network.tensor(self.weights), samples)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights.shape

    @property
    def width(self) -> int:
        return math.prod(self.sample_shape)

    @property
    def classes(self) -> int:
        return len(self.columns)

    @cached_property
    def center(self) -> Array:
        return np.zeros(self.shape)

    @cached_property
    def penalized(self) -> Array:
        return np.ones(1)

    @property
    def tensors(self) -> Mapping[str, Place]:
        return self.network.tensors

    @property
    def is_linear(self) -> bool:
        return False

    @property
    def exact(self) -> Self:
        return self if self.precision == "float64" else replace(self, precision="float64")

    @cached_property
    def digest(self) -> str:
        """The sha256 of the network with which training starts, whichever outputs count."""
        hasher = hashlib.sha256(f"{self.architecture} {self.sample_shape}".encode())
        for array in (self.weights, self.buffers, self.canary):
            hasher.update(f"{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).tobytes())
        return hasher.hexdigest()

    def start(self) -> Array:
        return self.weights

    def random_start(self, seed: int) -> Array:
        """As torch draws the weights of each layer."""
        module = initialized(self.architecture, seed)
        return jacobian.flatten(jacobian.trained_parameters(module))

    def check_rows(self, client: str, width: int, outputs: int) -> None:
        if (width, outputs) != (math.prod(self.sample_shape), self.classes):
            raise InputError(
                f"Client {client} must have samples of {self.sample_shape} and {self.classes} "
                f"classes or targets; it has {width} numbers and {outputs}. Encode and label them "
                "alike."
            )

    def narrowed(self, classes: Indices) -> Self:
        return replace(self, columns=self.columns[classes])

    def narrowed_params(self, params: Array, classes: Indices) -> Array:
        return params

    def outputs(self, rows: EmbeddingSet) -> NetworkOutputs:
        return self.outputs_of(rows.rows)

    def outputs_of(self, rows: Rows) -> NetworkOutputs:
        return NetworkOutputs(self.network, rows, self.sample_shape, self.block)


@record("model/linearized-network")
@dataclass(frozen=True, eq=False)
class LinearizedNetwork(Network):
    """A network linearized around `weights`, w_p; the penalty pulls to w_p, or to 0 (the paper)."""

    loss: Loss = field(default_factory=Squares)
    pull_to: Center = "wp"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pull_to not in get_args(Center):
            raise InputError(f"center must be 'wp' or 'zero'; found {self.pull_to!r}.")

    @cached_property
    def center(self) -> Array:
        return self.weights if self.pull_to == "wp" else np.zeros(self.shape)

    @property
    def is_linear(self) -> bool:
        return True

    def outputs_of(self, rows: Rows) -> LinearizedOutputs:
        return LinearizedOutputs(
            self.network, rows, self.sample_shape, self.block, self.weights, self._weights_tensor
        )

    @cached_property
    def _weights_tensor(self) -> Tensor:
        return self.network.tensor(self.weights)


def flat_module(
    module: nn.Module, buffers: Array, columns: Indices, precision: Precision
) -> FlatModule:
    """A module with these buffers as a function of flat parameters."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    frozen = jacobian.frozen_buffers(module)
    count = sum(buffer.numel() for buffer in frozen.values())
    if buffers.shape != (count,):
        raise InputError(
            f"A network must have as many buffers as its code, {count:,}; found {buffers.size:,}. "
            "Use the code and the file that belong together."
        )
    return FlatModule(module, jacobian.unflatten(buffers, frozen, dtype), columns, dtype)


def _are_columns(columns: Indices, outputs: int) -> bool:
    """Whether they are some of so many, in order."""
    if columns.ndim != 1 or not columns.size:
        return False
    return columns[0] >= 0 and columns[-1] < outputs and bool((np.diff(columns) > 0).all())


def synthetic_samples(shape: tuple[int, ...]) -> Array:
    """The samples of the canary."""
    generator = np.random.Generator(np.random.PCG64(0))
    return np.asarray(generator.random((CANARY_ROWS, *shape)))
