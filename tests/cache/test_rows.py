"""Rows in several files read like one matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probekit.cache.rows import RowFile, StoredRows
from probekit.cache.tensors import write_tensors
from probekit.errors import CorruptError
from tests.cache.examples import ids, rows


def row_file(folder: Path, *numbers: int) -> RowFile:
    tensors = {"rows": rows(*numbers), "ids": ids(*numbers)}
    name = write_tensors(folder, tensors, {"encoding": "test"})
    return RowFile.open(folder / f"{name}.safetensors")


class Source:
    """Shards of the rows 0 to 9 and 10 to 19, and a piece that is asked for last."""

    def __init__(self, folder: Path) -> None:
        self.sealed = [row_file(folder, *range(10)), row_file(folder, *range(10, 20))]
        self.late = [row_file(folder, 77)]
        self.calls = 0

    def shards(self) -> list[RowFile]:
        self.calls += 1
        return self.sealed

    def files(self) -> list[RowFile]:
        return [*self.sealed, *self.late]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("rows"))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def stored(numbers: list[int], source: Source) -> tuple[StoredRows, NDArray[Any]]:
    matrix = StoredRows(source, ids(*numbers), width=4, dtype="float32")
    return matrix, rows(*numbers)


some_rows = st.lists(st.sampled_from([*range(20), 77]), max_size=20)
spans = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: list(range(*ends)))


@given(
    numbers=st.one_of(some_rows, spans),
    start=st.integers(-3, 22),
    stop=st.integers(-3, 25),
    step=st.sampled_from([1, 2, 3, -1]),
)
def test_slices(shared: Source, numbers: list[int], start: int, stop: int, step: int) -> None:
    matrix, expected = stored(numbers, shared)
    np.testing.assert_array_equal(matrix[start:stop:step], expected[start:stop:step])
    np.testing.assert_array_equal(np.asarray(matrix), expected)
    assert matrix.shape == expected.shape


@given(numbers=some_rows.filter(bool), data=st.data())
def test_row_numbers_and_masks(shared: Source, numbers: list[int], data: st.DataObject) -> None:
    matrix, expected = stored(numbers, shared)
    positions = data.draw(st.lists(st.integers(-len(numbers), len(numbers) - 1), max_size=9))
    index = np.array(positions, dtype=int)
    mask = np.array([data.draw(st.booleans()) for _ in numbers])
    np.testing.assert_array_equal(matrix[index], expected[index])
    np.testing.assert_array_equal(matrix[mask], expected[mask])
    np.testing.assert_array_equal(
        matrix[int(index[0])] if positions else 0, expected[index[0]] if positions else 0
    )
    with pytest.raises(IndexError):
        matrix[np.array([len(numbers)])]


def test_rows_of_one_file_are_not_copied(source: Source) -> None:
    matrix, _ = stored(list(range(10)), source)
    for part in (matrix[2:7], np.asarray(matrix)):
        assert not part.flags.writeable  # as a mapped file is, and no copy
    assert matrix[[3, 2]].flags.writeable


def test_rows_in_the_order_of_files_are_located_without_sorting(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probekit.cache.rows.IdIndex.locate", None)
    for numbers in ([*range(20)], [*range(10, 20), *range(10)], [*range(10, 15)]):
        matrix, expected = stored(numbers, source)
        np.testing.assert_array_equal(np.asarray(matrix), expected)


def test_files_are_opened_at_the_first_reading(source: Source) -> None:
    matrix, _ = stored([3, 4], source)
    assert matrix.shape == (2, 4)
    assert source.calls == 0
    matrix[0]
    matrix[1]
    assert source.calls == 1


def test_missing_rows_are_counted(source: Source) -> None:
    matrix, _ = stored([1, 100, 101], source)
    with pytest.raises(CorruptError, match="2 of 3"):
        matrix[0]


def test_another_width_or_dtype_is_refused(source: Source) -> None:
    with pytest.raises(CorruptError, match="5 float32"):
        StoredRows(source, ids(1), width=5, dtype="float32")[0]
    with pytest.raises(CorruptError, match="4 float16"):
        StoredRows(source, ids(1), width=4, dtype="float16")[0]


def test_a_piece_that_became_a_shard_is_read_there(tmp_path: Path, source: Source) -> None:
    source.late = [row_file(tmp_path / "pieces", 30, 31)]
    matrix, expected = stored([31, 5], source)
    assert matrix._places is not None
    source.late[0].path.unlink()
    source.sealed.append(row_file(tmp_path, 31, 30))
    np.testing.assert_array_equal(np.asarray(matrix), expected)
