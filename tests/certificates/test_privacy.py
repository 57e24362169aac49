"""(epsilon, delta) against integration, the classic formula, and what the noise is for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad

from probekit.certificates.bounds import quadratic, residual
from probekit.certificates.certificate import Certificate
from probekit.certificates.certify import certify
from probekit.certificates.privacy import (
    CAVEATS,
    analytic_sigma,
    check_budget,
    gaussian_delta,
    largest_bound,
    largest_residual,
    release,
    removal_budget,
)
from probekit.certificates.verdicts import FALSE, PROVEN
from probekit.certificates.verify import Evidence, verify
from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.objective import draw_objective
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import canonical
from tests.oracles import columns, one_hot, relative
from tests.unlearning.conftest import make_run


def integrated_delta(bound: float, sigma: float, epsilon: float) -> float:
    """sup_T P[T] - e^epsilon Q[T] = integral of the positive part of the densities' difference."""

    def density(x: float, mean: float) -> float:
        return math.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    edge = bound / 2 + epsilon * sigma**2 / bound  # where the densities' ratio is e^epsilon
    top = max(edge, bound) + 40 * sigma
    return float(
        quad(lambda x: density(x, bound) - math.exp(epsilon) * density(x, 0.0), edge, top, limit=500, epsabs=1e-15)[0]
    )


@pytest.mark.parametrize("bound", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
def test_delta_is_the_integral(bound: float, sigma: float, epsilon: float) -> None:
    found = gaussian_delta(bound, sigma=sigma, epsilon=epsilon)
    assert found == pytest.approx(integrated_delta(bound, sigma, epsilon), rel=1e-6, abs=1e-13)


@given(st.floats(1e-3, 1.0), st.floats(-12, -1), st.floats(-6, 6))
@settings(max_examples=100, deadline=None)
def test_the_analytic_noise_is_enough_tight_and_below_the_classic(
    epsilon: float, log_delta: float, log_bound: float
) -> None:
    delta, bound = 10.0**log_delta, 10.0**log_bound
    sigma = analytic_sigma(bound, epsilon=epsilon, delta=delta)
    classic = bound * math.sqrt(2 * math.log(1.25 / delta)) / epsilon  # proven for epsilon up to 1
    assert sigma <= classic
    assert gaussian_delta(bound, sigma=sigma * (1 + 1e-9), epsilon=epsilon) <= delta
    assert gaussian_delta(bound, sigma=sigma * 0.999, epsilon=epsilon) > delta
    assert largest_bound(sigma, epsilon=epsilon, delta=delta) == pytest.approx(bound, rel=1e-9)


def test_a_bound_too_large_for_the_noise_is_refused_with_the_largest() -> None:
    largest = largest_bound(0.01, epsilon=1.0, delta=1e-5)
    good = check_budget(largest * 0.999, 0.01, epsilon=1.0, delta=1e-5)
    assert good.largest_bound == pytest.approx(largest)
    assert good.caveats == CAVEATS
    assert canonical(good.plain)
    with pytest.raises(InputError, match=f"at most {largest:.6g}".replace(".", r"\.")):
        check_budget(largest * 1.001, 0.01, epsilon=1.0, delta=1e-5)
    with pytest.raises(InputError):
        check_budget(math.nan, 0.01, epsilon=1.0, delta=1e-5)
    for sigma, epsilon, delta in ((0.0, 1.0, 0.1), (1.0, 0.0, 0.1), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0)):
        with pytest.raises(InputError):
            check_budget(0.1, sigma, epsilon=epsilon, delta=delta)


def test_a_release_has_noise_of_that_size_and_its_own_seed() -> None:
    head = make_run(data={"dimension": 60, "classes": 9}).trained.head
    noise = release(head, 0.3, seed=1).params - head.params
    assert noise.std() == pytest.approx(0.3, rel=0.1)
    assert np.array_equal(release(head, 0.3, seed=1).params, release(head, 0.3, seed=1).params)
    assert not np.array_equal(release(head, 0.3).params, release(head, 0.3).params)
    bare = make_run(design={"intercept": "none"}).trained.head
    assert (release(bare, 0.3, seed=1).params[-1] == 0).all()
    assert release(head, 0.3).recipe["noise_sigma"] == 0.3


@pytest.mark.parametrize("scaling", ["mean", "sum"])
@pytest.mark.parametrize("intercept", ["penalised", "none"])
def test_objective_perturbation(scaling: str, intercept: str) -> None:
    random = np.random.default_rng(2)
    rows, labels = random.normal(size=(120, 5)), random.integers(0, 3, 120)
    design = Design(5, 3, intercept=intercept)
    every, rest = statistics(rows, labels, design), statistics(rows[30:], labels[30:], design)
    ridge = 0.1 if scaling == "mean" else 8.0
    term = draw_objective(every, 2.0, seed=4)
    trained = fit(every, ridge, objective=term, scaling=scaling).solution.value
    X, Y = columns(rows, intercept=intercept), one_hot(labels, 3)
    penalty = 12.0 if scaling == "mean" else 8.0
    gradient = X.T @ (X @ trained - Y) + penalty * trained + term
    assert np.linalg.norm(gradient) < 1e-10
    left = X[30:].T @ (X[30:] @ trained - Y[30:]) + (9.0 if scaling == "mean" else 8.0) * trained + term
    loss = quadratic(rest, {"ridge": ridge, "scaling": scaling, "view": "none", "class_weight": None}, term=term)
    found = 90 * residual(loss, trained).bound
    assert found == pytest.approx(float(np.linalg.norm(left)), rel=1e-9)
    again = fit(rest, ridge, objective=term, scaling=scaling).solution.value
    tiny = 90 * residual(loss, again).bound
    assert 0 < tiny < 1e-9
    assert relative(again, trained) > 1e-3
    delta = 1e-5
    c = math.sqrt(2 * math.log(1.5 / delta))
    assert largest_residual(2.0, epsilon=0.5, delta=delta) == pytest.approx(2.0 * 0.5 / c)
    assert removal_budget(tiny, 2.0, epsilon=0.01, delta=delta).bound == tiny
    with pytest.raises(InputError, match="Solve again"):
        removal_budget(found, 2.0, epsilon=0.01, delta=delta)


