"""What a client computes: its statistics, its local steps, its gradient. Pure functions, for one or many at
once.

The loss of client c is L_c(W) = (1 / 2 n_c) |X_c W - Y_c|^2 + (ridge / 2) |P W|^2 with one-hot Y_c; P leaves
a free intercept out. It is the quadratic 1/2 <W, H_c W> - <W, B_c> + 1/2 with H_c = G_c / n_c + ridge P, B_c
= C_c / n_c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from probekit.errors import InputError
from probekit.federated.optimiser import Optimiser
from probekit.linear.design import ClientStats, Design
from probekit.linear.statistics import row_blocks, statistics
from probekit.values import EmbeddingSet, Rows

DENSE_EIGENVALUES = 64

Indices = NDArray[np.int64]
Params = NDArray[np.float64]


@dataclass(frozen=True)
class Picked:
    """Some rows of a matrix, in a given order, read when asked for."""

    rows: Rows
    index: Indices

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.index), *self.rows.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self.rows[self.index[index]]

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.rows[self.index], dtype=dtype)


@dataclass(frozen=True)
class Quadratics:
    """The losses of c clients as quadratics, stacked along the first axis."""

    curvature: Params
    linear: Params

    def gradients(self, params: Params) -> Params:
        """Each client's gradient, at parameters of its own (c, d, k) or at the same for all (d, k)."""
        result: Params = self.curvature @ params - self.linear
        return result

    def losses(self, params: Params) -> Params:
        """Each client's loss."""
        products = np.sum(params * (self.curvature @ params / 2 - self.linear), axis=(-2, -1))
        result: Params = products + 0.5
        return result


def client_statistics(embeddings: EmbeddingSet, rows: Indices, design: Design) -> ClientStats:
    """The statistics of a client's rows; a row that cannot be used is named by its sample id."""
    try:
        return statistics(Picked(embeddings.embeddings, rows), embeddings.labels[rows], design)
    except InputError as error:
        for start in range(0, len(rows), 4096):
            some = rows[start : start + 4096]
            bad = ~np.isfinite(embeddings.embeddings[some]).all(axis=1)
            if bad.any():
                sample = embeddings.ids[int(some[np.argmax(bad)])]
                raise InputError(
                    f"Training needs finite embeddings; sample {sample} (row {int(some[np.argmax(bad)])}) "
                    "holds NaN or infinity. Encode it again, or leave it out with EmbeddingSet.select."
                ) from error
        raise


def penalty(design: Design, ridge: float) -> Params:
    """The ridge of every row of the parameters, (d, 1): 0 for an intercept that is free."""
    result = np.full((design.columns, 1), ridge)
    if design.intercept == "free":
        result[-1] = 0.0
    return result


def quadratics(clients: Sequence[ClientStats], ridge: float) -> Quadratics:
    """The losses of clients from their statistics; `ridge` in mean scaling."""
    design = clients[0].design
    curvature = np.empty((len(clients), design.columns, design.columns))
    linear = np.empty((len(clients), design.columns, design.classes))
    for number, one in enumerate(clients):
        np.divide(one.total_gram, one.count, out=curvature[number])
        np.divide(one.moment, one.count, out=linear[number])
        np.einsum("ii->i", curvature[number])[:] += penalty(design, ridge)[:, 0]
    return Quadratics(curvature, linear)


def largest_curvature(curvature: Params) -> float:
    """The largest eigenvalue of a symmetric matrix."""
    if len(curvature) <= DENSE_EIGENVALUES:
        return float(np.linalg.eigvalsh(curvature)[-1])
    start = np.ones(len(curvature))  # fixed, so that the answer is: a random start changes the last digits
    return float(eigsh(curvature, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)[0])


def local_steps(start: Params, losses: Quadratics, *, steps: int, optimiser: Optimiser, rate: float) -> Params:
    """Each client's parameters after that many full-batch steps from the same start."""
    params = np.repeat(start[None], len(losses.curvature), axis=0)
    state = optimiser.start(params)
    for _ in range(steps):
        optimiser.step(params, losses.gradients(params), state=state, rate=rate)
    return params


def schedule(
    count: int,
    generator: np.random.Generator,
    *,
    batch: int | None,
    steps: int | None,
    epochs: int | None,
    drop_last: bool = False,
) -> Indices:
    """The rows of every step, (steps, batch): epochs in random order, short batches padded with -1.

    Without a batch size every step takes all rows, in order, and an epoch is one step.
    """
    if batch is None:
        return np.broadcast_to(np.arange(count), (steps or epochs or 1, count))
    batch = min(batch, count)
    per_epoch = count // batch if drop_last else -(-count // batch)
    passes = -(-steps // per_epoch) if steps is not None else epochs or 1
    taken = np.full((passes, per_epoch * batch), -1, np.int64)
    for one in taken:
        order = generator.permutation(count)[: per_epoch * batch]
        one[: len(order)] = order
    return taken.reshape(-1, batch)[:steps]


@dataclass(frozen=True)
class Table:
    """Rows of the least-squares problem, column of ones included, with their labels."""

    columns: NDArray[Any]
    labels: Indices
    penalty: Params
    classes: int

    def gradient(self, params: Params, rows: Indices) -> Params:
        """The gradients (c, d, k) at params (c, d, k) of the mean losses of rows (c, batch); -1: none."""
        there = rows >= 0
        block = self.columns[rows].astype(np.float64, copy=False)
        residual = block @ params
        client, place = np.nonzero(there)
        residual[client, place, self.labels[rows[there]]] -= 1
        residual *= (there / there.sum(axis=1, keepdims=True))[..., None]
        result: Params = np.swapaxes(block, 1, 2) @ residual + self.penalty * params
        return result


def table(embeddings: EmbeddingSet, rows: Indices, design: Design, *, ridge: float) -> Table:
    """The rows as the design sees them, held in memory; `ridge` in mean scaling."""
    picked = Picked(embeddings.embeddings, rows)
    plain = design.view == "raw" and not design.grid and embeddings.embeddings.dtype != np.float64
    dtype = np.float32 if plain or design.arithmetic == "fast" else np.float64
    columns = np.ones((len(rows), design.columns), dtype)
    for numbers, block in row_blocks(picked, design):
        columns[numbers, : design.dimension] = block
    return Table(columns, embeddings.labels[rows], penalty(design, ridge), design.classes)


def local_batches(
    start: Params, data: Table, schedules: Sequence[Indices], *, optimiser: Optimiser, rate: float
) -> Params:
    """Each client's parameters after the steps of its schedule (rows of the table), all clients stepping
    together.

    Clients are ordered by their number of steps, so that those still stepping are always the first of the
    stack.
    """
    order = sorted(range(len(schedules)), key=lambda c: -len(schedules[c]))
    lengths = np.array([len(schedules[c]) for c in order])
    width = max(one.shape[1] for one in schedules)
    padded = np.full((len(order), lengths[0], width), -1, np.int64)
    for place, c in enumerate(order):
        padded[place, : lengths[place], : schedules[c].shape[1]] = schedules[c]
    params = np.repeat(start[None], len(order), axis=0)
    state = optimiser.start(params)
    for step in range(lengths[0]):
        active = int(np.count_nonzero(lengths > step))
        gradient = data.gradient(params[:active], padded[:active, step])
        optimiser.step(params, gradient, state=state, rate=rate)
    result = np.empty_like(params)
    result[order] = params
    return result
