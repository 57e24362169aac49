"""Statistics against the explicit matrix, in every arithmetic, and what they refuse."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.linear.design import EXACT_ROWS, INTERCEPTS, ROW_VIEWS, ClientStats, Design
from probekit.linear.statistics import row_blocks, statistics
from tests.linear.conftest import Data, embeddings
from tests.oracles import columns, one_hot, relative


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("view", ROW_VIEWS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_statistics_are_those_of_the_explicit_matrix(data: Data, intercept: str, view: str, dtype: type) -> None:
    rows: NDArray[Any] = data[0].astype(dtype)
    labels = data[1]
    stats = statistics(rows, labels, Design(12, 4, view=view, intercept=intercept), chunk_rows=77)
    X = columns(rows.astype(np.float64), intercept=intercept, view=view)
    assert relative(stats.gram, X.T @ X) < 1e-14
    assert relative(stats.moment, X.T @ one_hot(labels, 4)) < 1e-14
    assert np.array_equal(stats.gram, stats.gram.T)
    assert stats.class_counts.tolist() == np.bincount(labels).tolist()


@pytest.mark.parametrize("arithmetic", ["float64", "fast", "exact"])
def test_per_class_grams_add_up(data: Data, arithmetic: str) -> None:
    rows, labels = data
    grid = 2**-10 if arithmetic == "exact" else 0.0
    design = Design(12, 4, arithmetic=arithmetic, grid=grid, per_class=True)
    stats = statistics(rows, labels, design, chunk_rows=20)
    for number in range(4):
        X = columns(rows[labels == number].astype(np.float64))
        assert relative(stats.gram[number], X.T @ X) < 2e-3
        assert stats.gram[number][-1, -1] == (labels == number).sum()
    whole = statistics(rows, labels, dataclasses.replace(design, per_class=False))
    assert relative(stats.total_gram, whole.gram) < 1e-6


def test_fast_keeps_the_digits_of_what_varies() -> None:
    rows, labels = embeddings(5000, 16, 3)
    rows = rows + np.float32(30)
    fast = statistics(rows, labels, Design(16, 3, arithmetic="fast"))
    X = rows.astype(np.float64)
    centred = X - X.mean(axis=0)
    sums = fast.gram[:-1, -1]
    found = fast.gram[:-1, :-1] - np.outer(sums, sums) / len(X)
    assert relative(found, centred.T @ centred) < 1e-6


@settings(deadline=None)
@given(order=st.permutations(range(50)), chunk=st.integers(1, 400), cut=st.integers(0, 50))
def test_exact_sums_do_not_depend_on_order_in_any_bit(order: list[int], chunk: int, cut: int) -> None:
    rows, labels = embeddings(400, 6, 5, seed=3)
    design = Design(6, 5, view="l2", arithmetic="exact")
    clients = np.array_split(np.random.default_rng(0).permutation(400), 50)
    parts = [statistics(rows[held], labels[held], design, chunk_rows=chunk) for held in clients]
    left = ClientStats.zero(design)
    for client in order[:cut]:
        left = left + parts[client]
    right = ClientStats.zero(design)
    for client in order[cut:]:
        right = parts[client] + right
    assert (left + right).digest == statistics(rows, labels, design).digest


def test_removal_in_exact_arithmetic_is_retraining_in_every_bit() -> None:
    rows, labels = embeddings(300, 8, 3)
    design = Design(8, 3, arithmetic="exact", grid=2**-11)
    whole = statistics(rows, labels, design)
    assert (whole - statistics(rows[:120], labels[:120], design)).digest == statistics(
        rows[120:], labels[120:], design
    ).digest


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_addition_is_commutative_and_associative_to_rounding(seed: int, cuts: tuple[int, int]) -> None:
    rows, labels = embeddings(60, 5, 3, seed=seed)
    design = Design(5, 3)
    a, b, c = (statistics(rows[held], labels[held], design) for held in np.split(np.arange(60), sorted(cuts)))
    assert (a + b).digest == (b + a).digest
    assert (a + ClientStats.zero(design)).digest == a.digest
    assert relative(((a + b) + c).gram, (a + (b + c)).gram) < 1e-14
    assert relative(((a + b) + c).gram, statistics(rows, labels, design).gram) < 1e-14


def test_statistics_of_different_designs_do_not_add(data: Data) -> None:
    a, b = (statistics(*data, Design(12, 4, intercept=kind)) for kind in ("free", "penalised"))
    with pytest.raises(MismatchError, match="different designs"):
        a + b


def test_more_rows_than_there_are_cannot_be_taken_out(data: Data) -> None:
    stats = statistics(*data, Design(12, 4))
    with pytest.raises(InputError, match="not \\(all\\) in these statistics"):
        stats - (stats + stats)


@pytest.mark.parametrize("arithmetic", ["float64", "fast", "exact"])
@pytest.mark.parametrize("view", ROW_VIEWS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(data: Data, arithmetic: str, view: str, bad: float) -> None:
    rows = data[0].copy()
    rows[[203, 250], 5] = bad
    grid = 2**-10 if (arithmetic, view) == ("exact", "raw") else 0.0
    design = Design(12, 4, view=view, arithmetic=arithmetic, grid=grid)
    with pytest.raises(InputError, match="row 203 is not finite"):
        statistics(rows, data[1], design, chunk_rows=50)


def test_a_row_without_direction_is_named(data: Data) -> None:
    rows = data[0].copy()
    rows[17] = 0
    with pytest.raises(InputError, match="row 17 is zero"):
        statistics(rows, data[1], Design(12, 4, view="l2"))


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_outside_the_classes_are_named(data: Data, label: int) -> None:
    labels = data[1].copy()
    labels[9] = label
    with pytest.raises(InputError, match=f"row 9 has {label}"):
        statistics(data[0], labels, Design(12, 4))


def test_labels_and_rows_of_other_shapes_are_refused(data: Data) -> None:
    with pytest.raises(InputError, match="one class number"):
        statistics(data[0], data[1][:-1], Design(12, 4))
    with pytest.raises(InputError, match="embeddings of 13 numbers"):
        statistics(data[0], data[1], Design(13, 4))


def test_a_grid_that_does_not_reach_is_refused_with_the_step_that_would(data: Data) -> None:
    rows = data[0].copy()
    rows[31, 2] = 100.0
    with pytest.raises(InputError, match=r"row 31 lies beyond the grid's range of \+-16.*0.0078125.*clipped"):
        statistics(rows, data[1], Design(12, 4, arithmetic="exact", grid=2**-10))
    statistics(rows, data[1], Design(12, 4, arithmetic="exact", grid=0.0078125))


def test_more_rows_than_can_be_summed_exactly_are_refused() -> None:
    rows = np.broadcast_to(np.float32(1), (EXACT_ROWS + 1, 1))
    labels = np.broadcast_to(np.int64(0), (EXACT_ROWS + 1,))
    with pytest.raises(InputError, match="at most 33554432 rows"):
        statistics(rows, labels, Design(1, 1, view="l2", arithmetic="exact"))


def test_no_rows_give_the_neutral_element() -> None:
    design = Design(3, 2)
    found = statistics(np.empty((0, 3), np.float32), np.empty(0, np.int64), design)
    assert found.digest == ClientStats.zero(design).digest


@pytest.mark.parametrize("arithmetic", ["float64", "fast", "exact"])
def test_memory_does_not_grow_with_rows(arithmetic: str) -> None:
    rows = np.ones((60_000, 128), np.float32)
    labels = np.zeros(60_000, np.int64)
    tracemalloc.start()
    statistics(rows, labels, Design(128, 10, view="l2", arithmetic=arithmetic))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


@pytest.mark.parametrize(("count", "most"), [(50_000, 8192), (50_000, 4096), (33, 8)])
def test_every_lane_gets_as_many_blocks(count: int, most: int) -> None:
    design = Design(2, 2)
    rows = np.zeros((count, 2))
    lanes = [[len(b) for _, b in row_blocks(rows, design, chunk_rows=most, lane=(k, 2))] for k in (0, 1)]
    assert len(lanes[0]) == len(lanes[1])
    assert sum(map(sum, lanes)) == count
    assert max(lanes[0] + lanes[1]) <= most
