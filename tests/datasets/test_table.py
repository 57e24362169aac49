"""The laws of labels, clients, splits and rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.datasets.table import (
    FirstRows,
    Mapped,
    Table,
    choose_split,
    class_number,
    classify,
    client_names,
    picture,
    vector,
)
from probekit.errors import InputError, NotFoundError, SampleError


def _squares(row: int) -> Callable[[], Any]:
    return partial(pow, row, 2)


def _table(rows: int = 5) -> Table:
    return Table("squares", "array", _squares, np.arange(rows), names=[f"n{row}" for row in range(rows)])


@given(st.lists(st.none() | st.text(min_size=1, max_size=3), min_size=1))
def test_strings_are_numbered_in_sorted_order_and_can_be_read_back(values: list[str | None]) -> None:
    numbers, classes = classify(values, source="test")
    assert list(classes) == sorted(set(values) - {None})  # type: ignore[type-var]
    assert [classes[number] if number >= 0 else None for number in numbers] == values


@given(st.lists(st.integers(-1, 1000), min_size=1))
def test_class_numbers_stay_what_they_are_in_lists_floats_and_arrays(values: list[int]) -> None:
    for form in (
        values,
        [float(value) for value in values],
        np.asarray(values),
        np.asarray(values, dtype=float),
    ):
        numbers, classes = classify(form, source="test")
        assert (numbers.tolist(), str(numbers.dtype), classes) == (values, "int64", ())


@pytest.mark.parametrize("values", [[0, None, 1], [0.0, float("nan"), 1.0], ["a", None, "b"], ["a", "", "b"]])
def test_what_is_missing_is_unlabelled(values: list[Any]) -> None:
    assert classify(values, source="test")[0].tolist() == [0, -1, 1]


@pytest.mark.parametrize("form", [list, np.asarray])
def test_a_label_beyond_the_classes_names_its_row(form: Callable[[list[int]], Any]) -> None:
    with pytest.raises(InputError, match=r"test, row 2: .* between 0 and 1 .* found 2"):
        classify(form([0, 1, 2, -1]), ("a", "b"), source="test")
    with pytest.raises(InputError, match=r"row 1: .* found -2"):
        classify(form([0, -2]), source="test")


@pytest.mark.parametrize("value", [0.5, float("inf"), [1, 0], b"cat", 2**40])
def test_what_is_no_class_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"test, row 1: a label must"):
        classify([0, value], source="test")


def test_names_and_numbers_are_not_mixed() -> None:
    with pytest.raises(InputError, match=r"row 1: other labels are names, this one is 0"):
        classify(["cat", 0], source="test")


def test_a_name_that_is_no_class_answers_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'dgo' is none of the classes. Known and close: dog"):
        class_number("dgo", ("cat", "dog"), where="row 0")


def test_unsigned_labels_are_read() -> None:
    assert classify(np.array([3, 255], dtype=np.uint8), source="test")[0].tolist() == [3, 255]
    with pytest.raises(InputError, match="row 0"):
        classify(np.array([2**64 - 1], dtype=np.uint64), source="test")


def test_clients_are_text_and_all_or_none() -> None:
    assert client_names([3, "b", 4.0], source="test") == ("3", "b", "4")
    assert client_names([None, "", float("nan")], source="test") is None
    with pytest.raises(InputError, match="test, row 1: the client is missing"):
        client_names(["a", None], source="test")


def test_the_split_is_the_one_asked_for_the_only_one_or_train() -> None:
    assert choose_split("test", ["test", "train"], source="x") == "test"
    assert choose_split(None, ["odd"], source="x") == "odd"
    assert choose_split(None, ["test", "train"], source="x") == "train"
    with pytest.raises(NotFoundError, match=r"x has no split 'tset'. Known and close: test"):
        choose_split("tset", ["test", "train"], source="x")
    with pytest.raises(InputError, match="x has the splits a, b: choose one"):
        choose_split(None, ["a", "b"], source="x")


def test_rows_are_read_by_number_from_both_ends() -> None:
    table = _table()
    assert [sample.content() for sample in table] == [0, 1, 4, 9, 16]
    assert (table[-1].name, table[-1].label, table[-1].client) == ("n4", 4, None)
    for row in (5, -6):
        with pytest.raises(IndexError):
            table[row]


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="wanted 2 entries per column, found 1"):
        Table("x", "array", _squares, np.arange(2), clients=["a"])


@given(rows=st.integers(1, 8), limit=st.integers(1, 10))
def test_a_head_is_the_first_rows(rows: int, limit: int) -> None:
    head = FirstRows(_table(rows), limit)
    assert len(head) == min(rows, limit)
    assert [sample.name for sample in head] == [f"n{row}" for row in range(rows)][:limit]
    assert head[-1].name == f"n{min(rows, limit) - 1}"
    assert pickle.loads(pickle.dumps(head))[0].content() == 0


@pytest.mark.parametrize("limit", [0, -1])
def test_a_head_of_nothing_is_refused(limit: int) -> None:
    with pytest.raises(InputError, match=f"at least one row; found {limit}"):
        FirstRows(_table(), limit)


def test_a_mapped_array_travels_as_its_path(tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", np.arange(1_000_000))
    mapped = Mapped(partial(np.load, tmp_path / "large.npy", mmap_mode="r"))
    assert int(mapped[7]) == 7
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000
    assert int(pickle.loads(sent)[999_999]) == 999_999


def test_pixels_become_pictures() -> None:
    assert picture(np.zeros((2, 3), dtype=np.uint8)).mode == "L"
    assert picture(np.zeros((2, 3, 1), dtype=np.uint8)).mode == "L"
    assert picture(np.zeros((2, 3, 3), dtype=np.uint8)).size == (3, 2)


def test_a_row_of_numbers_must_be_finite() -> None:
    with pytest.raises(SampleError, match="A row must be finite; found inf in column 1"):
        vector(np.array([0.0, np.inf]))
