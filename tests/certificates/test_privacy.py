"""(epsilon, delta) against integration, the classic formula, and what the noise is for."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad

from probekit.certificates.bounds import quadratic, residual
from probekit.certificates.certificate import Certificate
from probekit.certificates.certify import certify
from probekit.certificates.privacy import CAVEATS, largest_residual, release, release_budget, removal_budget
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN
from probekit.certificates.verify import Evidence, verify
from probekit.custody.accounting import ReleaseNoise
from probekit.custody.discrete_gaussian import draw
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


def test_a_bound_too_large_for_the_noise_is_refused_with_the_largest() -> None:
    noise = ReleaseNoise.of(0.01)
    largest = noise.largest_bound(100)
    good = release_budget(largest * 0.999, noise, parameters=100)
    assert (good.largest_bound, good.caveats) == (largest, CAVEATS)
    assert canonical(good.plain)
    with pytest.raises(InputError, match=f"at most {largest:.6g}".replace(".", r"\.")):
        release_budget(largest * 1.001, noise, parameters=100)
    with pytest.raises(InputError, match="50% of that budget is spent"):
        release_budget(largest * 0.999, noise, parameters=100, spent=noise.budget / 2)
    with pytest.raises(InputError):
        release_budget(math.nan, noise, parameters=100)


@pytest.mark.parametrize("sigma", [1e-6, 0.3, 1e3])
def test_a_release_is_on_the_grid_and_has_noise_of_that_size(sigma: float) -> None:
    head, noise = make_run(data={"dimension": 60, "classes": 9}).trained.head, ReleaseNoise.of(sigma)
    released = release(head, noise)
    drawn = released.params - np.rint(head.params / noise.grid) * noise.grid
    assert drawn.std() == pytest.approx(sigma, rel=0.25)  # the noise has no seed: 8 standard errors of 549 draws
    assert np.array_equal(np.rint(released.params / noise.grid) * noise.grid, released.params)
    assert not np.array_equal(released.params, release(head, noise).params)
    bare = make_run(design={"intercept": "none"}).trained.head
    assert (release(bare, noise).params[-1] == 0).all()
    assert released.recipe["noise_sigma"] == noise.sigma
    kept = {"rows", "residual", "ridge_chosen", "note", "solver", "learning_rate"} & released.recipe.keys()
    assert not kept, "what no noise covers"


def test_a_head_beyond_the_steps_of_its_noise_is_refused() -> None:
    head = make_run().trained.head
    with pytest.raises(InputError, match="too small for parameters"):
        release(head, ReleaseNoise.of(1e-12))
    centred: Any = make_run(design={"intercept": "none"}).trained.head
    params = centred.params.copy()
    params[-1] = 0.25
    with pytest.raises(InputError, match="no parameter of its problem"):
        release(replace(centred, params=params), ReleaseNoise.of(0.01))


@pytest.mark.parametrize("scaling", ["mean", "sum"])
@pytest.mark.parametrize("intercept", ["penalised", "none"])
def test_objective_perturbation(scaling: str, intercept: str) -> None:
    random = np.random.default_rng(2)
    rows, labels = random.normal(size=(120, 5)), random.integers(0, 3, 120)
    design = Design(5, 3, intercept=intercept)
    every, rest = statistics(rows, labels, design), statistics(rows[30:], labels[30:], design)
    ridge = 0.1 if scaling == "mean" else 8.0
    term = draw_objective(every, 2.0)
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


def test_the_guarantee_is_seen_on_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the largest distance that noise covers no threshold beats (epsilon, delta); three times as far one does."""
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(6).bytes)
    epsilon, delta, noise = 1.0, 0.01, ReleaseNoise.of(1.0, epsilon=1.0, delta=0.01)
    largest = noise.largest_bound(1)

    def worst(apart: float) -> float:
        moved = round(apart / noise.grid) * noise.grid
        one, other = (draw(noise.scale, 200_000) * noise.grid + mean for mean in (moved, 0.0))
        return max(float((one > t).mean() - math.exp(epsilon) * (other > t).mean()) for t in np.linspace(-1, 6, 60))

    assert 0.2 * delta < worst(largest) < delta + 4e-3 < worst(3 * largest)


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


FORGED: tuple[tuple[str, Any], ...] = (
    *(("sigma", 1.0), ("sigma", math.nan), ("epsilon", 0.01), ("delta", 1e-300), ("bound", 0.0), ("rho", 1e-30)),
    *(("grid", 1e-30), ("grid", 0.0), ("parameters", 1), ("parameters", -1), ("largest_bound", 1.0)),
    *(("mechanism", "objective perturbation"), ("caveats", CAVEATS[1:]), ("parameters", "many")),
)


def test_budgets_of_a_release_are_checked_too() -> None:
    """C5, C9: each number of the claim, forged alone, is false; without the head its parameters are not proven."""
    run = make_run()
    removed = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["2"])))
    found, head = certify(run.trained, removed), removed.trained_after.head
    assert found.bounds.weights is not None
    budget = release_budget(found.bounds.weights, ReleaseNoise.of(1e-4), parameters=head.params.size)
    good = replace(found, privacy=budget.plain)

    def verdict(certificate: Certificate, evidence: Evidence) -> str:
        return next(one.verdict for one in verify(certificate, evidence) if one.name == "privacy")

    assert verdict(good, Evidence(head=head)) == PROVEN
    assert verdict(good, Evidence()) == INTACT
    for name, value in FORGED:
        bad = replace(good, privacy={**(good.privacy or {}), name: value})
        assert verdict(bad, Evidence(head=head)) == FALSE, (name, value)
    old = replace(good, privacy={"mechanism": "output perturbation", "sigma": 1.0})
    assert verdict(old, Evidence(head=head)) == INTACT


def _halved(noise: ReleaseNoise, bound: float, parameters: int) -> float:
    return TRUE_COST(noise, bound, parameters) / 2


def _unrounded(noise: ReleaseNoise, bound: float, _: int) -> float:
    return TRUE_COST(noise, bound, 0)


def _unbounded(noise: ReleaseNoise, _: float, parameters: int) -> float:
    return TRUE_COST(noise, 0.0, parameters)


TRUE_COST = ReleaseNoise.cost


@pytest.mark.parametrize("mutant", [_halved, _unrounded, _unbounded])
def test_a_certifier_that_forgets_part_of_the_cost_is_called_false(
    mutant: Callable[[ReleaseNoise, float, int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    removed = Exact().unlearn(Removal(run.trained, UnlearnRequest.of(["2"])))
    found, head = certify(run.trained, removed), removed.trained_after.head
    monkeypatch.setattr(ReleaseNoise, "cost", mutant)
    budget = release_budget(found.bounds.weights or 0.0, ReleaseNoise.of(1e-4), parameters=head.params.size)
    judged = verify(replace(found, privacy=budget.plain), Evidence(head=head))
    assert next(one.verdict for one in judged if one.name == "privacy") == FALSE