def test_the_guarantee_is_seen_on_heads() -> None:
    """Heads of distance `bound` released with the analytic noise: no threshold test beats (epsilon, delta)."""
    head = make_run().trained.head
    moved = np.zeros_like(head.params)
    moved[0, 0] = 0.5
    epsilon, delta = 1.0, 0.01
    sigma = analytic_sigma(0.5, epsilon=epsilon, delta=delta)
    random = np.random.default_rng(0)
    one, other = random.normal(0.5, sigma, 400_000), random.normal(0.0, sigma, 400_000)
    worst = max(float((one > t).mean() - math.exp(epsilon) * (other > t).mean()) for t in np.linspace(-1, 4, 60))
    assert 0.5 * delta < worst < delta + 3e-3


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2, 0.5])
def test_the_largest_residual_is_covered_by_the_ratio_of_densities(epsilon: float, delta: float) -> None:
    """A residual r moves the term from b to b - r: N(0, sigma^2) against N(r, sigma^2), along r."""
    sigma = 2.0
    largest = largest_residual(sigma, epsilon=epsilon, delta=delta)
    assert integrated_delta(largest, sigma, epsilon) <= delta

    def beyond(b: float) -> float:
        ratio = (b**2 - (b - largest) ** 2) / (2 * sigma**2)
        return math.exp(-(b**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) if abs(ratio) > epsilon else 0.0

    edges = [largest / 2 + sign * epsilon * sigma**2 / largest for sign in (-1, 1)]
    tails = [(-40 * sigma - abs(edges[0]), edges[0]), (edges[1], 40 * sigma + abs(edges[1]))]
    outside = sum(quad(beyond, *tail, limit=500, epsabs=1e-15)[0] for tail in tails)
    assert 0 < outside <= delta
    assert removal_budget(largest, sigma, epsilon=epsilon, delta=delta).bound == largest
    with pytest.raises(InputError, match="hides a residual"):
        removal_budget(largest * 1.001, sigma, epsilon=epsilon, delta=delta)


def test_above_epsilon_1_the_formula_would_not_hold_and_is_refused() -> None:
    delta, epsilon = 1e-5, 10.0
    formula = epsilon / math.sqrt(2 * math.log(1.5 / delta))
    assert integrated_delta(formula, 1.0, epsilon) > delta
    with pytest.raises(InputError, match="up to 1"):
        removal_budget(1e-9, 1.0, epsilon=epsilon, delta=delta)


def test_the_guarantee_of_a_linear_term_is_seen_on_heads() -> None:
    """Heads with the largest residual against retrained ones: no threshold along it beats (epsilon, delta)."""
    random = np.random.default_rng(5)
    stats = statistics(random.normal(size=(30, 2)), np.arange(30) % 2, Design(2, 2))
    epsilon, delta, sigma = 1.0, 0.05, 0.7
    left = np.full((3, 2), largest_residual(sigma, epsilon=epsilon, delta=delta) / math.sqrt(6))
    terms = random.normal(0.0, sigma, (200_000, 3, 2))
    matrix = stats.total_gram + 3.0 * np.eye(3)

    def seen(residual: float) -> NDArray[np.float64]:
        heads = np.linalg.solve(matrix, stats.moment - terms + residual * left)
        return np.asarray(((matrix @ heads) * left).sum(axis=(1, 2)))

    def worst(residual: float) -> float:
        one, other = seen(residual), seen(0.0)
        places = np.quantile(other, 1 - np.geomspace(1e-4, 0.5, 60))
        return max(float((one > t).mean() - math.exp(epsilon) * (other > t).mean()) for t in places)

    assert 0 < worst(1.0) <= delta < worst(4.0)


def privacy(certificate: Certificate) -> str:
    """What comes of the claim of (epsilon, delta) by itself."""
    [found] = [one for one in verify(certificate, Evidence()) if one.name == "privacy"]
    return found.verdict


def test_output_budgets_are_checked_too() -> None:
    run = make_run()
    found = certify(run.trained, Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["2"]))))
    assert found.bounds.weights is not None
    good = replace(found, privacy=check_budget(found.bounds.weights, 0.01, epsilon=1.0, delta=1e-5).plain)
    assert privacy(good) == PROVEN
    for name, value in (("sigma", 1.0), ("epsilon", 0.5), ("bound", 0.0), ("mechanism", "objective perturbation")):
        bad = replace(good, privacy={**(good.privacy or {}), name: value})
        assert privacy(bad) == FALSE, name
