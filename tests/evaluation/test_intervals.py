"""Intervals hold what they promise: coverage by simulation, and the edges."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.evaluation.bootstrap import Sums
from probekit.evaluation.intervals import (
    Estimate,
    Sampling,
    share,
    unbounded,
    wilson,
)


@pytest.mark.parametrize("value", [0.5, 0.8, 0.95])
def test_wilson_covers_by_exact_enumeration(value: float) -> None:
    from scipy.stats import binom

    hits = np.arange(201)
    intervals = np.array([wilson(count / 200, 200, 0.95) for count in hits])
    covered = (intervals[:, 0] <= value) & (value <= intervals[:, 1])
    assert 0.94 <= binom.pmf(hits, 200, value)[covered].sum() <= 0.97


def test_wilson_is_scipys() -> None:
    from scipy.stats import binomtest

    expected = binomtest(37, 50).proportion_ci(0.9, method="wilson")
    assert wilson(37 / 50, 50, 0.9) == pytest.approx((expected.low, expected.high))


def test_all_hits_have_an_interval_with_a_width() -> None:
    estimate = share(np.ones(40))
    assert estimate.high == 1.0
    assert estimate.low == pytest.approx(wilson(1.0, 40, 0.95)[0])
    grouped = share(np.ones(40), Sampling(groups=np.arange(40) // 4))
    assert grouped.low == pytest.approx(wilson(1.0, 10, 0.95)[0])


def _grouped_coverage(groups: int, icc: float, repetitions: int) -> tuple[float, float]:
    generator = np.random.default_rng(7)
    a, b = 0.8 * (1 - icc) / icc, 0.2 * (1 - icc) / icc
    covered = 0
    ignoring = 0
    for seed in range(repetitions):
        shares = generator.beta(a, b, groups)
        number = np.repeat(np.arange(groups), generator.poisson(15, groups) + 1)
        hits = generator.random(len(number)) < shares[number]
        estimate = share(hits, Sampling(groups=number, seed=seed))
        covered += estimate.low <= 0.8 <= estimate.high
        low, high = wilson(float(hits.mean()), len(hits), 0.95)
        ignoring += low <= 0.8 <= high
    return covered / repetitions, ignoring / repetitions


@pytest.mark.parametrize("groups", [3, 6, 10, 30])
def test_groups_are_covered_where_ignoring_them_is_not(groups: int) -> None:
    covered, ignoring = _grouped_coverage(groups, 0.3, 150)
    assert covered >= 0.9
    assert ignoring <= 0.75


def test_a_group_of_equal_rows_tells_as_much_as_a_row() -> None:
    hits = np.random.default_rng(0).random(200) < 0.7
    alike = share(np.repeat(hits, 5), Sampling(groups=np.repeat(np.arange(200), 5)))
    single = share(hits)
    assert alike.value == pytest.approx(single.value)
    assert (alike.low, alike.high) == pytest.approx((single.low, single.high), abs=0.01)


def test_an_inflated_variance_is_that_of_fewer_rows() -> None:
    hits = np.arange(100) < 70
    doubled = share(hits, Sampling(inflation=2.0))
    assert (doubled.low, doubled.high) == wilson(0.7, 50, 0.95)
    assert "variance x 2" in doubled.method
    groups = np.arange(100) % 25
    plain = share(hits, Sampling(groups=groups))
    wider = share(hits, Sampling(groups=groups, inflation=4.0))
    angle, low, wider_low = np.arcsin(np.sqrt([plain.value, plain.low, wider.low]))
    assert angle - wider_low == pytest.approx(2 * (angle - low))


def test_the_seed_decides_the_bootstrap() -> None:
    generator = np.random.default_rng(3)
    hits = generator.random(120) < 0.6
    groups = np.arange(120) // 6
    first = share(hits, Sampling(groups=groups, seed=1))
    assert first == share(hits, Sampling(groups=groups, seed=1))
    assert first.low != share(hits, Sampling(groups=groups, seed=2)).low


def test_what_does_not_vary_has_no_width() -> None:
    for value in (0.0, 0.3):
        estimate = unbounded(Sums.of_means(np.full(5, value)))
        assert estimate.low == estimate.high == pytest.approx(value)
        assert estimate.method == "no variation"


def test_an_estimate_prints_percent_or_decimals() -> None:
    assert str(Estimate(0.966, 0.9, 1, 0.95, 5, "", decimal=True)) == "0.966 [0.900, 1.000]"
    assert str(Estimate(0.5, 0.25, 0.75, 0.95, 5, "")) == "50.0% [25.0%, 75.0%]"
    assert "decimal" not in Estimate(0.5, 0.25, 0.75, 0.95, 5, "").to_dict()


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, float("nan")])
def test_a_confidence_outside_its_range_is_refused(confidence: float) -> None:
    with pytest.raises(InputError, match=r"--confidence") as error:
        Sampling(confidence)
    assert str(confidence) in str(error.value)


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError):
        share(np.zeros(0))
