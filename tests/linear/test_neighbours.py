"""Neighbours against brute force."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.partition import partition
from probekit.linear.neighbours import duplicates, faiss_with, knn_predict
from probekit.values import EmbeddingSet, EncodingSpec, Partition


def embedding_set(rows: NDArray[np.float32], names: list[str] | None = None) -> EmbeddingSet:
    names = names or [str(number) for number in range(len(rows))]
    ids = [hashlib.sha256(name.encode()).hexdigest() for name in names]
    labels = np.zeros(len(rows), np.int64)
    return EmbeddingSet(EncodingSpec("test", "0" * 64, {}, "proj"), rows, labels, ids)


def near_rows(seed: int, count: int = 40) -> NDArray[np.float32]:
    """Rows in little groups that are close to each other, of differing lengths."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(count // 4, 8))
    rows = centres[generator.integers(0, len(centres), count)] + 0.1 * generator.normal(size=(count, 8))
    return (rows * generator.uniform(0.5, 2, (count, 1))).astype(np.float32)


def cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([0.9, 0.97, 0.99]))
def test_duplicates_across_clients_are_those_of_a_double_loop(seed: int, threshold: float) -> None:
    data = embedding_set(near_rows(seed))
    split = partition(data.labels, "iid", clients=3, server_share=0.2, seed=seed)
    holder: dict[int, str | None] = {int(row): None for row in split.server}
    holder |= {int(row): name for name, rows in split.clients.items() for row in rows}
    rows = np.asarray(data.embeddings)
    wanted = {
        (i, j)
        for i in range(40)
        for j in range(i + 1, 40)
        if holder[i] != holder[j] and cosine(rows[i], rows[j]) >= threshold
    }
    found = duplicates(data, split, threshold=threshold)
    assert {(pair.row, pair.other_row) for pair in found} == wanted
    for pair in found:
        assert (pair.client, pair.other_client) == (holder[pair.row], holder[pair.other_row])
        assert pair.similarity == pytest.approx(cosine(rows[pair.row], rows[pair.other_row]), abs=1e-12)
        assert not pair.same_sample


def test_equal_samples_are_found_by_id_and_equal_vectors_at_a_threshold_of_one() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    rows[3] = rows[0] * 2
    data = embedding_set(rows, ["a", "b", "c", "d", "b"])
    split = Partition({"x": np.array([0, 1, 2]), "y": np.array([3, 4])}, np.empty(0, np.int64), 5, "test", 0)
    found = duplicates(data, split, threshold=1.0)
    assert [(pair.row, pair.other_row, pair.same_sample) for pair in found] == [(0, 3, False), (1, 4, True)]


def test_duplicates_against_a_test_set() -> None:
    rows = near_rows(3)
    data, test = embedding_set(rows), embedding_set(near_rows(3)[:7] * 3, [f"t{i}" for i in range(6)] + ["5"])
    split = partition(data.labels, "iid", clients=2, seed=1)
    found = {(pair.row, pair.other_row, pair.same_sample) for pair in duplicates(data, split, test=test)}
    others = np.asarray(test.embeddings)
    wanted = {(i, j, False) for i in range(40) for j in range(7) if cosine(rows[i], others[j]) >= 0.99}
    assert {(i, j) for i, j, _ in found} == {(i, j) for i, j, _ in wanted} | {(5, 6)}
    assert (5, 6, True) in found
    with pytest.raises(MismatchError, match="encoded differently"):
        duplicates(data, split, test=replace(test, spec=replace(test.spec, view="pre")))


def test_searches_are_bounded_and_checked() -> None:
    data = embedding_set(np.ones((30, 4), np.float32))
    split = partition(data.labels, "iid", clients=2)
    with pytest.raises(InputError, match="More than 10 pairs"):
        duplicates(data, split, limit=10)
    with pytest.raises(InputError, match="found 0"):
        duplicates(data, split, threshold=0)
    with pytest.raises(MismatchError, match="30 rows"):
        duplicates(embedding_set(np.ones((4, 4), np.float32)), split)
    spoiled = np.ones((30, 4), np.float32)
    spoiled[9] = np.nan
    with pytest.raises(InputError, match="row 9"):
        duplicates(embedding_set(spoiled), split)
    zeros = np.zeros((30, 4), np.float32)
    assert duplicates(embedding_set(zeros), split) == ()


@pytest.mark.parametrize("neighbours", [1, 5])
def test_the_probe_votes_like_brute_force(neighbours: int) -> None:
    generator = np.random.default_rng(1)
    train, rows = (generator.normal(size=(n, 6)).astype(np.float32) for n in (60, 25))
    labels = generator.integers(0, 4, 60)
    predicted = knn_predict(train, labels, rows, neighbours=neighbours)
    for row, found in zip(rows, predicted.tolist(), strict=True):
        order = sorted(range(60), key=lambda j: -cosine(row, train[j]))
        votes = [sum(labels[j] == k for j in order[:neighbours]) for k in range(labels.max() + 1)]
        assert found == int(np.argmax(votes))


def test_threads_are_set_and_restored_even_after_an_error() -> None:
    import faiss

    before = faiss.omp_get_max_threads()
    seen = []

    def fail() -> None:
        with faiss_with(before + 1) as module:
            seen.append(module.omp_get_max_threads())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert (seen, faiss.omp_get_max_threads()) == ([before + 1], before)


def test_probes_that_cannot_be_are_refused() -> None:
    rows, labels = np.ones((3, 2), np.float32), np.zeros(3, np.int64)
    for neighbours in (0, 4):
        with pytest.raises(InputError, match=f"1 to 3 neighbours of these rows; found {neighbours}"):
            knn_predict(rows, labels, rows, neighbours=neighbours)
    with pytest.raises(InputError, match="one thread"), faiss_with(0):
        pass
