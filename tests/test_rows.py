"""Rows that are read when they are asked for: the same numbers as an array's, by any index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit import rows as module
from probekit.embeddings import EmbeddingSet
from probekit.rows import PickedRows, Rows, StackedRows, concatenate_rows, pick_rows

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
ORDER = np.random.default_rng(1).permutation(12)

INDICES = [
    *(0, -1, slice(2, 7), slice(None), slice(0, 0), slice(None, None, 3), slice(9, 2, -2)),
    *([4, 4, -2], np.arange(12) % 2 == 0, np.zeros(0, np.int64), np.int64(3)),
]


def lazy(kind: str) -> Rows:
    if kind == "picked":
        return PickedRows(PickedRows(X[ORDER], np.argsort(ORDER)[::-1]), np.arange(12)[::-1])
    return StackedRows([X[:1], X[1:8], X[8:8], X[8:]])


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("kind", ["picked", "stacked"])
def test_every_index_gives_what_an_array_gives(kind: str, index: Any) -> None:
    rows = lazy(kind)
    np.testing.assert_array_equal(rows[index], X[index])
    np.testing.assert_array_equal(np.asarray(rows), X)
    assert (rows.shape, rows.dtype, len(rows)) == (X.shape, X.dtype, len(X))


def test_stacked_parts_have_the_dtype_that_holds_all() -> None:
    rows = StackedRows([X.astype(np.float16), X])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[:12], X.astype(np.float16))


@given(st.lists(st.integers(0, 11), min_size=1, max_size=15))
def test_a_large_set_is_taken_without_a_copy(chosen: list[int]) -> None:
    whole = EmbeddingSet.from_numpy(X, np.arange(12) % 3)
    indices = np.array(chosen, np.int64)
    small = whole.take(indices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", 0)
        large = whole.take(indices)
    assert isinstance(small.rows, np.ndarray)
    assert isinstance(large.rows, PickedRows)
    assert large.digest == small.digest
    for ours, theirs in zip(large.blocks(4), small.blocks(4), strict=True):
        np.testing.assert_array_equal(ours.rows, theirs.rows)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_mask_takes_the_rows_where_it_is_true(step: int) -> None:
    whole = EmbeddingSet.from_numpy(X, np.arange(12) % 3)
    mask = np.arange(12) % step == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", 0)
        large = whole.take(mask)
    assert whole.take(mask).digest == large.digest == whole.take(np.flatnonzero(mask)).digest


def test_few_rows_of_a_large_matrix_are_an_array() -> None:
    picked = pick_rows(np.lib.stride_tricks.as_strided(X, (10**9, 3), (0, 4)), np.arange(5))
    assert isinstance(picked, np.ndarray)


def test_rows_of_several_sets_are_stacked_where_they_are_large() -> None:
    parts = [X[:5], X[5:]]
    assert isinstance(concatenate_rows(parts), np.ndarray)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", 0)
        large = concatenate_rows(parts)
    assert isinstance(large, StackedRows)
    np.testing.assert_array_equal(large, concatenate_rows(parts))
