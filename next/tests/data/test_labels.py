"""Labels of several splits under one list of classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.data.labels import LabelColumn, as_target_matrix, number_splits
from probekit.errors import InputError

labels = st.lists(st.sampled_from(["ant", "bee", "cat", "", None]), min_size=1, max_size=8)


@given(labels, labels)
def test_each_label_keeps_its_name_in_every_split(
    train: list[str | None], test: list[str | None]
) -> None:
    numbered = number_splits({"train": LabelColumn(train), "test": LabelColumn(test)}, source="x")
    names = [*numbered.class_names, None]
    for split, values in (("train", train), ("test", test)):
        assert [names[label] for label in numbered.labels[split]] == [v or None for v in values]
    assert list(numbered.class_names) == sorted({v for v in (*train, *test) if v})


def test_a_class_that_one_split_lacks_does_no_harm() -> None:
    columns = {"train": LabelColumn(["b", "c"]), "test": LabelColumn(["c", "a"])}
    numbered = number_splits(columns, source="x")
    assert numbered.class_names == ("a", "b", "c")
    assert numbered.labels["train"].tolist() == [1, 2]
    assert numbered.labels["test"].tolist() == [2, 0]


def test_numbers_keep_their_numbers() -> None:
    small = np.array([11, 255], np.uint8)[:1]
    assert number_splits({"": LabelColumn(small)}, source="x").labels[""].tolist() == [11]
    columns = {"a": LabelColumn(np.array([0, 2, -1])), "b": LabelColumn([11.0, None])}
    numbered = number_splits(columns, source="x")
    assert numbered.class_names == tuple(str(number) for number in range(12))
    assert numbered.labels["a"].tolist() == [0, 2, -1]
    assert numbered.labels["b"].tolist() == [11, -1]


def test_huge_or_negative_numbers_are_names() -> None:
    numbered = number_splits({"": LabelColumn([90210, 10115000, -7])}, source="x")
    assert numbered.class_names == ("-7", "90210", "10115000")
    assert numbered.labels[""].tolist() == [1, 2, 0]


def test_declared_classes_keep_their_order_and_are_united_by_name() -> None:
    columns = {
        "train": LabelColumn([0, 1], ("zebra", "ant")),
        "test": LabelColumn([1, 0], ("cow", "zebra")),
    }
    numbered = number_splits(columns, source="x")
    assert numbered.class_names == ("zebra", "ant", "cow")
    assert numbered.labels["test"].tolist() == [0, 2]
    named = number_splits({"": LabelColumn(["ant"], ("zebra", "ant"))}, source="x")
    assert named.labels[""].tolist() == [1]


def test_fractions_are_targets() -> None:
    columns = {"train": LabelColumn([0.5, None], name="age"), "test": LabelColumn([1, 2])}
    numbered = number_splits(columns, source="x")
    assert numbered.target_names == ("age",)
    assert np.array_equal(numbered.targets["train"], [[0.5], [np.nan]], equal_nan=True)
    assert numbered.targets["test"].tolist() == [[1], [2]]
    assert not numbered.class_names


@pytest.mark.parametrize(
    ("values", "names", "mentioned"),
    [
        (["a", 3], (), "3"),
        ([0, 5], ("x", "y"), "5"),
        (["z"], ("x", "y"), "z"),
        ([["a"]], (), "--target-column"),
    ],
)
def test_labels_that_cannot_be_are_refused(
    values: list[object], names: tuple[str, ...], mentioned: str
) -> None:
    with pytest.raises(InputError, match=mentioned):
        number_splits({"": LabelColumn(values, names)}, source="x")


def test_targets_may_have_gaps_but_no_texts() -> None:
    matrix = as_target_matrix({"a": [1, None], "b": [True, 0.5]}, source="x")
    assert np.array_equal(matrix, [[1, 1], [np.nan, 0.5]], equal_nan=True)
    with pytest.raises(InputError, match="tall"):
        as_target_matrix({"a": ["tall"]}, source="x")
