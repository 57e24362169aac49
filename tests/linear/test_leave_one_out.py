"""Rows and groups left out in closed form, against heads that were fitted without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifierCV, RidgeCV

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.linear import leave_one_out as module
from probekit.linear.leave_one_out import (
    RidgeSearch,
    left_out_errors,
    left_out_sample,
    search_ridge,
)
from probekit.linear.ridge import INTERCEPTS, Intercept, RidgePath
from probekit.linear.stats import SufficientStats
from tests.oracles import one_hot, random_rows, random_set, refitted_scores

RIDGES = np.array([1e-3, 0.1, 3.0])


def path_of(embeddings: EmbeddingSet, intercept: Intercept = "free") -> RidgePath:
    return RidgePath.of(SufficientStats.from_rows(embeddings), intercept)


def left_out_scores(*arguments: Any, **options: Any) -> np.ndarray:
    return left_out_sample(*arguments, **options)[1]


def targets_of(embeddings: EmbeddingSet) -> np.ndarray:
    return one_hot(embeddings.labels, len(embeddings.class_names))


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("count", [4, 9, 40])  # a root; fewer rows than columns; more
def test_every_row_left_out_is_a_refit(
    intercept: Intercept, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 40)
    embeddings = random_set(count, 10, 3, seed=2)
    path = path_of(embeddings, intercept)
    Y = targets_of(embeddings)
    errors = left_out_errors(path, embeddings, RIDGES)
    for position, ridge in enumerate(RIDGES):
        expected = refitted_scores(embeddings.rows, Y, ridge, np.arange(count), intercept=intercept)
        assert np.isclose(errors[position], np.square(expected - Y).mean(), rtol=1e-8)
        assert np.allclose(left_out_scores(path, embeddings, ridge), expected, rtol=1e-7, atol=1e-9)


@given(
    count=st.integers(4, 50),
    width=st.integers(1, 14),
    groups=st.integers(2, 9),
    intercept=st.sampled_from(INTERCEPTS),
    weighted=st.booleans(),
    seed=st.integers(0, 500),
)
def test_left_out_groups_are_refits(
    count: int, width: int, groups: int, intercept: Intercept, weighted: bool, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    embeddings = random_set(count, width, 3, seed=seed)
    weights = generator.uniform(0.2, 4, count) if weighted else None
    embeddings = replace(embeddings, weights=weights)
    members = generator.integers(0, groups, count)
    members[:2] = [0, 1]
    path = path_of(embeddings, intercept)
    Y = targets_of(embeddings)
    errors = left_out_errors(path, embeddings, RIDGES, groups=members)
    for position, ridge in enumerate(RIDGES):
        expected = refitted_scores(
            embeddings.rows, Y, ridge, members, intercept=intercept, weights=weights
        )
        scores = left_out_scores(path, embeddings, float(ridge), groups=members)
        assert np.allclose(scores, expected, rtol=1e-7, atol=1e-7)
        shares = np.ones(count) if weights is None else weights
        mean = float(shares @ np.square(expected - Y).sum(axis=1)) / (3 * shares.sum())
        assert errors[position] == pytest.approx(mean, rel=1e-7)


def test_folds_larger_than_the_width_are_refitted_from_sums() -> None:
    embeddings = random_set(200, 5, 4)
    folds = np.arange(200) % 5
    scores = left_out_scores(path_of(embeddings), embeddings, 0.05, groups=folds)
    expected = refitted_scores(embeddings.rows, targets_of(embeddings), 0.05, folds)
    assert np.allclose(scores, expected, rtol=1e-9, atol=1e-11)


def test_real_targets_are_left_out_alike() -> None:
    generator = np.random.default_rng(4)
    rows, _ = random_rows(60, 7, 2)
    targets = generator.normal(size=(60, 2)) + rows[:, :2]
    embeddings = EmbeddingSet.from_numpy(rows, targets)
    path = path_of(embeddings)
    expected = refitted_scores(rows, targets, 0.1, np.arange(60))
    assert np.allclose(left_out_scores(path, embeddings, 0.1), expected, rtol=1e-9)
    errors = left_out_errors(path, embeddings, np.array([0.1]))
    assert errors[0] == pytest.approx(np.square(expected - targets).mean(), rel=1e-9)
    alphas = path.grid() * 59  # the left-out heads have 59 rows
    model = RidgeCV(alphas).fit(rows.astype(float), targets)
    assert search_ridge(path, embeddings).value * 59 == pytest.approx(model.alpha_)


@pytest.mark.parametrize("classes", [2, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_that_of_ridge_classifier_cv(classes: int, seed: int) -> None:
    embeddings = random_set(300, 20, classes, seed=seed)
    path = path_of(embeddings)
    choice = search_ridge(path, embeddings)
    model = RidgeClassifierCV(299 * choice.ridges).fit(
        np.asarray(embeddings.rows, float), embeddings.labels
    )
    assert 299 * choice.value == pytest.approx(model.alpha_, rel=1e-12)
    assert 4 * choice.errors.min() == pytest.approx(-model.best_score_, rel=1e-6)
    assert not choice.at_grid_edge
    assert choice.method == "leave-one-out"


def test_copies_are_left_out_together() -> None:
    rows, labels = random_rows(30, 6, 3)
    copies = np.concatenate([np.arange(30), [4, 4, 9]])
    embeddings = EmbeddingSet.from_numpy(rows[copies], labels[copies])
    path = path_of(embeddings)
    Y = targets_of(embeddings)
    expected = refitted_scores(rows[copies], Y, 0.1, copies)
    assert np.allclose(left_out_scores(path, embeddings, 0.1), expected, rtol=1e-9, atol=1e-11)
    errors = left_out_errors(path, embeddings, np.array([0.1]))
    assert errors[0] == pytest.approx(np.square(expected - Y).mean(), rel=1e-9)


def test_a_sample_of_rows_has_exact_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = random_set(200, 6, 3)
    path = path_of(embeddings)
    scores = left_out_scores(path, embeddings, 0.1)
    monkeypatch.setattr(module, "SAMPLE_ROWS", 60)
    squares = np.square(scores - targets_of(embeddings)).mean(axis=1)
    error = left_out_errors(path, embeddings, np.array([0.1]))[0]
    assert error != pytest.approx(squares.mean())
    drawn = module._sample([np.array([i]) for i in range(200)])
    assert len(drawn) == 60
    assert error == pytest.approx(squares[np.concatenate(drawn)].mean())
    rows, sampled = left_out_sample(path, embeddings, 0.1)
    assert rows.tolist() == np.concatenate(drawn).tolist()
    np.testing.assert_allclose(sampled, scores[rows], rtol=1e-12)


def test_a_choice_at_the_edge_of_the_grid_says_so() -> None:
    embeddings = random_set(100, 8, 3)
    path = path_of(embeddings)
    for errors, at_edge in (([2, 1, 2], False), ([1, 2, 4], True), ([4, 2, 1], True)):
        choice = RidgeSearch.best("gcv", RIDGES, np.array(errors))
        assert (choice.value, choice.at_grid_edge) == (RIDGES[np.argmin(errors)], at_edge)
    manual = search_ridge(path, embeddings, 0.5)
    assert (manual.value, manual.method, manual.at_grid_edge) == (0.5, "manual", False)


@pytest.mark.parametrize("count", [9, 14])  # a root; sums of fewer rows than columns
def test_small_ridges_of_few_rows_are_exact_too(count: int) -> None:
    embeddings = random_set(count, 20, 3)
    path = path_of(embeddings)
    Y = targets_of(embeddings)
    errors = left_out_errors(path, embeddings, path.grid())
    for position in (0, 10, 44):
        expected = refitted_scores(embeddings.rows, Y, path.grid()[position], np.arange(count))
        assert errors[position] == pytest.approx(np.square(expected - Y).mean(), rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_gcv_chooses_the_ridge_of_leave_one_out_or_a_neighbor(seed: int) -> None:
    embeddings = random_set(400, 15, 4, seed=seed)
    path = path_of(embeddings)
    by_gcv = search_ridge(path, embeddings, "auto:gcv")
    by_rows = search_ridge(path, embeddings)
    assert by_gcv.method == "gcv"
    distance = np.searchsorted(path.grid(), by_gcv.value) - np.searchsorted(
        path.grid(), by_rows.value
    )
    assert abs(distance) <= 1


def test_a_row_that_alone_decides_its_score_is_named() -> None:
    rows, labels = random_rows(30, 4, 2)
    rows = np.hstack([rows, np.zeros((30, 1), np.float32)])
    rows[13, 4] = 1e5
    embeddings = EmbeddingSet.from_numpy(rows, labels)
    path = path_of(embeddings)
    for groups in (None, np.arange(30) // 2):
        with pytest.raises(InputError, match=r"Row 1[23].*1e-07"):
            left_out_errors(path, embeddings, np.array([1.0, 1e-7]), groups=groups)
    with pytest.raises(InputError, match="Row 13"):
        left_out_scores(path, embeddings, 1e-7)


def test_what_cannot_be_left_out_is_refused() -> None:
    embeddings = random_set(30, 4, 2)
    path = path_of(embeddings)
    with pytest.raises(InputError, match="found 0"):
        left_out_errors(path, embeddings, np.array([0.0, 1.0]))
    with pytest.raises(InputError, match="nan"):
        left_out_errors(path, embeddings, np.array([np.nan, 1.0]))
    with pytest.raises(InputError, match=r"30 rows.*\(29,\)"):
        left_out_scores(path, embeddings, 0.1, groups=np.arange(29))
    with pytest.raises(InputError, match="found 1"):
        left_out_scores(path, embeddings, 0.1, groups=np.zeros(30))
    alike = EmbeddingSet.from_numpy(np.full((20, 3), 0.3), np.arange(20) % 2)
    with pytest.raises(InputError, match="variance of 0"):
        search_ridge(path_of(alike), alike)
