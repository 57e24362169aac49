"""k nearest neighbors by cosine, with DINO's weighted vote (Caron et al., 2021) or a plain one.

faiss is imported when first used and told its number of threads, as it brings an OpenMP runtime of
its own. Its float32 similarities only propose: what is compared and voted with is float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices, unit_rows
from probekit.embeddings import Rows

Weighting = Literal["dino", "uniform"]
QUERY_ROWS = 1024
BLOCK_ELEMENTS = 1 << 22
SPARE_NEIGHBORS = 12
FLOAT32_SLACK = 1e-5
"""How far a float32 inner product of unit vectors may be from the true one."""


def knn_votes(
    train: NDArray[Any],
    labels: Indices,
    rows: Rows,
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    weights: Weighting = "dino",
    threads: int = 1,
) -> Array:
    """Each class's share of the votes of the k nearest training rows, (n, classes).

    A neighbor's vote is exp(similarity / temperature), or 1 ("uniform"). Of equally near training
    rows the first count; `argmax` gives ties to the lowest class. k is at most len(train).
    """
    votes = np.zeros((len(rows), classes))
    for start, similarities, neighbors in nearest(train, rows, min(k, len(train)), threads=threads):
        values = np.ones_like(similarities)
        if weights == "dino":
            values = np.exp((similarities - similarities[:, :1]) / temperature)
        numbers = np.arange(start, start + len(neighbors))[:, None]
        np.add.at(votes, (numbers, labels[neighbors]), values)
    return np.asarray(votes / votes.sum(axis=1, keepdims=True))


def nearest(
    train: NDArray[Any], rows: Rows, k: int, *, threads: int = 1
) -> Iterator[tuple[int, Array, Indices]]:
    """Blocks of (first row, similarities, training rows), (m, k) each, the nearest first."""
    stored = unit_rows(train)
    proposed = min(k + SPARE_NEIGHBORS, len(stored))
    with _faiss(threads) as faiss:
        index = faiss.IndexFlatIP(stored.shape[1])
        index.add(_single(stored))
        for start in range(0, len(rows), QUERY_ROWS):
            queries = unit_rows(rows[start : start + QUERY_ROWS])
            coarse, candidates = index.search(_single(queries), proposed)
            exact = _similarities(stored, queries, candidates)
            similarities, neighbors = _first(exact, candidates, k)
            # a training row that was not proposed is at most this similar
            limits = coarse[:, -1] + FLOAT32_SLACK
            unsure = np.flatnonzero(similarities[:, -1] <= limits)
            if proposed < len(stored) and len(unsure):
                similarities[unsure], neighbors[unsure] = _search_all(stored, queries[unsure], k)
            yield start, similarities, neighbors


def _search_all(stored: Array, queries: Array, k: int) -> tuple[Array, Indices]:
    """The same over all training rows, in float64, one query at a time."""
    everything = np.arange(len(stored))[None]
    similarities = np.empty((len(queries), k))
    neighbors = np.empty((len(queries), k), np.int64)
    for position, query in enumerate(queries):
        exact = _similarities(stored, query[None], everything)
        similarities[position], neighbors[position] = _first(exact, everything, k)
    return similarities, neighbors


def _similarities(stored: Array, queries: Array, candidates: Indices) -> Array:
    """Inner products in float64; those of equal training rows are equal bit by bit."""
    products = np.empty(candidates.shape)
    length = max(1, BLOCK_ELEMENTS // (candidates.shape[1] * stored.shape[1]))
    for start in range(0, len(queries), length):
        chunk = slice(start, start + length)
        products[chunk] = np.einsum("mkd,md->mk", stored[candidates[chunk]], queries[chunk])
    return products


def _first(similarities: Array, candidates: Indices, k: int) -> tuple[Array, Indices]:
    """The k most similar candidates; of equals, those of the lowest numbers."""
    order = np.lexsort((candidates, -similarities), axis=1)[:, :k]
    chosen = np.take_along_axis(candidates, order, axis=1)
    return np.take_along_axis(similarities, order, axis=1), chosen.astype(np.int64)


@contextmanager
def _faiss(threads: int) -> Iterator[Any]:
    """The faiss module, with so many threads meanwhile."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def _single(rows: Array) -> NDArray[np.float32]:
    return np.ascontiguousarray(rows, np.float32)
