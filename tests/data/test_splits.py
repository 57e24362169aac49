"""Splits: spellings, choices, limits, notes, and labels under one list of classes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.data import DataOptions, read_dataset
from probekit.data.splits import (
    LabelColumn,
    as_target_matrix,
    choose_split,
    number_splits,
    split_role,
)
from probekit.errors import InputError, NotFoundError

IMAGES = np.arange(6 * 2 * 2, dtype=np.uint8).reshape(6, 2, 2)


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("train", ["train", "Train", "TRAINING", "training_set", "train-data"]),
        ("validation", ["val", "Valid", "validation", "dev", "val_split"]),
        ("test", ["test", "Testing", "TEST", "test-set", "t10k"]),
        (None, ["cats", "protest", "latest", "trainer", "dataset", "1"]),
    ],
)
def test_spellings(role: str | None, names: list[str]) -> None:
    assert {split_role(name) for name in names} == {role}


def test_a_split_is_chosen_by_any_spelling() -> None:
    assert choose_split(["Train", "Val"], "validation") == "Val"
    assert choose_split(["Train", "Val"], None) == "Train"
    assert choose_split(["anything"], None) == "anything"
    with pytest.raises(NotFoundError, match="--split"):
        choose_split(["a", "b"], None)
    with pytest.raises(NotFoundError, match="tset"):
        choose_split(["train", "test"], "tset")


def _splits(**names: str) -> dict[str, Any]:
    return {name: (IMAGES, list(labels)) for name, labels in names.items()}


def test_roles_have_properties() -> None:
    splits = read_dataset(_splits(Testing="aabbcc", TRAIN="aabbaa", dev="bbbbbb"))
    assert list(splits.by_name) == ["TRAIN", "dev", "Testing"]
    assert splits.choose()[1] is splits.by_name["TRAIN"]
    assert splits.choose("validation")[1] is splits.by_name["dev"]
    assert splits.choose("test")[1] is splits.by_name["Testing"]
    assert splits.choose()[0] == "TRAIN"
    assert {dataset.class_names for dataset in splits.by_name.values()} == {("a", "b", "c")}
    assert any("TRAIN (6 rows)" in note for note in splits.notes)


def test_the_only_split_is_for_training_and_noted() -> None:
    splits = read_dataset(_splits(test="aabbcc"))
    assert splits.choose()[1] is splits.by_name["test"]
    assert any("test" in note for note in splits.notes)
    assert read_dataset(_splits(train="aabbcc")).notes == ()


def test_two_splits_of_one_role_are_ambiguous() -> None:
    splits = read_dataset(_splits(train="aabbcc", val="aabbcc", dev="aabbcc"))
    with pytest.raises(NotFoundError, match="--split"):
        splits.choose("validation")


def test_a_chosen_split_is_the_only_one() -> None:
    splits = read_dataset(_splits(train="aabbcc", test="aabbcd"), DataOptions(split="testing"))
    assert list(splits.by_name) == ["test"]
    assert splits.notes == ()
    assert splits.choose()[1].class_names == ("a", "b", "c", "d")
    with pytest.raises(NotFoundError, match="--split"):
        read_dataset((IMAGES, list("aabbcc")), DataOptions(split="test"))


def test_a_limit_takes_the_first_rows_and_says_which_classes_are_missing() -> None:
    splits = read_dataset((IMAGES, list("aabbcc")), DataOptions(limit=3))
    assert [splits.choose()[1][i].label for i in range(3)] == [0, 0, 1]
    assert (len(splits.choose()[1]), splits.choose()[1].class_names) == (3, ("a", "b", "c"))
    assert any("2 of 3 classes" in note for note in splits.notes)
    assert read_dataset((IMAGES, list("abcabc")), DataOptions(limit=3)).notes == ()


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"window": (3, 1)}, {"image_column": "a", "text_column": "b"}]
)
def test_options_are_checked_once(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        DataOptions(**options)


def test_rows_can_be_iterated_and_sent_to_another_process() -> None:
    dataset: Any = read_dataset((IMAGES, list("aabbcc"))).choose()[1]
    with pytest.raises(IndexError):
        dataset[6]
    copied = pickle.loads(pickle.dumps(dataset))
    assert [sample.label for sample in copied] == [0, 0, 1, 1, 2, 2]
    assert copied[-1].content().tobytes() == IMAGES[-1].tobytes()


LABELS = st.lists(st.sampled_from(["ant", "bee", "cat", "", None]), min_size=1, max_size=8)


@given(LABELS, LABELS)
def test_each_label_keeps_its_name_in_every_split(
    train: list[str | None], test: list[str | None]
) -> None:
    columns = {"train": LabelColumn(train), "test": LabelColumn(test)}
    numbers, class_names = number_splits(columns, source="x")
    names = [*class_names, None]
    for split, values in (("train", train), ("test", test)):
        assert [names[label] for label in numbers[split]] == [v or None for v in values]
    assert list(class_names) == sorted({v for v in (*train, *test) if v})


def test_a_class_that_one_split_lacks_does_no_harm() -> None:
    columns = {"train": LabelColumn(["b", "c"]), "test": LabelColumn(["c", "a"])}
    numbers, names = number_splits(columns, source="x")
    assert names == ("a", "b", "c")
    assert numbers["train"].tolist() == [1, 2]
    assert numbers["test"].tolist() == [2, 0]


@pytest.mark.parametrize("values", [["b", "a"], [1, 0]])
def test_a_split_may_have_no_labels(values: list[object]) -> None:
    columns = {"train": LabelColumn(values), "test": LabelColumn([None, ""])}
    numbers, _ = number_splits(columns, source="x")
    assert numbers["train"].tolist() == [1, 0]
    assert numbers["test"].tolist() == [-1, -1]


def test_numbers_keep_their_numbers() -> None:
    small = np.array([11, 255], np.uint8)[:1]
    assert number_splits({"": LabelColumn(small)}, source="x")[0][""].tolist() == [11]
    columns = {"a": LabelColumn(np.array([0, 2, -1])), "b": LabelColumn([11.0, None])}
    numbers, names = number_splits(columns, source="x")
    assert names == tuple(str(number) for number in range(12))
    assert numbers["a"].tolist() == [0, 2, -1]
    assert numbers["b"].tolist() == [11, -1]


def test_huge_or_negative_numbers_are_names() -> None:
    numbers, names = number_splits({"": LabelColumn([90210, 10115000, -7])}, source="x")
    assert names == ("-7", "90210", "10115000")
    assert numbers[""].tolist() == [1, 2, 0]


def test_declared_classes_keep_their_order_and_are_united_by_name() -> None:
    columns = {
        "train": LabelColumn([0, 1], ("zebra", "ant")),
        "test": LabelColumn([1, 0], ("cow", "zebra")),
    }
    numbers, names = number_splits(columns, source="x")
    assert names == ("zebra", "ant", "cow")
    assert numbers["test"].tolist() == [0, 2]
    numbers, _ = number_splits({"": LabelColumn(["ant"], ("zebra", "ant"))}, source="x")
    assert numbers[""].tolist() == [1]


def test_fractions_are_targets() -> None:
    columns = {"train": LabelColumn([0.5, None], name="age"), "test": LabelColumn([1, 2])}
    numbers, names = number_splits(columns, source="x")
    assert names == ("age",)
    assert np.array_equal(numbers["train"], [[0.5], [np.nan]], equal_nan=True)
    assert numbers["test"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("values", "class_names", "mentioned"),
    [
        (["a", 3], (), "3"),
        ([0, 5], ("x", "y"), "5"),
        (["z"], ("x", "y"), "z"),
        ([["a"]], (), "--target-column"),
        (["a", 3], (), "--label-column"),
    ],
)
def test_labels_that_cannot_be_are_refused(
    values: list[object], class_names: tuple[str, ...], mentioned: str
) -> None:
    with pytest.raises(InputError, match=mentioned):
        number_splits({"": LabelColumn(values, class_names)}, source="x")


def test_targets_may_have_gaps_but_no_texts() -> None:
    matrix = as_target_matrix({"a": [1, None], "b": [True, 0.5]}, source="x")
    assert np.array_equal(matrix, [[1, 1], [np.nan, 0.5]], equal_nan=True)
    with pytest.raises(InputError, match="tall"):
        as_target_matrix({"a": ["tall"]}, source="x")
