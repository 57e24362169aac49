"""LDA and the nearest mean against scikit-learn, and left-out rows against refits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.estimators import LDAProbe, NearestMeanProbe, fit_lda, fit_nearest_mean
from probekit.linear import lda
from probekit.linear.lda import LdaPath, left_out, search_shrinkage
from probekit.linear.stats import SufficientStats, sum_stats
from tests.oracles import random_rows, random_set, with_ones

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def path_of(embeddings: EmbeddingSet) -> LdaPath:
    return LdaPath.from_rows(embeddings)


def scores_of(path: LdaPath, rows: NDArray[np.floating], shrinkage: float | None) -> Array:
    return with_ones(rows) @ path.params(shrinkage)


def less_the_first(scores: Array) -> Array:
    """Scores say which class is better, and by how much; what all classes share is free."""
    return scores - scores[:, :1]


def lda_scores(
    train: Array, labels: Labels, rows: Array, shrinkage: float | None, weights: Array | None = None
) -> Array:
    """By the definition, a class at a time; None: minus half the squared distance to each mean."""
    weights = np.ones(len(train)) if weights is None else weights
    d = train.shape[1]
    classes = range(labels.max() + 1)
    means = [np.average(train[labels == c], axis=0, weights=weights[labels == c]) for c in classes]
    if shrinkage is None:
        return np.stack([-np.square(rows - mean).sum(axis=1) / 2 for mean in means], axis=1)
    offsets = train - np.array(means)[labels]
    covariance = (offsets.T * weights) @ offsets / weights.sum()
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / d * np.eye(d)
    columns = []
    for number, mean in enumerate(means):
        prior = np.log(weights[labels == number].sum() / weights.sum())
        differences = rows - mean
        solved = np.linalg.solve(shrunk, differences.T).T
        columns.append(prior - (differences * solved).sum(axis=1) / 2)
    return np.stack(columns, axis=1)


def assert_same(scores: Array, expected: Array, tolerance: float = 1e-7) -> None:
    expected = less_the_first(expected)
    assert np.abs(less_the_first(scores) - expected).max() < tolerance * (
        1 + np.abs(expected).max()
    )


@given(
    count=st.integers(12, 60),
    width=st.integers(1, 90),
    shrinkage=st.sampled_from([1e-3, 0.1, 0.9, 1.0]),
    seed=st.integers(0, 500),
)
def test_it_is_that_of_scikit_learn(count: int, width: int, shrinkage: float, seed: int) -> None:
    rows, _ = random_rows(count, width, 3, seed=seed)
    labels = np.arange(count) % 3
    embeddings = EmbeddingSet.from_numpy(rows, labels)
    X = np.asarray(rows, float)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, labels)
    assert_same(scores_of(path_of(embeddings), X, shrinkage), theirs.decision_function(X), 1e-6)
    centroid = NearestCentroid().fit(X, labels)
    head = fit_nearest_mean(embeddings)
    distances = lda_scores(X, labels, X, None)
    clear = np.diff(np.sort(distances, axis=1)[:, -2:])[:, 0] > 1e-9
    assert (head.predict(X) == centroid.predict(X))[clear].all()
    assert_same(head.decision(X), distances)


def test_without_shrinkage_it_is_that_of_scikit_learn() -> None:
    embeddings = random_set(200, 7, 4)
    X = np.asarray(embeddings.rows, float)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(X, embeddings.labels)
    assert_same(scores_of(path_of(embeddings), X, 0.0), theirs.decision_function(X))
    probe = LDAProbe(0.2).fit(X, embeddings.labels)
    shrunk = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2).fit(X, embeddings.labels)
    assert (probe.predict(X) == shrunk.predict(X)).all()
    two = embeddings.labels < 2
    probe = LDAProbe(0.2).fit(X[two], embeddings.labels[two])
    shrunk = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2)
    shrunk.fit(X[two], embeddings.labels[two])
    assert np.allclose(probe.coef_, shrunk.coef_)
    assert np.allclose(probe.intercept_, shrunk.intercept_)


@pytest.mark.parametrize("width", [6, 100])  # sums; a root
def test_weights_are_copies_and_sums_add_up(width: int) -> None:
    embeddings = random_set(24, width, 3, seed=1)
    weights = np.random.default_rng(0).integers(1, 4, 24)
    weighted = replace(embeddings, weights=weights.astype(float))
    copied = embeddings.take(np.repeat(np.arange(24), weights))
    X = np.asarray(embeddings.rows, float)
    expected = lda_scores(X, embeddings.labels, X, 0.3, weights)
    parts = [weighted.take(rows) for rows in (np.arange(10), np.arange(10, 24))]
    added = sum_stats([SufficientStats.from_rows(part) for part in parts])
    for path in (path_of(weighted), path_of(copied), LdaPath.of(added)):
        assert_same(scores_of(path, X, 0.3), expected)
    searches = [search_shrinkage(path_of(part), part) for part in (weighted, copied)]
    assert np.allclose(searches[0].accuracies, searches[1].accuracies)
    assert searches[0].value == searches[1].value
    heads = [fit_lda(part, shrinkage=0.3)[0] for part in (weighted, copied)]
    assert heads[0].temperature == pytest.approx(heads[1].temperature, rel=1e-6)


@given(
    count=st.integers(9, 40),
    width=st.integers(1, 60),
    shrinkage=st.sampled_from([None, 1e-3, 0.3, 1.0]),
    weighted=st.booleans(),
    seed=st.integers(0, 500),
)
def test_a_left_out_row_has_the_scores_of_a_refit(
    count: int, width: int, shrinkage: float | None, weighted: bool, seed: int
) -> None:
    rows, _ = random_rows(count, width, 3, seed=seed)
    labels = np.arange(count) % 3
    X = np.asarray(rows, float)
    weights = np.random.default_rng(seed).uniform(0.2, 3, count) if weighted else np.ones(count)
    embeddings = replace(EmbeddingSet.from_numpy(rows, labels), weights=weights)
    (part,) = left_out(path_of(embeddings), embeddings, [shrinkage])
    assert np.array_equal(part.rows, np.arange(count))
    assert np.allclose(part.weights, weights)
    for row in range(count):
        others = np.arange(count) != row
        expected = lda_scores(X[others], labels[others], X[[row]], shrinkage, weights[others])
        assert_same(part.scores[[row]], expected, 1e-6)


def test_copies_are_left_out_together() -> None:
    embeddings = random_set(30, 5, 3, seed=4)
    copied = embeddings.take(np.r_[np.arange(30), 3, 3, 7])
    (part,) = left_out(path_of(copied), copied, [0.2])
    X = np.asarray(copied.rows, float)
    others = ~np.isin(np.arange(33), [3, 30, 31])
    expected = lda_scores(X[others], copied.labels[others], X[[3]], 0.2)
    assert part.weights[3] == 3
    assert_same(part.scores[[3]], expected)


def test_groups_are_left_out_together() -> None:
    embeddings = random_set(120, 5, 3, seed=4, signal=0.3)
    groups = np.random.default_rng(0).integers(0, 20, 120)
    X = np.asarray(embeddings.rows, float)
    path = path_of(embeddings)
    parts = list(left_out(path, embeddings, [0.2], groups=groups))
    assert len(parts) == 5
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(120))
    for part in parts:
        others = ~np.isin(groups, groups[part.rows])
        assert others.sum() == 120 - len(part.rows)
        expected = lda_scores(X[others], embeddings.labels[others], X[part.rows], 0.2)
        assert_same(part.scores, expected)
    assert search_shrinkage(path, embeddings, groups=groups).method == "leave-groups-out"
    with pytest.raises(InputError, match="found 1"):
        search_shrinkage(path, embeddings, groups=np.zeros(120))
    with pytest.raises(InputError, match="120 rows"):
        search_shrinkage(path, embeddings, groups=groups[1:])


def test_the_most_accurate_shrinkage_is_chosen() -> None:
    embeddings = random_set(60, 25, 3, seed=2, signal=0.4)
    X = np.asarray(embeddings.rows, float)
    labels = embeddings.labels
    choice = search_shrinkage(path_of(embeddings), embeddings)
    hits = np.zeros(len(choice.shrinkages))
    losses = np.zeros(len(choice.shrinkages))
    for position, shrinkage in enumerate(choice.shrinkages):
        for row in range(60):
            others = np.arange(60) != row
            scores = lda_scores(X[others], labels[others], X[[row]], shrinkage)[0]
            hits[position] += scores.argmax() == labels[row]
            losses[position] += np.log(np.exp(scores - scores[labels[row]]).sum())
    assert np.allclose(choice.accuracies, hits / 60)
    best = np.flatnonzero(hits == hits.max())
    assert choice.value == choice.shrinkages[best[losses[best].argmin()]]
    assert len(best) < len(hits)
    assert choice.method == "leave-one-out"
    head, _ = fit_lda(embeddings)
    assert head.fit == {"shrinkage": choice.value, "shrinkage_choice": "leave-one-out"}


def test_many_rows_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = random_set(300, 5, 3, signal=0.3)
    groups = np.arange(300) % 40
    monkeypatch.setattr(lda, "SAMPLE_ROWS", 100)
    monkeypatch.setattr(lda, "BLOCK_ELEMENTS", 64)
    path = path_of(embeddings)
    for chosen in (None, groups):
        parts = list(left_out(path, embeddings, [0.1, None], groups=chosen))
        assert sum(len(part.rows) for part in parts) == 200
    choice = search_shrinkage(path, embeddings)
    assert choice.accuracies.max() == pytest.approx(0.7, abs=0.25)


def test_one_row_a_class_is_the_nearest_mean() -> None:
    embeddings = random_set(4, 50, 4, seed=1)
    tests = np.asarray(random_set(40, 50, 4, seed=1).rows, float)
    head, choice = fit_lda(embeddings)
    assert choice.method == "nearest mean"
    assert head.temperature is None
    nearest = np.linalg.norm(tests[:, None] - np.asarray(embeddings.rows)[None], axis=2)
    assert (head.predict(tests) == nearest.argmin(axis=1)).all()
    assert np.allclose(head.params, fit_nearest_mean(embeddings).params)
    assert np.allclose(head.params, fit_lda(embeddings, shrinkage=0.5)[0].params)


def test_only_rows_with_others_of_their_class_are_left_out() -> None:
    embeddings = random_set(30, 4, 3, seed=3)
    labels = np.where(np.arange(30) < 29, np.arange(30) % 2, 2)  # one row of the last class
    embeddings = replace(embeddings, labels=labels)
    (part,) = left_out(path_of(embeddings), embeddings, [0.5])
    assert len(part.rows) == 29
    two = replace(embeddings.take(np.arange(4)), labels=np.array([0, 0, 1, 2]))
    assert not list(left_out(path_of(two), two, [0.5]))  # without either row no scatter is there
    assert fit_lda(two)[1].method == "nearest mean"


@pytest.mark.parametrize("shrinkage", [None, 0.1, 1.0])
def test_a_class_without_rows_is_never_predicted(shrinkage: float | None) -> None:
    embeddings = random_set(60, 4, 3, seed=3)
    labels = np.where(embeddings.labels == 1, 0, embeddings.labels)
    absent = replace(embeddings, labels=labels)
    path = path_of(absent)
    far = 1e4 * np.random.default_rng(0).normal(size=(500, 4))
    assert 1 not in scores_of(path, far, shrinkage).argmax(axis=1)
    (part,) = left_out(path, absent, [shrinkage])
    assert 1 not in part.scores.argmax(axis=1)
    present = replace(embeddings, labels=(labels == 2).astype(int), class_names=("a", "b"))
    expected = scores_of(path_of(present), far, shrinkage)
    assert_same(scores_of(path, far, shrinkage)[:, [0, 2]], expected)


def test_probabilities_are_calibrated_by_rows_left_out() -> None:
    embeddings = random_set(1200, 40, 4, seed=6, signal=0.2)
    train, test = embeddings.take(np.arange(200)), embeddings.take(np.arange(200, 1200))
    for head in (fit_lda(train, shrinkage=0.05)[0], fit_nearest_mean(train)):
        scores = head.decision(test)

        def loss(temperature: float, scores: Array = scores) -> float:
            powers = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
            shares = powers / powers.sum(axis=1, keepdims=True)
            return float(-np.log(shares[np.arange(1000), test.labels]).mean())

        assert head.temperature is not None
        assert loss(head.temperature) < min(loss(head.temperature * f) for f in (0.5, 2.0))


def test_what_cannot_be_fitted_is_refused() -> None:
    embeddings = random_set(40, 6, 3)
    for shrinkage in (-0.1, 1.5, np.nan, "much", True):
        with pytest.raises(InputError, match=rf"shrinkage.*{shrinkage}"):
            fit_lda(embeddings, shrinkage=shrinkage)
    with pytest.raises(InputError, match=r"6 dimensions.*rank 3"):
        fit_lda(embeddings.take(np.arange(6)), shrinkage=0.0)
    targets = EmbeddingSet.from_numpy(np.eye(3), targets=[0.5, 1.5, 2.5])
    for fit in (fit_lda, fit_nearest_mean):
        with pytest.raises(InputError, match="targets"):
            fit(targets)


def test_a_row_that_alone_varies_in_a_direction_is_not_left_out_without_shrinkage() -> None:
    rows = np.hstack([np.asarray(random_set(30, 4, 3).rows, float), np.zeros((30, 1))])
    rows[13, 4] = 1e3
    embeddings = EmbeddingSet.from_numpy(rows, np.arange(30) % 3)
    path = path_of(embeddings)
    without, shrunk = left_out(path, embeddings, [0.0, 0.1])
    assert set(range(30)) - set(without.rows) == {13}
    assert len(shrunk.rows) == 30
    head, _ = fit_lda(embeddings, shrinkage=0.0)
    assert head.temperature is not None


def test_normalized_rows_are_those_of_norm_one() -> None:
    embeddings = random_set(50, 6, 3)
    X = np.asarray(embeddings.rows, float)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    for probe in (LDAProbe(0.2, normalize="l2"), NearestMeanProbe(normalize="l2")):
        shrinkage = 0.2 if isinstance(probe, LDAProbe) else None
        probe.fit(X, embeddings.labels)
        assert_same(
            probe.decision_function(X), lda_scores(unit, embeddings.labels, unit, shrinkage)
        )
