"""Folds and units: balanced, whole, and the same for the same seed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, MismatchError
from probekit.extraction.sources import RowSplits
from probekit.linear.folds import FOLDS, draw_folds
from probekit.probing import probe
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import prepare_rows


@settings(deadline=None, max_examples=60)
@given(st.integers(10, 80), st.integers(1, 5), st.integers(0, 99))
def test_single_rows_are_spread_evenly(rows: int, classes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, rows)
    folds = draw_folds(np.arange(rows), labels, seed)
    for number in range(classes):
        sizes = np.bincount(folds[labels == number], minlength=FOLDS)
        assert sizes.max() - sizes.min() <= 1


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(0, 99))
def test_units_stay_whole_and_folds_are_even(units: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(units), generator.integers(1, 6, units))
    labels = (np.arange(units) % 3)[numbers]
    folds = draw_folds(numbers, labels, seed)
    assert all(len(np.unique(folds[numbers == unit])) == 1 for unit in range(units))
    assert len(np.unique(folds)) == min(FOLDS, units)
    for number in range(3):
        sizes = np.bincount(folds[labels == number], minlength=FOLDS)
        assert sizes.max() - sizes.min() <= 5  # the largest unit


def test_units_of_several_classes_are_spread_by_their_rarest() -> None:
    labels = np.zeros(100, np.int64)
    labels[:40:4] = 1  # in ten of 25 groups
    folds = draw_folds(np.arange(100) // 4, labels, 0)
    assert np.bincount(folds[labels == 1]).tolist() == [2] * FOLDS


def test_the_seed_decides_folds_and_a_single_unit_has_none() -> None:
    labels = np.zeros(30, np.int64)
    first = draw_folds(np.arange(30), labels, 1)
    assert np.array_equal(first, draw_folds(np.arange(30), labels, 1))
    assert not np.array_equal(first, draw_folds(np.arange(30), labels, 2))
    with pytest.raises(InputError, match="--test"):
        draw_folds(np.zeros(30, np.int64), labels, 1)


def test_units_join_groups_that_share_a_copy() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 3))
    vectors[4] = vectors[0]
    rows = EmbeddingSet.from_numpy(
        vectors, [0, 1, 0, 1, 0, 1], columns={"group": ["a", "a", "b", "b", "c", "d"]}
    )
    prepared = prepare_rows(RowSplits(rows), ProbeOptions())
    assert prepared.units.tolist() == [0, 0, 1, 1, 0, 2]
    assert prepared.train.columns["group"].tolist() == list("001102")  # for the ridge's choice


def test_one_group_needs_test_rows() -> None:
    rows = EmbeddingSet.from_numpy(np.eye(4), [0, 1, 0, 1], columns={"group": ["a"] * 4})
    with pytest.raises(ValueError, match="--test"):
        prepare_rows(RowSplits(rows), ProbeOptions())
    with_test = prepare_rows(RowSplits(rows, test=rows), ProbeOptions())
    assert with_test.folds is None
    assert any("1 groups are in both" in note for note in with_test.notes)


def test_a_class_of_one_row_is_counted_where_no_fold_can_predict_it() -> None:
    labels = ["a", "b"] * 15 + ["c"]
    vectors = np.random.default_rng(0).normal(size=(31, 4))
    vectors[:, 0] += 9 * np.array([label == "b" for label in labels])
    result = probe((vectors, labels), heads=["ridge", "logistic", "lda", "knn"], controls=False)
    assert not result.failed
    assert any("1 rows of 1 classes (c)" in note for note in result.notes)
    for cell in result.cells:
        assert cell.evaluation is not None
        assert cell.evaluation.per_class["c"].value == 0
        assert cell.evaluation.per_class["a"].value > 0.8
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.heads["logistic"].names == ("a", "b", "c")


def test_classes_that_no_fold_can_predict_are_refused() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(InputError, match="--test"):
        probe((vectors[:5], list("abcde")), controls=False)
    labels = np.arange(30) % 5
    with pytest.raises(InputError, match="single row, group"):
        probe((vectors, labels), groups=labels, controls=False)


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "a", "b"], ["a"] * 30 + ["b"]])
def test_folds_that_leave_a_single_class_are_refused(labels: list[str]) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(labels), 4))
    with pytest.raises(InputError, match=r"class '[ab]'.*--test"):
        probe((vectors, labels), controls=False)


def test_validation_rows_join_by_class_name_and_unused_classes_are_dropped() -> None:
    one = EmbeddingSet.from_numpy(
        np.ones((2, 2)), [1, 0], class_names=["b", "a", "no row"], columns={"key": ["1", "2"]}
    )
    two = EmbeddingSet.from_numpy(np.zeros((2, 2)), ["c", "b"], columns={"key": ["3", "4"]})
    train = prepare_rows(RowSplits(one, validation=two), ProbeOptions()).train
    assert train.labels is not None
    assert [train.class_names[label] for label in train.labels] == ["a", "b", "c", "b"]
    assert train.class_names == ("b", "a", "c")
    assert train.columns["key"].tolist() == ["1", "2", "3", "4"]


def test_test_rows_have_the_classes_of_training_rows_first() -> None:
    train = EmbeddingSet.from_numpy(np.eye(3), ["b", "d", "b"])
    test = EmbeddingSet.from_numpy(np.eye(3) + 1, ["c", "b", "a"])
    rows = prepare_rows(RowSplits(train, test=test), ProbeOptions())
    assert rows.train.class_names == ("b", "d")
    assert rows.evaluated.class_names == ("b", "d", "a", "c")
    assert rows.evaluated.labels is not None
    assert rows.evaluated.labels.tolist() == [3, 0, 2]
    assert (dict(rows.unknown_classes), rows.missing_classes) == ({"a": 1, "c": 1}, ("d",))


def test_targets_are_matched_by_name() -> None:
    one = EmbeddingSet.from_numpy(
        np.ones((1, 2)), targets=np.array([[1.5, 2.0]]), target_names=["x", "y"]
    )
    two = EmbeddingSet.from_numpy(
        np.zeros((1, 2)), targets=np.array([[2.0, 1.5]]), target_names=["y", "x"]
    )
    both = prepare_rows(RowSplits(one, validation=two), ProbeOptions()).train
    assert both.targets is not None
    assert both.targets.tolist() == [[1.5, 2.0], [1.5, 2.0]]
    labeled = EmbeddingSet.from_numpy(np.eye(2), ["a", "b"])
    with pytest.raises(MismatchError, match="x, y"):
        prepare_rows(RowSplits(one, test=labeled), ProbeOptions())
