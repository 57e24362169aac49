"""A client's sufficient statistics from its cached rows, some rows at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from probekit.errors import InputError
from probekit.linear.design import EXACT_ROWS, GRID_REACH, ClientStats, Design
from probekit.linear.lapack import sparse
from probekit.linear.threads import libraries
from probekit.values import Rows

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Blocks = Iterator[tuple[Indices, NDArray[Any]]]

BLOCK_BYTES = 2**24
LANES = 2
FAST_ROWS = 8192
"""How many rows float32 may sum before float64 takes over: the error of `fast` grows with it."""
SMALL_MEAN = 0.01
"""The share of the rows' squares that their mean may make up before `fast` takes it off."""


def statistics(rows: Rows, labels: NDArray[Any], design: Design, *, chunk_rows: int | None = None) -> ClientStats:
    """The Gram, moment and class counts of some rows.

    rows: the (n, d) embeddings, read some at a time.
    labels: n class numbers.
    design: how rows become columns.
    chunk_rows: rows at a time; left out, as many as are fast.
    Gives statistics that can be added to those of other rows of the same design.
    """
    labels = checked_labels(labels, len(rows), design.classes)
    if design.arithmetic == "exact" and len(rows) > EXACT_ROWS:
        raise InputError(f"Exact arithmetic sums at most {EXACT_ROWS} rows; found {len(rows)}. Use float64 arithmetic.")
    counts = np.bincount(labels, minlength=design.classes).astype(np.int64)
    if not design.per_class:
        gram, sums = _sums(rows, labels, design, chunk_rows=chunk_rows)
        return ClientStats(design, _bordered(gram, sums, counts.sum(), design), _moment(sums, counts, design), counts)
    grams, sums = np.zeros(design.shapes[0]), np.zeros((design.classes, design.dimension))
    for number, index in enumerate(np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])):
        gram, own = _sums(rows, labels, design, index=index, chunk_rows=chunk_rows)
        sums[number] = own[number]
        grams[number] = _bordered(gram, own, counts[number], design)
    return ClientStats(design, grams, _moment(sums, counts, design), counts)


def step_for(rows: Rows, *, headroom: float = 4.0) -> float:
    """The finest grid step that holds these rows (the server's own) with room for larger ones."""
    largest = float(np.abs(np.asarray(rows[0 : len(rows)], dtype=np.float64)).max(initial=0.0))
    if not (0 < largest < math.inf and headroom >= 1):
        raise InputError(
            f"A grid step needs finite rows, not all zero, and a headroom of 1 or more; found {largest}, {headroom}."
        )
    return float(2.0 ** math.ceil(math.log2(headroom * largest / GRID_REACH)))


def row_blocks(
    rows: Rows,
    design: Design,
    *,
    index: Indices | None = None,
    chunk_rows: int | None = None,
    lane: tuple[int, int] = (0, 1),
) -> Blocks:
    """Row numbers and rows as the design sees them; a block lives only until the next one is asked for.

    `lane` (k, n) gives every n-th block, from the k-th on.
    """
    if len(rows.shape) != 2 or rows.shape[1] != design.dimension:
        raise InputError(f"This design is for embeddings of {design.dimension} numbers; found shape {rows.shape}.")
    count = len(rows) if index is None else len(index)
    length = _even(count, _block_rows(design, chunk_rows), lane[1])
    buffer = np.empty((min(length, count), design.dimension), _dtype(design))
    for start in range(lane[0] * length, count, lane[1] * length):
        stop = min(start + length, count)
        numbers = np.arange(start, stop) if index is None else index[start:stop]
        found = rows[start:stop] if index is None else rows[numbers]
        yield numbers, _seen(found, numbers, design, buffer=buffer)


