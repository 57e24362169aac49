"""Rows in several files read like one matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.cache.rows import Places, StoredRows


def _rows(places: list[tuple[int, int]]) -> tuple[StoredRows, NDArray[Any]]:
    files = [np.arange(30.0).reshape(10, 3) + 100 * number for number in range(3)]
    file = np.array([place[0] for place in places], dtype=np.int64)
    row = np.array([place[1] for place in places], dtype=np.int64)
    want = np.stack([files[f][r] if f >= 0 else np.full(3, np.nan) for f, r in places]) if places else np.zeros((0, 3))
    return StoredRows(lambda: Places(files, file, row), (len(places), 3), "float64"), want


places = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 9)), max_size=20)
runs = st.integers(0, 10).map(lambda n: [(0, i) for i in range(n)] + [(1, i) for i in range(n)])


@given(where=st.one_of(places, runs), start=st.integers(-3, 22), stop=st.integers(-3, 25), step=st.integers(1, 3))
def test_slices(where: list[tuple[int, int]], start: int, stop: int, step: int) -> None:
    rows, want = _rows(where)
    np.testing.assert_array_equal(rows[start:stop:step], want[start:stop:step])
    np.testing.assert_array_equal(np.asarray(rows), want)


@given(where=places.filter(bool), data=st.data())
def test_row_numbers(where: list[tuple[int, int]], data: st.DataObject) -> None:
    rows, want = _rows(where)
    index = data.draw(st.lists(st.integers(-len(where), len(where) - 1), max_size=9))
    np.testing.assert_array_equal(rows[np.array(index, dtype=int)], want[np.array(index, dtype=int)])
    np.testing.assert_array_equal(rows[index[0] if index else 0], want[index[0] if index else 0])


def test_rows_of_one_file_are_not_copied() -> None:
    file = np.arange(30.0).reshape(10, 3)
    rows = StoredRows(lambda: Places([file], np.zeros(10, np.int64), np.arange(10)), (10, 3), "float64")
    assert np.shares_memory(rows[2:7], file)
    assert np.shares_memory(np.asarray(rows), file)


def test_nothing_is_looked_for_until_read() -> None:
    asked = []

    def find() -> Places:
        asked.append(1)
        return Places([np.zeros((2, 3))], np.zeros(2, np.int64), np.arange(2))

    rows = StoredRows(find, (2, 3), "float64")
    assert rows.shape == (2, 3)
    assert not asked
    rows[0]
    rows[1]
    assert asked == [1]
