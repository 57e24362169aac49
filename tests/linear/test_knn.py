"""k-NN votes against a search over all pairs, one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.linear import knn as module
from probekit.linear.knn import Weighting, knn_votes, nearest
from tests.oracles import cosine


def brute_force(
    train: np.ndarray, labels: np.ndarray, row: np.ndarray, k: int, weights: str, classes: int
) -> np.ndarray:
    similarities = [cosine(row, other) if other.any() else 0.0 for other in train]
    order = sorted(range(len(train)), key=lambda j: (-round(similarities[j], 12), j))[:k]
    votes = np.zeros(classes)
    for j in order:
        votes[labels[j]] += np.exp(similarities[j] / 0.07) if weights == "dino" else 1.0
    return votes / votes.sum()


@given(
    count=st.integers(1, 60),
    k=st.integers(1, 70),
    width=st.integers(2, 9),
    weights=st.sampled_from(["dino", "uniform"]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 300),
)
def test_votes_are_those_of_brute_force(
    count: int, k: int, width: int, weights: Weighting, dtype: str, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    train = generator.normal(size=(count, width)).astype(dtype)
    rows = generator.normal(size=(11, width)).astype(dtype)
    labels = generator.integers(0, 4, count)
    votes = knn_votes(train, labels, rows, classes=4, k=k, weights=weights)
    for row, found in zip(rows.astype(float), votes, strict=True):
        expected = brute_force(train.astype(float), labels, row, k, weights, 4)
        assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_many_equal_rows_are_taken_in_order_and_ties_go_to_the_lowest_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SPARE_NEIGHBORS", 1)
    monkeypatch.setattr(module, "QUERY_ROWS", 2)
    train = np.tile(np.array([[1.0, 2.0, 3.0]]), (40, 1))
    labels = np.array([2, 1] * 20)
    rows = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.1, 0.5, 0.1]])
    for weights in ("dino", "uniform"):
        votes = knn_votes(train, labels, rows, classes=3, k=4, weights=weights)
        assert np.allclose(votes, [[0, 0.5, 0.5]] * 3)
        assert votes.argmax(axis=1).tolist() == [1, 1, 1]
        assert knn_votes(train, labels, rows, classes=3, k=1).argmax(axis=1).tolist() == [2, 2, 2]


def test_float64_decides_between_rows_that_float32_cannot_tell_apart() -> None:
    generator = np.random.default_rng(3)
    direction = generator.normal(size=16)
    offsets = generator.normal(size=(50, 16))
    train = direction + 1e-6 * offsets
    labels = np.arange(50)
    rows = direction[None] + 1e-6 * offsets[[7]]
    assert knn_votes(train, labels, rows, classes=50, k=1).argmax() == 7


def test_low_temperatures_do_not_overflow() -> None:
    train = np.eye(3)
    votes = knn_votes(train, np.arange(3), np.eye(3), classes=3, k=3, temperature=1e-4)
    assert np.allclose(votes, np.eye(3))


def test_threads_are_set_while_searching_and_restored() -> None:
    import faiss

    before = faiss.omp_get_max_threads()
    blocks = nearest(np.eye(3), np.eye(3), 1, threads=before + 1)
    next(blocks)
    assert faiss.omp_get_max_threads() == before + 1
    blocks.close()
    assert faiss.omp_get_max_threads() == before
