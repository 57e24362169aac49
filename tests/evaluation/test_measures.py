"""Values, influences and draws of measures, against scikit-learn's metrics with row weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as theirs

from probekit.evaluation import measures
from probekit.evaluation.bootstrap import Sums, draw_counts
from probekit.evaluation.intervals import Ranking
from probekit.evaluation.measures import Measure

Array = NDArray[np.float64]
Weighted = Callable[[Array], float]
ROWS = 32
STEP = 1e-6


@dataclass(frozen=True)
class Case:
    """A measure of 32 rows, and scikit-learn's number under any weights of the rows."""

    measure: Measure
    weighted: Weighted


def weighted_correlation(x: Array, y: Array, weights: Array) -> float:
    covariance = np.cov(x, y, aweights=weights)
    return float(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]))


def cases() -> dict[str, Case]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, ROWS)
    predicted = np.where(generator.random(ROWS) < 0.6, labels, generator.integers(0, 5, ROWS))
    positive = generator.random((ROWS, 2)) < 0.4
    scores = np.round(positive + generator.normal(size=(ROWS, 2)), 1)
    x = generator.normal(size=(ROWS, 2))
    y = 3 * x + generator.normal(size=(ROWS, 2)) + 5
    names = range(5)

    def kappa(weights: Array, kind: str | None = None) -> float:
        return float(
            theirs.cohen_kappa_score(
                labels, predicted, labels=names, weights=kind, sample_weight=weights
            )
        )

    return {
        "shares": Case(
            measures.shares(predicted == labels),
            lambda w: theirs.accuracy_score(labels, predicted, sample_weight=w),
        ),
        "balanced accuracy": Case(
            measures.balanced_accuracy(predicted, labels),
            lambda w: theirs.recall_score(
                labels, predicted, labels=range(4), average="macro", sample_weight=w
            ),
        ),
        "macro F1": Case(
            measures.macro_f1(predicted, labels),
            lambda w: theirs.f1_score(labels, predicted, average="macro", sample_weight=w),
        ),
        "kappa": Case(measures.kappa(predicted, labels), kappa),
        "quadratic kappa": Case(
            measures.quadratic_kappa(predicted, labels), lambda w: kappa(w, "quadratic")
        ),
        "mean absolute error": Case(
            Sums.of_means(np.abs(x - y).mean(axis=1)),
            lambda w: theirs.mean_absolute_error(y, x, sample_weight=w),
        ),
        "pearson": Case(
            measures.pearson(x, y),
            lambda w: np.mean(
                [weighted_correlation(*pair, w) for pair in zip(x.T, y.T, strict=True)]
            ),
        ),
        "AUROC": Case(
            measures.auroc(scores, positive),
            lambda w: theirs.roc_auc_score(positive, scores, sample_weight=w),
        ),
        "average precision": Case(
            measures.average_precision(scores, positive),
            lambda w: theirs.average_precision_score(positive, scores, sample_weight=w),
        ),
    }


CASES = cases()


def derivatives(weighted: Weighted) -> Array:
    """Of the metric in each row's weight, by differences."""
    slopes = np.empty(ROWS)
    for row in range(ROWS):
        step = np.zeros(ROWS)
        step[row] = STEP
        slopes[row] = (weighted(1 + step) - weighted(1 - step)) / (2 * STEP)
    return slopes


@pytest.mark.parametrize("name", CASES)
def test_the_value_is_scikit_learns(name: str) -> None:
    case = CASES[name]
    assert case.measure.value == pytest.approx(case.weighted(np.ones(ROWS)), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_standard_error_is_that_of_the_derivatives(name: str) -> None:
    case = CASES[name]
    slopes = derivatives(case.weighted)
    expected = np.sqrt(np.square(slopes).sum() * ROWS / (ROWS - 1))
    if isinstance(case.measure, Sums):
        assert case.measure.units().error == pytest.approx(expected, rel=1e-6)
        groups = np.arange(ROWS) % 7
        sums = np.bincount(groups, weights=slopes)
        expected = np.sqrt(np.square(sums).sum() * 7 / 6)
        assert case.measure.units(groups).error == pytest.approx(expected, rel=1e-6)
    else:
        error = np.sqrt(np.square(case.measure.influence).sum())
        # DeLong divides by one row less of either kind, not of all
        assert error == pytest.approx(expected, rel=0.06 if name == "AUROC" else 1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name].measure, Sums)])
