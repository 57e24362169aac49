"""k nearest neighbors by cosine, with DINO's weighted vote (Caron et al., 2021) or a plain one.

faiss is imported when first used. Its float32 similarities only propose: what is compared and voted
with is float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

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
    import faiss

    stored = unit_rows(train)
    everything = np.arange(len(stored))[None]
    proposed = min(k + SPARE_NEIGHBORS, len(stored))
    with threadpool_limits(threads):
        index = faiss.IndexFlatIP(stored.shape[1])
        index.add(stored.astype(np.float32))
        for start in range(0, len(rows), QUERY_ROWS):
            queries = unit_rows(rows[start : start + QUERY_ROWS])
            coarse, candidates = index.search(queries.astype(np.float32), proposed)
            similarities, neighbors = _most_similar(stored, queries, candidates, k)
            # a training row that was not proposed is at most this similar
            limits = coarse[:, -1] + FLOAT32_SLACK
            for row in np.flatnonzero(similarities[:, -1] <= limits):
                query = queries[row : row + 1]
                similarities[row], neighbors[row] = _most_similar(stored, query, everything, k)
            yield start, similarities, neighbors


def _most_similar(
    stored: Array, queries: Array, candidates: Indices, k: int
) -> tuple[Array, Indices]:
    """The k candidates of the highest inner products in float64; of equals, the lowest numbers.

    Inner products of equal training rows are equal bit by bit.
    """
    products = np.empty(candidates.shape)
    length = max(1, BLOCK_ELEMENTS // (candidates.shape[1] * stored.shape[1]))
    for start in range(0, len(queries), length):
        chunk = slice(start, start + length)
        products[chunk] = np.einsum("mkd,md->mk", stored[candidates[chunk]], queries[chunk])
    order = np.lexsort((candidates, -products), axis=1)[:, :k]
    return np.take_along_axis(products, order, axis=1), np.take_along_axis(candidates, order, 1)
