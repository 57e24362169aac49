"""Nearest neighbours with faiss: a k-NN probe, near duplicates across clients and in a test set.

faiss is imported when first used and given an explicit number of threads: it and torch each bring an OpenMP
runtime. For duplicates its float32 distances only propose: what is compared and reported is float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.values import EmbeddingSet, Partition

BLOCK_ROWS = 4096
FLOAT32_SLACK = 1e-5  # how far a float32 inner product of unit vectors may lie below the true one

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """Two rows that are (nearly) the same sample. A client is None for the server and where unknown."""

    row: int
    other_row: int
    client: str | None
    other_client: str | None
    similarity: float
    same_sample: bool


@contextmanager
def faiss_with(threads: int) -> Iterator[Any]:
    """The faiss module, with this many threads for the length of the block."""
    import faiss

    if threads < 1:
        raise InputError(f"A search needs at least one thread; found {threads}.")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def unit_rows(rows: Array) -> NDArray[np.float64]:
    """The rows in float64, each divided by its norm; a row of zeros stays one and is similar to nothing."""
    dense = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(dense, axis=1, keepdims=True)
    return dense / np.where(norms > 0, norms, 1.0)


def knn_predict(train: Array, labels: Indices, rows: Array, *, neighbours: int = 20, threads: int = 1) -> Indices:
    """The commonest class of the training rows nearest by cosine; of equals the one with the lowest number."""
    if not 1 <= neighbours <= len(train):
        raise InputError(f"A k-NN probe takes 1 to {len(train)} neighbours of these rows; found {neighbours}.")
    check_finite(train, "training row")
    check_finite(rows, "row")
    with faiss_with(threads) as faiss:
        index = faiss.IndexFlatIP(train.shape[1])
        index.add(single(unit_rows(train)))
        _, near = index.search(single(unit_rows(rows)), neighbours)
    votes = np.zeros((len(rows), int(labels.max()) + 1))
    np.add.at(votes, (np.arange(len(rows))[:, None], labels[near]), 1.0)
    return np.asarray(np.argmax(votes, axis=1))


def duplicates(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    test: EmbeddingSet | None = None,
    threshold: float = 0.99,
    limit: int = 100_000,
    threads: int = 1,
) -> tuple[Pair, ...]:
    """The pairs of rows of different holders (clients, the server) that are the same sample or nearly so.

    Nearly: a cosine of at least `threshold`. What such a row teaches stays known when its client leaves.
    test: another set; then the pairs of a held row and a row of it, which flatter a test.
    """
    names = _holders(embeddings, partition)
    if test is not None and embeddings.spec != test.spec:
        raise MismatchError(
            f"The two sets are encoded differently ({embeddings.spec.digest[:12]} and {test.spec.digest[:12]}): their "
            "vectors cannot be compared. Extract both with the same backbone, view and preprocessing."
        )
    others: Sequence[str | None] = names if test is None else test.clients or (None,) * len(test)
    pairs = (
        Pair(row, other, names[row], others[other], similarity, same)
        for row, other, similarity, same in _close(embeddings, test, threshold=threshold, threads=threads)
        if test is not None or (row < other and names[row] != names[other])
    )
    found = tuple(islice(pairs, limit + 1))
    if len(found) > limit:
        raise InputError(f"More than {limit} pairs have a similarity of {threshold} or more. Raise one of the two.")
    return found


def _close(
    one: EmbeddingSet, other: EmbeddingSet | None, *, threshold: float, threads: int
) -> Iterator[tuple[int, int, float, bool]]:
    """Every (row, other row) of equal id or with a cosine of at least the threshold, in order of the rows."""
    if not 0 < threshold <= 1:
        raise InputError(f"A similarity threshold must lie in (0, 1]; found {threshold}.")
    other = one if other is None else other
    right = unit_rows(other.to_numpy())
    check_finite(right, "row")
    where: dict[str, list[int]] = {}
    for row, sample in enumerate(other.ids):
        where.setdefault(sample, []).append(row)
    with faiss_with(threads) as faiss:
        index = faiss.IndexFlatIP(other.dimension)
        index.add(single(right))
        for start in range(0, len(one), BLOCK_ROWS):
            left = unit_rows(one.embeddings[start : start + BLOCK_ROWS])
            check_finite(left, "row", start)
            bounds, _, near = index.range_search(single(left), threshold - FLOAT32_SLACK)
            for k in range(len(left)):
                same = where.get(one.ids[start + k], [])
                candidates = np.union1d(near[bounds[k] : bounds[k + 1]], same).astype(np.int64)
                cosines = np.minimum(right[candidates] @ left[k], 1.0)
                for column, cosine in zip(candidates.tolist(), cosines.tolist(), strict=True):
                    # equal vectors can come out at 1 - 1e-16: rounding must not decide at a threshold of 1
                    if column in same or cosine >= threshold - 1e-12:
                        yield start + k, column, cosine, column in same


def _holders(embeddings: EmbeddingSet, partition: Partition) -> list[str | None]:
    """The name of every row's holder (None: the server)."""
    if partition.rows != len(embeddings):
        raise MismatchError(
            f"The partition divides {partition.rows} rows, the set has {len(embeddings)}. Use the set it was made from."
        )
    clients = {row: name for name, rows in partition.clients.items() for row in rows.tolist()}
    return [clients.get(row) for row in range(partition.rows)]


def single(rows: Array) -> NDArray[np.float32]:
    """The rows as faiss wants them: contiguous float32."""
    return np.ascontiguousarray(rows, dtype=np.float32)


def check_finite(rows: Array, noun: str, start: int = 0) -> None:
    """Refuse rows that hold NaN or infinity, naming the first."""
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        number = start + int(np.argmax(bad))
        raise InputError(f"Neighbours need finite embeddings; {noun} {number} is not. Drop it (EmbeddingSet.select).")
