"""Differences of two heads against SciPy's tests, and their edges."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, ttest_1samp, ttest_rel

from probekit.errors import InputError
from probekit.evaluation.comparison import adjusted, compare, compare_rows, holm, mcnemar
from probekit.evaluation.intervals import Sampling, wilson
from probekit.evaluation.metrics import METRICS, Predictions

Hits = NDArray[np.bool_]


@pytest.fixture
def hits() -> tuple[Hits, Hits]:
    generator = np.random.default_rng(0)
    first = generator.random(300) < 0.8
    flipped = generator.random(300) < np.where(first, 0.05, 0.2)
    return first, first ^ flipped


def test_losses_are_compared_by_students_paired_test() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(size=50)
    second = first + 0.3 * generator.normal(size=50) - 0.1
    difference = compare_rows(first, second, metric="log_loss", sampling=Sampling(0.9))
    expected = ttest_rel(first, second)
    assert difference.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.9)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert (difference.metric, difference.count, difference.test) == ("log_loss", 50, "Student")


def test_groups_of_one_size_are_compared_by_their_means(hits: tuple[Hits, Hits]) -> None:
    groups = np.arange(300) % 20
    difference = compare_rows(*hits, sampling=Sampling(groups=groups))
    gaps = hits[0].astype(float) - hits[1]
    expected = ttest_1samp([gaps[groups == group].mean() for group in range(20)], 0)
    assert difference.value == pytest.approx(gaps.mean())
    assert difference.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert difference.method == "Student over 20 groups"


def test_hits_are_tested_by_mcnemar(hits: tuple[Hits, Hits]) -> None:
    first, second = hits
    gained, lost = np.sum(first & ~second), np.sum(~first & second)
    p_value = chi2.sf((gained - lost) ** 2 / (gained + lost), 1)
    difference = compare_rows(first, second)
    assert difference.p_value == pytest.approx(p_value)
    assert difference.test == "McNemar"
    assert difference.low < difference.value < difference.high
    doubled = compare_rows(first, second, sampling=Sampling(inflation=2.0))
    assert doubled.p_value == pytest.approx(mcnemar(first, second, inflation=2.0))
    assert doubled.p_value > p_value
    width = (difference.high - difference.low) * np.sqrt(2)
    assert doubled.high - doubled.low == pytest.approx(width)


def test_a_difference_that_was_not_shown_is_marked(hits: tuple[Hits, Hits]) -> None:
    first, second = hits
    same = compare_rows(first, second)
    assert not same.differs
    assert str(same).endswith("(no difference shown)")
    better = compare_rows(np.ones(300, bool), second)
    assert better.differs
    assert "no difference" not in str(better)
    assert str(better).startswith(f"+{better.value:.3f}")
    assert json.loads(json.dumps(better.to_dict()))["differs"] is True


def test_heads_that_agree_everywhere_may_differ_on_the_next_row(hits: tuple[Hits, Hits]) -> None:
    first, _ = hits
    reach = wilson(0.0, 300, 0.95)[1]
    equal = compare_rows(first, first)
    assert (equal.value, equal.p_value) == (0, 1)
    assert (equal.low, equal.high) == pytest.approx((-reach, reach))
    opposite = compare_rows(np.ones(300, bool), np.zeros(300, bool))
    assert (opposite.low, opposite.high) == pytest.approx((1 - reach, 1))
    assert opposite.differs
    grouped = compare_rows(first, first, sampling=Sampling(groups=np.arange(300) % 10))
    assert grouped.high == pytest.approx(wilson(0.0, 10, 0.95)[1])


@pytest.mark.parametrize("metric", [name for name in METRICS if "classes" in METRICS[name].tasks])
def test_every_metric_is_compared(metric: str) -> None:
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 8, 200)
    heads = []
    for signal in (2.0, 1.0):
        scores = generator.normal(size=(200, 8)) + signal * np.eye(8)[labels]
        powers = np.exp(scores)
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        heads.append(Predictions(scores, labels, "classes", probabilities))
    good, bad = heads
    difference = compare(good, bad, metric)
    values = [METRICS[metric].of(head).value for head in heads]
    assert difference.value == pytest.approx(values[0] - values[1])
    assert (difference.value > 0) == METRICS[metric].higher_is_better
    assert difference.differs
    assert difference.low < difference.value < difference.high
    other = compare(bad, good, metric)
    assert (other.low, other.high) == pytest.approx((-difference.high, -difference.low))
    assert not compare(good, good, metric).differs
    grouped = compare(good, bad, metric, sampling=Sampling(groups=np.arange(200) % 15))
    assert grouped.value == pytest.approx(difference.value)
    assert "15 groups" in grouped.method


def test_holm_rejects_step_by_step() -> None:
    """Adjusted values are the levels at which Holm's sequence of tests first rejects each."""
    p_values = np.random.default_rng(3).random(9) ** 3
    values = holm(p_values)
    for level in np.linspace(0.001, 0.999, 300):
        rejected = set()
        for step, number in enumerate(np.argsort(p_values)):
            if p_values[number] > level / (9 - step):
                break
            rejected.add(int(number))
        assert rejected == set(np.flatnonzero(values <= level))
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]).max() == 1
    assert len(holm([])) == 0


def test_a_family_is_adjusted(hits: tuple[Hits, Hits]) -> None:
    first, second = hits
    family = adjusted([compare_rows(first, second), compare_rows(np.ones(300, bool), second)])
    expected = holm([mcnemar(first, second), mcnemar(np.ones(300, bool), second)])
    assert [difference.p_value for difference in family] == expected.tolist()
    assert family[0].test == "McNemar, Holm"


def test_other_rows_are_refused(hits: tuple[Hits, Hits]) -> None:
    with pytest.raises(InputError, match="300"):
        compare_rows(hits[0], hits[1][1:])
    with pytest.raises(InputError, match="found 1"):
        compare_rows([True], [False])
    with pytest.raises(InputError, match="found 1"):
        compare_rows(*hits, sampling=Sampling(groups=np.zeros(300)))
    scores = np.eye(3)
    one = Predictions(scores, np.array([0, 1, 2]), "classes")
    other = Predictions(scores, np.array([0, 1, 1]), "classes")
    with pytest.raises(InputError, match="same rows"):
        compare(one, other)
    with pytest.raises(InputError, match=r"r2.*accuracy"):
        compare(one, one, "r2")
