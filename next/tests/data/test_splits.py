"""Splits: spellings, choices, limits and notes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from probekit.data import DataOptions, read_dataset
from probekit.data.splits import choose_split, split_role
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
