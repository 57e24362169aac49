"""Folds and units: balanced, whole, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.embeddings import EmbeddingSet
from probekit.extraction.sources import RowSplits
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import concatenate, draw_folds, prepare_rows


@settings(deadline=None, max_examples=60)
@given(st.integers(10, 80), st.integers(1, 5), st.integers(2, 6), st.integers(0, 99))
def test_single_rows_are_spread_evenly(rows: int, classes: int, count: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, rows)
    folds = draw_folds(np.arange(rows), labels, count, seed)
    assert folds is not None
    for number in range(classes):
        sizes = np.bincount(folds[labels == number], minlength=count)
        assert sizes.max() - sizes.min() <= 1


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 99))
def test_units_stay_whole_and_no_fold_is_empty(units: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(units), generator.integers(1, 6, units))
    labels = generator.integers(0, 3, len(numbers))
    folds = draw_folds(numbers, labels, count, seed)
    assert folds is not None
    assert all(len(np.unique(folds[numbers == unit])) == 1 for unit in range(units))
    assert len(np.unique(folds)) == min(count, units)


def test_the_seed_decides_folds_and_a_single_unit_has_none() -> None:
    labels = np.zeros(30, np.int64)
    first = draw_folds(np.arange(30), labels, 5, 1)
    assert np.array_equal(first, draw_folds(np.arange(30), labels, 5, 1))
    assert not np.array_equal(first, draw_folds(np.arange(30), labels, 5, 2))
    assert draw_folds(np.zeros(30, np.int64), labels, 5, 1) is None


def test_units_join_groups_that_share_a_copy() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 3))
    vectors[4] = vectors[0]
    rows = EmbeddingSet.from_numpy(
        vectors, [0, 1, 0, 1, 0, 1], columns={"group": ["a", "a", "b", "b", "c", "d"]}
    )
    prepared = prepare_rows(RowSplits(rows), ProbeOptions())
    assert prepared.units.tolist() == [0, 0, 1, 1, 0, 2]


def test_one_group_needs_test_rows() -> None:
    rows = EmbeddingSet.from_numpy(np.eye(4), [0, 1, 0, 1], columns={"group": ["a"] * 4})
    with pytest.raises(ValueError, match="--test"):
        prepare_rows(RowSplits(rows), ProbeOptions())
    with_test = prepare_rows(RowSplits(rows, test=rows), ProbeOptions())
    assert with_test.folds is None
    assert any("1 groups are in both" in note for note in with_test.notes)


def test_sets_are_concatenated_by_class_name() -> None:
    one = EmbeddingSet.from_numpy(np.ones((2, 2)), ["b", "a"], columns={"key": ["1", "2"]})
    two = EmbeddingSet.from_numpy(np.zeros((2, 2)), ["c", "b"], columns={"key": ["3", "4"]})
    both = concatenate([one, two])
    assert both.labels is not None
    assert [both.class_names[label] for label in both.labels] == ["b", "a", "c", "b"]
    assert both.columns["key"].tolist() == ["1", "2", "3", "4"]


def test_targets_are_matched_by_name() -> None:
    one = EmbeddingSet.from_numpy(
        np.ones((1, 2)), targets=np.array([[1.5, 2.0]]), target_names=["x", "y"]
    )
    two = EmbeddingSet.from_numpy(
        np.ones((1, 2)), targets=np.array([[2.0, 1.5]]), target_names=["y", "x"]
    )
    both = concatenate([one, two])
    assert both.targets is not None
    assert both.targets.tolist() == [[1.5, 2.0], [1.5, 2.0]]
