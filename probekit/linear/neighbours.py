"""Nearest neighbours with faiss: a k-NN probe, near duplicates across clients and in a test set.

faiss is imported when first used and given an explicit number of threads: it and torch each bring an OpenMP
runtime. For duplicates its float32 distances only propose: what is compared and reported is float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.values import EmbeddingSet, Partition

METRICS = ("cosine", "l2")
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


@dataclass(frozen=True)
class KnnOptions:
    """A k-NN probe: each neighbour votes with 1, or with exp(cosine / temperature) where one is given."""

    neighbours: int = 20
    metric: str = "cosine"
    temperature: float | None = None

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise InputError(f"A k-NN probe needs at least one neighbour; found {self.neighbours}.")
        if self.metric not in METRICS:
            raise InputError(f"A k-NN probe measures by cosine or l2; found {self.metric!r}.")
        if self.temperature is not None and (self.metric != "cosine" or not self.temperature > 0):
            raise InputError(
                f"A temperature weighs cosine similarities and must be above 0; found {self.temperature} "
                f"with {self.metric}. Leave it out to count each neighbour once."
            )


MAJORITY = KnnOptions()


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


def knn_votes(
    train: Array, labels: Indices, rows: Array, *, options: KnnOptions = MAJORITY, threads: int = 1
) -> NDArray[np.float64]:
    """The votes of each row's nearest training rows, one column per class, each row adding up to 1."""
    if options.neighbours > len(train):
        raise InputError(
            f"{options.neighbours} neighbours were asked for; there are only {len(train)} training rows. Ask for fewer."
        )
    check_finite(train, "training row")
    check_finite(rows, "row")
    prepare = unit_rows if options.metric == "cosine" else np.asarray
    with faiss_with(threads) as faiss:
        index = (faiss.IndexFlatIP if options.metric == "cosine" else faiss.IndexFlatL2)(train.shape[1])
        index.add(single(prepare(train)))
        closeness, near = index.search(single(prepare(rows)), options.neighbours)
    weights = np.ones_like(closeness, dtype=np.float64)
    if options.temperature is not None:
        weights = np.exp((closeness - closeness.max(axis=1, keepdims=True)).astype(np.float64) / options.temperature)
    votes = np.zeros((len(rows), int(labels.max()) + 1))
    np.add.at(votes, (np.arange(len(rows))[:, None], labels[near]), weights)
    shares: NDArray[np.float64] = votes / votes.sum(axis=1, keepdims=True)
    return shares


def knn_predict(
    train: Array, labels: Indices, rows: Array, *, options: KnnOptions = MAJORITY, threads: int = 1
) -> Indices:
    """The class with most votes among the nearest training rows; of equals the one with the lowest number."""
    winners: Indices = np.argmax(knn_votes(train, labels, rows, options=options, threads=threads), axis=1)
    return winners


def duplicates_across(
    embeddings: EmbeddingSet, partition: Partition, *, threshold: float = 0.99, limit: int = 100_000, threads: int = 1
) -> tuple[Pair, ...]:
    """The pairs of rows of different holders (clients, the server) that are the same sample or nearly so.

    Nearly: a cosine of at least `threshold`. What such a row teaches stays known when its client leaves.
    """
    _same_length(embeddings, partition)
    names, holder = _holders(partition)
    found = []
    for row, other, similarity, same in _close(embeddings, embeddings, threshold=threshold, threads=threads):
        if row < other and holder[row] != holder[other]:
            found.append(Pair(row, other, names[holder[row]], names[holder[other]], similarity, same))
            _within(found, limit, threshold)
    return tuple(found)


def duplicates_against(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    test: EmbeddingSet,
    threshold: float = 0.99,
    limit: int = 100_000,
    threads: int = 1,
) -> tuple[Pair, ...]:
    """The pairs of a held row and a test row that are (nearly) the same sample: they flatter a test."""
    _same_length(embeddings, partition)
    if embeddings.spec != test.spec:
        raise MismatchError(
            f"The two sets are encoded differently ({embeddings.spec.digest[:12]} and {test.spec.digest[:12]}): their "
            "vectors cannot be compared. Extract both with the same backbone, view and preprocessing."
        )
    names, holder = _holders(partition)
    test_clients = test.clients or (None,) * len(test)
    found = []
    for row, other, similarity, same in _close(embeddings, test, threshold=threshold, threads=threads):
        found.append(Pair(row, other, names[holder[row]], test_clients[other], similarity, same))
        _within(found, limit, threshold)
    return tuple(found)


def _close(
    one: EmbeddingSet, other: EmbeddingSet, *, threshold: float, threads: int
) -> Iterator[tuple[int, int, float, bool]]:
    """Every (row, other row) of equal id or with a cosine of at least the threshold, in order of the rows."""
    if not 0 < threshold <= 1:
        raise InputError(f"A similarity threshold must lie in (0, 1]; found {threshold}.")
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


def _holders(partition: Partition) -> tuple[Sequence[str | None], Indices]:
    """The names of the holders (None: the server) and the holder's number of every row."""
    holder = np.full(partition.rows, len(partition.clients), np.int64)
    for number, rows in enumerate(partition.clients.values()):
        holder[rows] = number
    return [*partition.clients, None], holder


def _same_length(embeddings: EmbeddingSet, partition: Partition) -> None:
    if partition.rows != len(embeddings):
        raise MismatchError(
            f"The partition divides {partition.rows} rows, the embedding set has {len(embeddings)}. Use the "
            "set that the partition was made from."
        )


def _within(found: list[Pair], limit: int, threshold: float) -> None:
    if len(found) > limit:
        raise InputError(
            f"More than {limit} pairs have a similarity of {threshold} or more. Raise the threshold, or "
            "raise the limit."
        )


def single(rows: Array) -> NDArray[np.float32]:
    """The rows as faiss wants them: contiguous float32."""
    return np.ascontiguousarray(rows, dtype=np.float32)


def check_finite(rows: Array, noun: str, start: int = 0) -> None:
    """Refuse rows that hold NaN or infinity, naming the first."""
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise InputError(
            f"Neighbours need finite embeddings; {noun} {start + int(np.argmax(bad))} holds NaN or infinity. "
            "Drop such rows with EmbeddingSet.select first."
        )
