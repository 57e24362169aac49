"""What noise costs, against sums and integrals of the distributions themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import logsumexp

from probekit.custody.accounting import DISCRETE, ReleaseNoise, delta_of, epsilon_of, rho_of
from probekit.errors import InputError, VerificationError


def discrete_delta(apart: int, scale: int, epsilon: float) -> float:
    """sup_T P[T] - e^epsilon Q[T] of two discrete Gaussians so many steps apart: the sum of all that is positive."""
    n = np.arange(-60 * scale - apart, 60 * scale + apart + 1)
    one = np.exp(-((n - apart) ** 2) / (2 * scale**2))
    other = np.exp(-(n**2) / (2 * scale**2))
    return float(np.maximum(one / one.sum() - math.exp(epsilon) * other / other.sum(), 0).sum())


def integrated_delta(rho: float, epsilon: float) -> float:
    """The same of two normal distributions of sigma 1 that are sqrt(2 rho) apart, by integration."""
    apart = math.sqrt(2 * rho)
    edge = apart / 2 + epsilon / apart  # where the ratio of densities is e^epsilon

    def difference(x: float) -> float:
        one, other = (math.exp(-((x - mean) ** 2) / 2) for mean in (apart, 0.0))
        return (one - math.exp(epsilon) * other) / math.sqrt(2 * math.pi)

    return float(quad(difference, edge, edge + 40, limit=500, epsabs=1e-18)[0])


def renyi(apart: int, scale: int, order: float) -> float:
    """The Renyi divergence of two discrete Gaussians, by summing."""
    far = int(12 * scale * order) + 12 * apart
    n = np.arange(-far, far + 1)
    one, other = (-((n - mean) ** 2) / (2 * scale**2) for mean in (apart, 0))
    total = logsumexp(other)
    return float((logsumexp(order * one + (1 - order) * other) - total) / (order - 1))


@pytest.mark.parametrize(("apart", "scale"), [(1, 1), (1, 3), (2, 3), (5, 4)])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_the_discrete_gaussian_satisfies_its_rho(apart: int, scale: int, order: float) -> None:
    rho = apart**2 / (2 * scale**2)
    assert renyi(apart, scale, order) <= order * rho * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize(("apart", "scale"), [(1, 1), (1, 4), (3, 4), (1, 40), (7, 40)])
def test_the_delta_covers_what_summing_the_distributions_gives(apart: int, scale: int, epsilon: float) -> None:
    assert discrete_delta(apart, scale, epsilon) <= delta_of(apart**2 / (2 * scale**2), epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-7, 1e-5])
def test_the_conversion_covers_the_integral_and_is_tight(epsilon: float, delta: float) -> None:
    """The sigma that it asks for is at most 12 % above the one at which the integral is delta itself."""
    rho = rho_of(epsilon, delta)
    assert integrated_delta(rho, epsilon) <= delta
    assert integrated_delta(rho * 1.12**2, epsilon) > delta


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 2.0])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
def test_delta_is_the_smallest_over_all_orders(rho: float, epsilon: float) -> None:
    """Against a search over orders of the formula as published."""

    def bound(order: float) -> float:
        exponent = (order - 1) * (order * rho - epsilon) + order * math.log(1 - 1 / order) - math.log(order - 1)
        return math.exp(min(exponent, 0.0))

    coarse = min((1 + 10 ** (k / 20) for k in range(-200, 200)), key=bound)
    least = min(bound(1 + (coarse - 1) * 10 ** (k / 4000)) for k in range(-400, 400))
    found = delta_of(rho, epsilon)
    assert found <= least * (1 + 1e-9)
    assert found == pytest.approx(least, rel=1e-4)


@given(st.floats(1e-3, 10), st.floats(-12, -1))
@settings(max_examples=60, deadline=None)
def test_budgets_and_costs_are_inverse_to_each_other(epsilon: float, log_delta: float) -> None:
    delta = 10.0**log_delta
    rho = rho_of(epsilon, delta)
    assert delta_of(rho, epsilon) <= delta < delta_of(rho * (1 + 1e-6), epsilon)
    assert epsilon_of(rho, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("sigma", [1e-12, 0.01, 1.0, math.nextafter(1.0, 0.0), math.pi, 1e9])
def test_sigma_is_a_whole_number_of_steps(sigma: float) -> None:
    noise = ReleaseNoise.of(sigma)
    assert sigma <= noise.sigma <= sigma * (1 + 2.0**-28)
    assert noise.scale * noise.grid == noise.sigma
    assert 2**29 <= noise.scale <= 2**30
    assert math.frexp(noise.grid)[0] == 0.5
    assert ReleaseNoise.of(noise.sigma) == noise
    assert ReleaseNoise.from_plain(noise.plain) == noise


@given(st.floats(1e-6, 1e3), st.integers(1, 10**7), st.floats(0, 0.9))
@settings(max_examples=60, deadline=None)
def test_the_largest_bound_is_just_covered(sigma: float, parameters: int, share: float) -> None:
    noise = ReleaseNoise.of(sigma, epsilon=1.0, delta=1e-5)
    spent = share * noise.budget
    largest = noise.largest_bound(parameters, spent=spent)
    assert spent + noise.cost(largest, parameters) <= noise.budget
    assert spent + noise.cost(largest * 1.001, parameters) > noise.budget
    assert noise.largest_bound(parameters, spent=noise.budget) == 0.0


def test_rounding_to_the_grid_is_paid_for() -> None:
    """Two heads a hair apart can be rounded a whole step apart in every parameter."""
    noise = ReleaseNoise.of(0.01)
    steps = np.full(10_000, 0.5)
    below, above = (np.rint(steps * one) for one in (1 - 1e-12, 1 + 1e-12))
    apart = float(np.linalg.norm(above - below)) * noise.grid
    assert apart**2 / (2 * noise.sigma**2) <= noise.cost(1e-12 * 50 * noise.grid, 10_000)
    assert apart**2 / (2 * noise.sigma**2) > (1e-12 / noise.sigma) ** 2


def test_what_is_no_mechanism_is_refused() -> None:
    plain = ReleaseNoise.of(0.01).plain
    assert plain["mechanism"] == DISCRETE
    wrong = ({"grid": 0.001}, {"sigma": 0.0}, {"sigma": "1"}, {"epsilon": -1}, {"mechanism": "Gaussian"}, {"more": 1})
    for change in wrong:
        with pytest.raises(VerificationError, match="Do not trust"):
            ReleaseNoise.from_plain({**plain, **change})
    for sigma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="sigma above 0"):
            ReleaseNoise.of(sigma)
    for epsilon, delta in ((0.0, 0.1), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)):
        with pytest.raises(InputError, match="budget needs"):
            ReleaseNoise.of(1.0, epsilon=epsilon, delta=delta)
