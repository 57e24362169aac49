"""Who holds which rows of a linearized network, and the steps that clients take on them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from probekit.errors import InputError, MismatchError
from probekit.federated.client import schedule
from probekit.federated.fedavg import FedAvg
from probekit.federated.server import client_weights
from probekit.federated.simulation import BATCH_STREAM
from probekit.jacobian.kernel import batch_factors
from probekit.jacobian.linearize import Inputs, Linearized, LinearizedRows, column, tensor_of
from probekit.jacobian.memory import free_memory
from probekit.jacobian.tape import Fresh
from probekit.linear.squares import ModelSquares
from probekit.linear.statistics import checked_labels
from probekit.values import Partition

Indices = NDArray[np.int64]
Params = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Holding(ModelSquares):
    """One holder's rows: the squares of its linearized network against one-hot targets."""

    @property
    def rows(self) -> LinearizedRows:
        """The linearized network over the holder's inputs."""
        assert isinstance(self.model, LinearizedRows)
        return self.model


@dataclass(frozen=True, eq=False)
class Holders:
    """The clients' holdings and the server's, all of one linearized network."""

    model: Linearized
    centre: str
    classes: int
    clients: Mapping[str, Holding]
    server: Holding | None = None

    @property
    def start(self) -> Params:
        """The parameters that stand for w_p."""
        return np.zeros((self.model.size, 1)) if self.centre == "wp" else self.model.weights


def holders(
    model: Linearized, inputs: Inputs, labels: NDArray[np.int64], partition: Partition, *, centre: str = "wp"
) -> Holders:
    """Each client's rows and the server's, within one share of the free memory each."""
    rows = model.rows(inputs)
    if len(rows) != partition.rows or not partition.clients:
        raise MismatchError(
            f"The partition divides {partition.rows} rows among {len(partition.clients)} clients; there are "
            f"{len(rows)} inputs. Use the inputs that the partition was made for."
        )
    sizes = {name: len(held) for name, held in [*partition.clients.items(), ("", partition.server)]}
    free = free_memory(model.device)

    def own(held: Indices, name: str) -> Holding:
        share = max(int(free * sizes[name] / partition.rows), free // 64)
        return hold(model, rows[tensor_of(held)], labels[held], centre=centre, memory=share, name=name)

    made = {name: own(held, name) for name, held in partition.clients.items()}
    server = own(partition.server, "") if len(partition.server) else None
    return Holders(model, centre, next(iter(made.values())).rows.classes, made, server)


def hold(
    model: Linearized, inputs: Inputs, labels: NDArray[np.int64], *, centre: str, memory: int, name: str
) -> Holding:
    """The squares of one holder's rows, within so many bytes."""
    if not len(labels):
        raise InputError(f"Every client needs a row; client {name} has none. Leave it out of the partition.")
    over = model.over(inputs, centre=centre, memory=memory)
    return Holding(over, np.eye(over.classes)[checked_labels(labels, len(labels), over.classes)])


@dataclass(frozen=True, eq=False)
class NetworkClients:
    """Clients for FedAvg's rounds. Their parameters are counted from w_p, whatever the penalty's centre."""

    holders: Holders
    ridge: float
    options: FedAvg

    @property
    def names(self) -> tuple[str, ...]:
        """Who they are."""
        return tuple(self.holders.clients)

    @cached_property
    def counts(self) -> Indices:
        """How many rows each has."""
        return np.array([one.count for one in self.holders.clients.values()])

    @cached_property
    def largest_curvature(self) -> float:
        """The largest curvature of any client's loss, or with minibatches of any row's."""
        if self.options.batch_size is None:
            return max(_top(one) for one in self.holders.clients.values()) + self.ridge
        blocks = (batch.blocks() for one in self.holders.clients.values() for batch in batch_factors(one.rows))
        return max(float(torch.linalg.eigvalsh(one.double()).max()) for one in blocks) + self.ridge

    def local(self, start: Params, chosen: Indices, *, round_number: int, rate: float) -> Params:
        """The chosen clients' parameters after their local steps."""
        return np.stack([self._steps(start, self.names[c], round_number=round_number, rate=rate) for c in chosen])

    def gradients(self, params: Params, chosen: Indices) -> Params:
        """The chosen clients' gradients, at the same parameters or each at its own."""
        each = np.broadcast_to(params, (len(chosen), *params.shape[-2:]))
        return np.stack([self._gradient(self.names[c], own) for c, own in zip(chosen, each, strict=True)])

    def common_gradient(self, params: Params) -> Params:
        """The gradient of the loss over all clients' rows."""
        everyone = self.gradients(params, np.arange(len(self.names)))
        return np.asarray(np.tensordot(client_weights(self.counts), everyone, axes=1))

    def loss(self, params: Params) -> float:
        """The loss over all clients' rows."""
        own = params + self.holders.start
        squares = sum(one.value(own) for one in self.holders.clients.values())
        return squares / (2 * float(self.counts.sum())) + self.ridge / 2 * float(np.square(own).sum())

    def _gradient(self, name: str, params: Params) -> Params:
        own, one = params + self.holders.start, self.holders.clients[name]
        return np.asarray(one.gradient(own) / one.count + self.ridge * own)

    def _steps(self, start: Params, name: str, *, round_number: int, rate: float) -> Params:
        stack = start[None].copy()
        state = self.options.optimiser.start(stack)
        if self.options.batch_size is None:
            for _ in range(self.options.local_steps or self.options.local_epochs or 1):
                self.options.optimiser.step(stack, self._gradient(name, stack[0])[None], state=state, rate=rate)
            return np.asarray(stack[0])
        for some in self._plan(name, round_number):
            gradient = self._batch_gradient(name, some[some >= 0], stack[0])
            self.options.optimiser.step(stack, gradient[None], state=state, rate=rate)
        return np.asarray(stack[0])

    def _batch_gradient(self, name: str, some: Indices, params: Params) -> Params:
        """The gradient of the mean loss of some rows, in one pass forward and one back."""
        holding, model = self.holders.clients[name], self.holders.model
        batch = Fresh(model.forward, model.base, holding.rows.inputs[tensor_of(some)].to(model.device))
        outputs, pushed = batch.both(model.split(params))
        aims = tensor_of(holding.targets[some]).to(outputs)
        pulled = batch.vjp((outputs + pushed - aims) / len(some))
        flat = column(torch.cat([one.reshape(-1) for one in pulled]))
        return np.asarray(flat + self.ridge * (params + self.holders.start))

    def _plan(self, name: str, round_number: int) -> Indices:
        """The rows of every step: by seed, round and name alone, so that others may leave."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        return schedule(
            self.holders.clients[name].count,
            np.random.Generator(np.random.PCG64([self.options.seed, BATCH_STREAM, round_number, number])),
            batch=self.options.batch_size,
            steps=self.options.local_steps,
            epochs=self.options.local_epochs,
            drop_last=self.options.drop_last,
        )


def _top(holding: Holding) -> float:
    """The largest curvature of a holder's loss without the ridge."""
    size = holding.shape[0]
    operator = LinearOperator(
        (size, size), matvec=lambda v: (holding.product(v.reshape(-1, 1)) / holding.count).ravel(), dtype=np.float64
    )
    return float(eigsh(operator, k=1, which="LA", v0=np.ones(size), tol=1e-4, return_eigenvectors=False)[0])