def test_draws_are_rows_with_counts_for_weights(name: str) -> None:
    case = CASES[name]
    assert isinstance(case.measure, Sums)
    groups = np.arange(ROWS) % 10
    units = case.measure.units(groups)
    drawn = np.random.default_rng(1).multinomial(10, np.full(10, 0.1), 5).astype(float) + 0.01
    values, errors = units.evaluate(drawn)
    for position, counts in enumerate(drawn):
        expected = case.weighted(counts[groups])
        assert values[position] == pytest.approx(expected, rel=1e-9)
    assert (errors > 0).all()


def test_many_and_few_units_are_drawn_alike() -> None:
    counts = np.array([5, 20, 75])
    few = np.concatenate(list(draw_counts(counts, 3, seed=0)))
    single = np.concatenate(list(draw_counts(counts // 5, 3, seed=0)))
    for drawn, expected in ((few, counts), (single, counts // 5)):
        assert drawn.shape == (2000, 3)
        assert (drawn.sum(axis=1) == expected.sum()).all()
        assert drawn.mean(axis=0) == pytest.approx(expected, rel=0.1)
        variance = expected * (1 - expected / expected.sum())
        assert drawn.var(axis=0) == pytest.approx(variance, rel=0.15)
    costly = list(draw_counts(counts, 10**7, seed=0))
    assert sum(map(len, costly)) == 200


def test_the_units_that_a_variance_comes_from() -> None:
    even = Sums.of_means(np.tile([0.0, 1.0], 25))
    assert even.units().effective == pytest.approx(50)
    outlier = np.zeros(1000)
    outlier[3] = 1.0
    assert Sums.of_means(outlier).units().effective == pytest.approx(1, rel=0.01)
    assert Sums.of_means(np.ones(9)).units().effective == 0


def test_differences_are_of_the_same_rows() -> None:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 4, ROWS)
    first, second = (np.where(generator.random(ROWS) < p, labels, 0) for p in (0.5, 0.7))
    difference = measures.macro_f1(first, labels).minus(measures.macro_f1(second, labels))

    def weighted(weights: Array) -> float:
        values = [
            theirs.f1_score(labels, part, average="macro", sample_weight=weights)
            for part in (first, second)
        ]
        return float(values[0] - values[1])

    assert difference.value == pytest.approx(weighted(np.ones(ROWS)))
    expected = np.sqrt(np.square(derivatives(weighted)).sum() * ROWS / (ROWS - 1))
    assert difference.units().error == pytest.approx(expected, rel=1e-6)


def test_the_difference_of_two_areas_has_delongs_variance() -> None:
    """By his covariance of the placements of every pair of rows."""
    generator = np.random.default_rng(4)
    positive = np.arange(60) < 25
    base = generator.normal(size=60) + positive
    scores = [base + 0.5 * generator.normal(size=60) for _ in range(2)]
    wins = [np.greater.outer(part[positive], part[~positive]).astype(float) for part in scores]
    areas = [part.mean() for part in wins]
    above = np.cov([part.mean(axis=1) for part in wins])
    below = np.cov([part.mean(axis=0) for part in wins])
    covariance = above / 25 + below / 35
    rankings = [measures.auroc(part[:, None], positive[:, None]) for part in scores]
    difference = rankings[0].minus(rankings[1])
    assert isinstance(difference, Ranking)
    assert difference.value == pytest.approx(areas[0] - areas[1])
    expected = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert np.square(difference.influence).sum() == pytest.approx(expected)
