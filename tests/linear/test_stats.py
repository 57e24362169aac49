"""Statistics: sums of rows, by any partition, in any representation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifier

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.linear import stats as stats_module
from probekit.linear.ridge import solve_ridge
from probekit.linear.stats import SufficientStats, normalized, sum_stats, sums_of_others
from probekit.records import dump, parse
from tests.oracles import one_hot, random_set, relative_error, with_ones


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [300, 3])
def test_sums_are_those_of_the_explicit_matrices(
    dtype: str, weighted: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "BLOCK_BYTES", 1)  # blocks of 64 rows
    embeddings = random_set(count, 12, 4)
    embeddings = replace(embeddings, rows=np.asarray(embeddings.rows).astype(dtype))
    weights = np.random.default_rng(1).uniform(0, 3, count) if weighted else np.ones(count)
    if weighted:
        embeddings = replace(embeddings, weights=weights)
    stats = SufficientStats.from_rows(embeddings)
    Z = with_ones(embeddings.rows)
    Y = one_hot(embeddings.labels, 4)
    assert (stats.root is not None) == (count == 3)
    assert np.allclose(stats.gram, Z.T @ (weights[:, None] * Z), rtol=1e-12)
    assert np.allclose(stats.moment, Z.T @ (weights[:, None] * Y), rtol=1e-12, atol=1e-12)
    assert np.allclose(stats.target_squares, weights @ Y, rtol=1e-12)
    assert stats.weight == pytest.approx(weights.sum())
    assert (stats.count, stats.columns, stats.targets) == (count, 13, 4)


def test_asking_a_root_for_its_sums_leaves_it_as_small_as_it_was() -> None:
    stats = SufficientStats.from_rows(random_set(3, 12, 4))
    assert stats.gram.shape == (13, 13)
    assert stats.moment.shape == (13, 4)
    assert [name for name, value in vars(stats).items() if np.ndim(value)] == ["root"]


def test_real_targets_go_through_the_same_sums() -> None:
    rows = np.asarray(random_set(100, 6, 3).rows)
    targets = np.random.default_rng(2).normal(size=(100, 2))
    stats = SufficientStats.from_rows(EmbeddingSet.from_numpy(rows, targets))
    assert np.allclose(stats.moment, with_ones(rows).T @ targets)
    assert np.allclose(stats.target_squares, np.square(targets).sum(axis=0))


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 12), seed=st.integers(0, 99), skew=st.floats(1, 6))
def test_any_partition_gives_the_head_of_all_rows(clients: int, seed: int, skew: float) -> None:
    embeddings = random_set(120, 10, 4, seed=seed)
    owners = (np.random.default_rng(seed).random(120) ** skew * clients).astype(int)
    parts = [embeddings.take(np.flatnonzero(owners == owner)) for owner in np.unique(owners)]
    total = sum_stats(SufficientStats.from_rows(part) for part in parts)
    model = RidgeClassifier(alpha=120 * 0.01).fit(
        np.asarray(embeddings.rows, float), embeddings.labels
    )
    head = solve_ridge(total, 0.01)
    assert relative_error(2 * head[:-1].T, model.coef_) < 1e-8
    assert np.allclose(2 * head[-1] - 1, model.intercept_, rtol=1e-8, atol=1e-10)


def test_the_same_parts_in_the_same_order_give_the_same_bits() -> None:
    embeddings = random_set(400, 30, 3)
    sizes = [3, 5, 120, 7, 100, 165]
    bounds = np.cumsum([0, *sizes])
    parts = [
        SufficientStats.from_rows(embeddings.take(np.arange(start, stop)))
        for start, stop in pairwise(bounds)
    ]
    assert {part.root is None for part in parts} == {True, False}
    first = sum_stats(parts)
    again = sum_stats(parse(dump(part), SufficientStats, max_bytes=1 << 22) for part in parts)
    assert np.array_equal(first.gram, again.gram)
    assert np.array_equal(first.moment, again.moment)
    assert relative_error(first.gram, SufficientStats.from_rows(embeddings).gram) < 1e-12


def test_many_roots_are_summed_in_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "STACK_ROWS", 7)
    embeddings = random_set(60, 20, 3)
    parts = [
        SufficientStats.from_rows(embeddings.take(np.arange(i, i + 3))) for i in range(0, 60, 3)
    ]
    assert all(part.root is not None for part in parts)
    Z = with_ones(embeddings.rows)
    assert np.allclose(sum_stats(parts).gram, Z.T @ Z, rtol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_sums_of_others_leave_each_part_out(count: int) -> None:
    embeddings = random_set(20 * count, 5, 2)
    pieces = [embeddings.take(np.arange(count * 20) % count == i) for i in range(count)]
    sums = sums_of_others([SufficientStats.from_rows(piece) for piece in pieces])
    for number, others in enumerate(sums):
        rest = embeddings.take(np.flatnonzero(np.arange(count * 20) % count != number))
        assert others.count == len(rest)
        assert np.allclose(others.gram, SufficientStats.from_rows(rest).gram, rtol=1e-12)


def test_normalized_rows_have_norm_one_and_zeros_stay() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [1e200, 0.0], [1e-200, 1e-200]])
    embeddings = normalized(EmbeddingSet.from_numpy(rows, [0, 1, 0, 1]), "l2")
    expected = [[0.6, 0.8], [0, 0], [1, 0], [np.sqrt(0.5), np.sqrt(0.5)]]
    assert np.allclose(np.asarray(embeddings.rows), expected)
    assert np.allclose(embeddings.take(np.array([0])).rows, [[0.6, 0.8]])
    with pytest.raises(InputError, match="L1"):
        normalized(embeddings, "L1")


@pytest.mark.parametrize("count", [300, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(
    count: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "BLOCK_BYTES", 1)
    embeddings = random_set(count, 12, 4)
    rows = np.array(embeddings.rows)
    rows[count - 2, 3] = value
    with pytest.raises(InputError, match=rf"\[{count - 2}\]"):
        SufficientStats.from_rows(replace(embeddings, rows=rows))


@pytest.mark.parametrize("count", [300, 3])
def test_squares_that_overflow_are_refused(count: int) -> None:
    embeddings = random_set(count, 12, 4)
    huge = replace(embeddings, rows=np.asarray(embeddings.rows, float) * 1e200)
    with pytest.raises(InputError, match="overflow"):
        SufficientStats.from_rows(huge)


def test_sets_that_cannot_be_summed_are_refused() -> None:
    embeddings = random_set(30, 4, 3)
    labels = embeddings.labels.copy()
    labels[[4, 9]] = -1
    with pytest.raises(InputError, match=r"2 of 30.*\[4, 9\]"):
        SufficientStats.from_rows(replace(embeddings, labels=labels))
    with pytest.raises(InputError, match="labels"):
        SufficientStats.from_rows(replace(embeddings, labels=None))
    with pytest.raises(InputError, match="none"):
        SufficientStats.from_rows(embeddings.take(np.arange(0)))
    for weights in (np.full(30, -1.0), np.zeros(30), np.full(30, np.nan)):
        with pytest.raises(InputError, match="Weights"):
            SufficientStats.from_rows(replace(embeddings, weights=weights))
    with pytest.raises(InputError, match="no client"):
        sum_stats([])
    others = SufficientStats.from_rows(random_set(30, 5, 3))
    with pytest.raises(InputError, match="5 columns"):
        sum_stats([SufficientStats.from_rows(embeddings), others])
    with pytest.raises(InputError, match="found 1"):
        sums_of_others([others])


def test_statistics_that_contradict_themselves_are_refused() -> None:
    stats = SufficientStats.from_rows(random_set(30, 4, 3))
    with pytest.raises(InputError, match="31"):
        replace(stats, weight=31.0)
    for changes in ({"root": np.ones((2, 8))}, {"gram_sum": None}, {"columns": 7}):
        with pytest.raises(InputError, match="shapes"):
            replace(stats, **changes)
