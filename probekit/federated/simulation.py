"""Clients that live in this process: their local steps taken together, from statistics or from rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from probekit.errors import InputError
from probekit.federated.client import (
    DENSE_EIGENVALUES,
    Quadratics,
    Table,
    largest_curvature,
    local_batches,
    local_steps,
    schedule,
    table,
)
from probekit.federated.fedavg import Clients, FedAvg
from probekit.linear.design import ClientStats, Design
from probekit.values import EmbeddingSet, Partition

BATCH_STREAM = 22
STACK_LIMIT = 1 << 30
BLOCK_BYTES = 1 << 26
CHUNK_ROWS = 8192

Indices = NDArray[np.int64]
Params = NDArray[np.float64]


@dataclass(frozen=True)
class StatisticsClients:
    """Clients whose full-batch steps are taken from their statistics, all of them in one stacked product."""

    names: tuple[str, ...]
    counts: Indices
    losses: Quadratics
    total: Quadratics
    options: FedAvg

    @cached_property
    def largest_curvature(self) -> float:
        """The largest curvature of any client's loss."""
        return max(largest_curvature(one) for one in self.losses.curvature)

    def local(self, start: Params, chosen: Indices, *, round_number: int, rate: float) -> Params:
        """The chosen clients' parameters after their local steps."""
        everyone = len(chosen) == len(self.names)
        losses = self.losses if everyone else Quadratics(self.losses.curvature[chosen], self.losses.linear[chosen])
        steps = self.options.local_steps or self.options.local_epochs or 1
        return local_steps(start, losses, steps=steps, optimiser=self.options.optimiser, rate=rate)

    def gradients(self, params: Params, chosen: Indices) -> Params:
        """The chosen clients' gradients, at the same parameters or each at its own."""
        return Quadratics(self.losses.curvature[chosen], self.losses.linear[chosen]).gradients(params)

    def loss(self, params: Params) -> float:
        """The loss over all clients' rows."""
        return float(self.total.losses(params)[0])


@dataclass(frozen=True)
class RowClients:
    """Clients whose steps are taken from rows: minibatches, or full batches where statistics would be too
    large.

    `rows` are each client's rows in the table. The order of a client's batches depends on the seed, the round
    and its name alone, so it stays the same when other clients leave.
    """

    names: tuple[str, ...]
    rows: tuple[Indices, ...]
    data: Table
    total: Quadratics
    options: FedAvg

    @cached_property
    def counts(self) -> Indices:
        """How many rows each client has."""
        return np.array([len(one) for one in self.rows])

    @cached_property
    def largest_curvature(self) -> float:
        """The largest curvature of any client's loss, or with minibatches of any row's."""
        if self.options.batch_size is None:
            return max(_top(self.data, one) for one in self.rows)
        longest = max(float(np.square(some).sum(axis=1).max()) for some in self._chunks())
        return longest + float(self.data.penalty.max())

    def local(self, start: Params, chosen: Indices, *, round_number: int, rate: float) -> Params:
        """The chosen clients' parameters after their local steps."""
        uploads = np.empty((len(chosen), *start.shape))
        for block in self._blocks(chosen):
            plans = [self._plan(int(c), round_number) for c in chosen[block]]
            uploads[block] = local_batches(start, self.data, plans, optimiser=self.options.optimiser, rate=rate)
        return uploads

    def gradients(self, params: Params, chosen: Indices) -> Params:
        """The chosen clients' gradients, at the same parameters or each at its own."""
        each = np.broadcast_to(params, (len(chosen), *params.shape[-2:]))
        result = np.zeros(each.shape)
        for place, c in enumerate(chosen):
            rows, own = self.rows[c], each[place][None]
            for start in range(0, len(rows), CHUNK_ROWS):
                some = rows[start : start + CHUNK_ROWS]
                result[place] += self.data.gradient(own, some[None])[0] * (len(some) / len(rows))
        return result

    def loss(self, params: Params) -> float:
        """The loss over all clients' rows."""
        return float(self.total.losses(params)[0])

    def _plan(self, client: int, round_number: int) -> Indices:
        name = int.from_bytes(hashlib.sha256(self.names[client].encode()).digest()[:8], "little")
        key = [self.options.seed, BATCH_STREAM, round_number, name]
        rows = self.rows[client]
        plan = schedule(
            len(rows),
            np.random.Generator(np.random.PCG64(key)),
            batch=self.options.batch_size,
            steps=self.options.local_steps,
            epochs=self.options.local_epochs,
            drop_last=self.options.drop_last,
        )
        return np.where(plan >= 0, rows[plan], -1)

    def _blocks(self, chosen: Indices) -> list[Indices]:
        """Places of clients of like size, few enough at a time for one step's rows to stay within bounds."""
        order = np.argsort(self.counts[chosen], kind="stable")
        width = min(self.options.batch_size or int(self.counts.max()), int(self.counts.max()))
        size = max(1, BLOCK_BYTES // (width * self.data.columns.shape[1] * 8))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _chunks(self) -> list[Params]:
        columns = self.data.columns
        return [columns[i : i + CHUNK_ROWS].astype(np.float64) for i in range(0, len(columns), CHUNK_ROWS)]


def _top(data: Table, rows: Indices) -> float:
    """The largest curvature of the loss of some rows, without forming their Gram where that is large."""
    block = data.columns[rows].astype(np.float64)
    width, penalty = block.shape[1], data.penalty[:, 0]
    if width <= DENSE_EIGENVALUES:
        return largest_curvature(block.T @ block / len(block) + np.diag(penalty))

    def product(v: Params) -> Params:
        result: Params = block.T @ (block @ v) / len(block) + penalty * v.ravel()
        return result

    operator = LinearOperator((width, width), matvec=product, dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=np.ones(width), tol=1e-10, return_eigenvectors=False)[0])


def from_statistics(
    clients: Mapping[str, ClientStats], losses: Quadratics, *, total: Quadratics, options: FedAvg
) -> Clients:
    """Clients that step from their statistics."""
    counts = np.array([one.count for one in clients.values()])
    return StatisticsClients(tuple(clients), counts, losses, total, options)


def from_rows(
    embeddings: EmbeddingSet,
    partition: Partition,
    design: Design,
    *,
    ridge: float,
    total: Quadratics,
    options: FedAvg,
) -> Clients:
    """Clients that step from their rows."""
    for name, rows in partition.clients.items():
        if options.drop_last and options.batch_size and len(rows) < options.batch_size:
            raise InputError(
                f"With drop_last every client needs a full batch of {options.batch_size}; client {name} has "
                f"{len(rows)} rows. Take a smaller batch_size, or keep the last batch."
            )
    held = np.concatenate(list(partition.clients.values()))
    ends = np.cumsum([len(rows) for rows in partition.clients.values()])
    places = np.split(np.arange(len(held)), ends[:-1])
    data = table(embeddings, held, design, ridge=ridge)
    return RowClients(tuple(partition.clients), tuple(places), data, total, options)


def fits_a_stack(clients: int, design: Design) -> bool:
    """Whether the clients' Grams, stacked, stay within bounds."""
    return clients * design.columns**2 * 8 <= STACK_LIMIT