def columns_of(rows: Rows, design: Design, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """All rows as the design sees them, column of ones included."""
    columns = np.ones((len(rows), design.columns), dtype)
    for numbers, block in row_blocks(rows, design):
        columns[numbers, : design.dimension] = block
    return columns


def _dtype(design: Design) -> np.dtype[Any]:
    return np.dtype(np.float32 if design.arithmetic == "fast" else np.float64)


def _block_rows(design: Design, chunk_rows: int | None) -> int:
    length = chunk_rows or max(64, BLOCK_BYTES // (_dtype(design).itemsize * design.dimension))
    return min(length, FAST_ROWS) if design.arithmetic == "fast" else length


def _even(count: int, most: int, lanes: int) -> int:
    """The rows of a block, at most so many, such that lanes get as many blocks, but for rounding, all about as long."""
    return math.ceil(count / (lanes * math.ceil(count / (lanes * most)))) if lanes > 1 else most


def checked_labels(labels: NDArray[Any], count: int, classes: int) -> Indices:
    """The labels as class numbers, one per row and each below the number of classes."""
    labels = np.asarray(labels)
    if labels.shape != (count,) or not (np.issubdtype(labels.dtype, np.integer) or labels.size == 0):
        raise InputError(
            f"Each of the {count} rows needs one class number; found shape {labels.shape}, type {labels.dtype}."
        )
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        raise InputError(
            f"Labels must be 0 to {classes - 1}; row {bad[0]} has {labels[bad[0]]}. Leave it out, or give more classes."
        )
    return labels.astype(np.int64, copy=False)


def _seen(found: NDArray[Any], numbers: Indices, design: Design, *, buffer: NDArray[Any]) -> NDArray[Any]:
    """The block in the design's number type, row view and grid; the stored rows where nothing changes."""
    if design.view == "raw" and not design.grid and found.dtype == buffer.dtype and found.flags.c_contiguous:
        return np.asarray(found)
    block = buffer[: len(found)]
    np.copyto(block, found, casting="same_kind")
    if design.view == "l2":
        # a sum along a row of a contiguous block depends on that row alone, whatever the block
        norms = np.sqrt(np.square(block).sum(axis=1))
        _refuse_infinite(norms[:, None], numbers)
        _refuse_rows(norms == 0, numbers, "is zero and has no direction", "Leave it out or use the raw rows.")
        block /= norms[:, None]
    if design.grid:
        _round(block, numbers, design)
    return block


def _round(block: Array, numbers: Indices, design: Design) -> None:
    _refuse_infinite(block, numbers)
    block /= design.grid
    np.rint(block, out=block)
    # not max(abs(block)): that would copy the block
    if block.max(initial=0.0) > GRID_REACH or block.min(initial=0.0) < -GRID_REACH:
        beyond = np.asarray(np.abs(block).max(axis=1))
        largest = float(beyond.max()) * design.grid
        remedy = (
            f"Use a coarser grid: the largest entry here is {largest:.6g}, which needs a step of at least "
            f"{2.0 ** np.ceil(np.log2(largest / GRID_REACH)):g}; nothing is clipped."
        )
        what = f"lies beyond the grid's range of +-{design.grid * GRID_REACH:g}"
        _refuse_rows(beyond > GRID_REACH, numbers, what, remedy)
    block *= design.grid


def _refuse_rows(bad: NDArray[np.bool_], numbers: Indices, what: str, remedy: str) -> None:
    if bad.any():
        raise InputError(f"The embedding of row {numbers[np.argmax(bad)]} {what}. {remedy}")


def _refuse_infinite(block: NDArray[Any], numbers: Indices) -> None:
    bad = ~np.asarray(np.isfinite(block).all(axis=1))
    _refuse_rows(bad, numbers, "is not finite", "Leave it out or encode it again.")


def _sums(
    rows: Rows, labels: Indices, design: Design, *, index: Indices | None = None, chunk_rows: int | None = None
) -> tuple[Array, Array]:
    """E^T E (symmetric) and the sum of the rows of each class, (k, d).

    Many blocks go down two lanes at once: one core converts and sorts while another multiplies. There are two
    whatever the machine, so that the sums are the same on all.
    """

    def lane(number: int, lanes: int) -> tuple[Array, Array]:
        return _lane(labels, design, row_blocks(rows, design, index=index, chunk_rows=chunk_rows, lane=(number, lanes)))

    count = len(rows) if index is None else len(index)
    if count <= 2 * LANES * _block_rows(design, chunk_rows):
        return lane(0, 1)
    cores = max(1, (os.cpu_count() or 1) // LANES)
    with libraries().limit(limits=cores, user_api="blas"), ThreadPoolExecutor(LANES) as pool:
        parts = list(pool.map(partial(lane, lanes=LANES), range(LANES)))
    (gram, sums), (more, others) = parts
    return gram + more, sums + others


def _lane(labels: Indices, design: Design, blocks: Blocks) -> tuple[Array, Array]:
    gram = np.zeros((design.dimension, design.dimension))
    sums = np.zeros((design.classes, design.dimension))
    counts = np.zeros(design.classes)
    shift, buffer = None, np.empty((0, 0), np.float32)
    product = np.empty_like(gram, dtype=_dtype(design))
    for numbers, block in blocks:
        if design.arithmetic == "fast":
            if shift is None:
                shift, buffer = _shift(block), np.empty_like(block)
            if shift.any():
                block = np.subtract(block, shift, out=buffer[: len(block)])
        gram += np.matmul(block.T, block, out=product)  # NumPy sees one matrix and does half the work of a product
        _refuse_overflow(gram, block, numbers)
        ones, shape = np.ones(len(numbers), block.dtype), (len(numbers), design.classes)
        sums += sparse.csr_array((ones, labels[numbers], np.arange(len(numbers) + 1)), shape=shape).T @ block
        counts += np.bincount(labels[numbers], minlength=design.classes)
    gram = (gram + gram.T) / 2
    if shift is None:
        return gram, sums
    mean = shift.astype(np.float64)
    cross = np.outer(sums.sum(axis=0), mean)
    gram += cross + cross.T + counts.sum() * np.outer(mean, mean)
    return gram, sums + np.outer(counts, mean)


def _shift(block: NDArray[np.float32]) -> NDArray[np.float32]:
    """What is taken off rows before float32 sums their squares: their mean, or nothing where it is small beside them.

    float32 keeps the digits of what varies only if the mean, often far larger, is taken off before.
    """
    mean = block.mean(axis=0)
    energy = np.einsum("ij,ij->", block, block)
    return mean if len(block) * float(mean @ mean) > SMALL_MEAN * energy else np.zeros_like(mean)


def _refuse_overflow(gram: Array, block: NDArray[Any], numbers: Indices) -> None:
    """Refuse NaN and infinity: they reach the Gram's diagonal, which is looked at instead of every row."""
    if not np.isfinite(np.einsum("ii->i", gram)).all():
        _refuse_infinite(block, numbers)
        raise InputError(f"The squares of rows {numbers[0]} to {numbers[-1]} overflow. Scale the embeddings down.")


def _bordered(gram: Array, sums: Array, count: np.int64, design: Design) -> Array:
    """The Gram with the column of ones, whose products are sums of rows and the count."""
    if design.intercept == "none":
        return gram
    total = sums.sum(axis=0)[:, None]
    return np.block([[gram, total], [total.T, np.array([[count]], np.float64)]])


def _moment(sums: Array, counts: Indices, design: Design) -> Array:
    embedding = np.ascontiguousarray(sums.T)
    return embedding if design.intercept == "none" else np.vstack([embedding, counts.astype(np.float64)])
