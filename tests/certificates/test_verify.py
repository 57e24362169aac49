"""Enclosures of random problems against rational arithmetic, and claims against enclosures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from probekit.certificates.certificate import Certificate, certify
from probekit.certificates.verify import (
    DoubledSum,
    Enclosure,
    Interval,
    Minimum,
    RowSums,
    Totals,
    is_best_ridge,
    is_gradient,
    is_sum,
    softmax_reach,
)
from probekit.embeddings import EmbeddingSet
from probekit.errors import ProbekitError
from probekit.federated.federation import InProcess
from probekit.federated.state import State, gradients_at
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv
from probekit.linear.stats import SufficientStats, sum_stats
from tests.certificates.test_random_problems import (
    Problem,
    Truth,
    logistic_problem,
    logistic_truth,
    ridge_problem,
    truth_of,
)
from tests.oracles import random_set
from tests.unlearning.problems import federation, some_clients, trained


def model_of(state: State) -> LinearModel:
    assert isinstance(state.model, LinearModel)
    return state.model


def sums_of(clients: Mapping[str, EmbeddingSet], state: State) -> RowSums:
    totals = Totals(model_of(state))
    for rows in clients.values():
        totals.add(RowSums.of(rows, state.params, model_of(state)))
    return totals.sums


def retained_clients(problem: Problem) -> dict[str, EmbeddingSet]:
    transport = problem.removal.retained.transport
    assert isinstance(transport, InProcess)
    parts = {name: transport.data[name] for name in problem.removal.retained.clients}
    return {name: rows for name, rows in parts.items() if isinstance(rows, EmbeddingSet)}


def enclosed(problem: Problem) -> Enclosure:
    state = problem.state
    clients = retained_clients(problem)
    minimum = Minimum(clients, model_of(state), state.ridge)
    return minimum.enclose(state.params, sums_of(clients, state))


def ridge_problems(seeds: range) -> Iterator[tuple[int, Problem]]:
    for seed in seeds:
        problem = ridge_problem(seed)
        if problem is not None and problem.rows.weights is None:  # rows of runs have none
            yield seed, problem


def outside(found: Enclosure, truth: Truth) -> list[str]:
    """The numbers that are not where they were enclosed, compared without any slack."""
    distance = found.distance
    excess = found.excess_loss
    inside = {
        "least distance": Fraction(distance.least) ** 2 <= truth.distance_squared,
        "most distance": distance.most == math.inf
        or truth.distance_squared <= Fraction(distance.most) ** 2,
        "least excess": Fraction(excess.least) <= truth.excess_loss,
        "most excess": excess.most == math.inf or truth.excess_loss <= Fraction(excess.most),
    }
    return [name for name, holds in inside.items() if not holds]


def verdicts(found: Enclosure, problem: Problem, stated: Certificate) -> list[bool | None]:
    return [
        found.distance.allows(stated.distance),
        found.excess_loss.allows(stated.excess_loss),
        found.residual.allows(stated.residual),
        found.curvature.reaches(stated.curvature),
        found.certified_rows(problem.test) >= stated.certified_rows,
    ]


def test_the_truth_is_enclosed() -> None:
    wrong = []
    tight = 0
    for seed, problem in ridge_problems(range(200)):
        truth = truth_of(problem)
        if truth is None:
            continue
        found = enclosed(problem)
        wrong += [(seed, name) for name in outside(found, truth)]
        wrong += [(seed, "rows")] * (found.certified_rows(problem.test) > truth.agreeing)
        tight += found.distance.most < 1.1 * math.sqrt(truth.distance_squared)
    assert wrong == []
    assert tight > 30


def test_honest_claims_are_true_and_nearer_ones_false() -> None:
    true = 0
    shown = []
    for _, problem in ridge_problems(range(200)):
        found = enclosed(problem)
        try:
            stated = certify(problem.state, problem.removal.retained, test=problem.test)
        except ProbekitError:
            continue
        honest = verdicts(found, problem, stated)
        assert False not in honest
        true += None not in honest
        if found.distance.least > 0:
            shown.append(found.distance.allows(found.distance.least * 0.999))
    assert true > 100
    assert set(shown) == {False}
    assert len(shown) > 50


def test_softmax_is_enclosed_and_honest_claims_are_true() -> None:
    for seed in range(40):
        problem = logistic_problem(seed)
        found = enclosed(problem)
        truth = logistic_truth(problem)
        slack = Fraction(1e-12)  # of the converged optimum
        distance = Fraction(truth.distance_squared**0.5)
        assert Fraction(found.distance.least) <= distance + slack
        assert distance <= Fraction(found.distance.most) + slack
        assert found.excess_loss.least <= float(truth.excess_loss) + 1e-15
        assert float(truth.excess_loss) <= found.excess_loss.most + 1e-15
        assert found.certified_rows(problem.test) <= truth.agreeing
        stated = certify(problem.state, problem.removal.retained, test=problem.test)
        assert set(verdicts(found, problem, stated)) == {True}


@pytest.mark.parametrize("curvature", [1.0, 1e-3])
def test_a_softmax_may_be_flatter_towards_the_minimum(curvature: float) -> None:
    """The slope back from t is at least the integral of exp(-M s) over 0 to t."""
    longest = 3.0
    rate = longest * math.sqrt(2) / math.sqrt(curvature)
    decrement = 0.7 / rate
    reach = softmax_reach(decrement, longest=longest, curvature=curvature)
    places = np.linspace(0, reach, 100_001)
    integral = np.trapezoid(np.exp(-rate * places), places)
    assert integral == pytest.approx(decrement, rel=1e-8)
    assert softmax_reach(1.1 / rate, longest=longest, curvature=curvature) == math.inf


def test_bounds_do_not_grow_with_rows() -> None:
    """The same rows fifty times: the same minimum, and as sharp a bound."""
    rows = random_set(400, 12, 3)
    many = rows.take(np.tile(np.arange(400), 50))
    bounds = []
    for part in (rows, many):
        asked = federation({"a": part})
        state = trained(asked)
        minimum = Minimum({"a": part}, model_of(state), state.ridge)
        sums = sums_of({"a": part}, state)
        bounds.append(minimum.enclose(np.zeros_like(state.params), sums).residual)
    widths = [bound.most - bound.least for bound in bounds]
    assert 0 < widths[1] < 1.01 * widths[0]


def test_a_doubled_sum_keeps_what_float64_drops() -> None:
    total = DoubledSum(2)
    for term in (1.0, 1e100, 1.0, -1e100):
        total.add(np.array([term, 1.0]))
    np.testing.assert_array_equal(total.total, [2.0, 4.0])


def test_an_interval_decides_or_does_not() -> None:
    interval = Interval(1.0, 2.0)
    assert [interval.allows(claim) for claim in (0.5, 1.5, 2.0)] == [False, None, True]
    assert [interval.reaches(claim) for claim in (0.5, 1.5, 2.5)] == [True, None, False]


def test_nothing_is_shown_of_rows_that_overflow() -> None:
    rows = random_set(20, 3, 2)
    huge = replace(rows, rows=np.asarray(rows.rows, np.float64) * 1e200)
    model = LinearModel(3, 2)
    params = np.ones(model.shape)
    with np.errstate(all="ignore"):
        sums = RowSums.of(huge, params, model)
    found = Minimum({"a": huge}, model, 0.1).enclose(params, sums)
    assert found.distance.allows(1e300) is None
    assert found.certified_rows(rows) == 0


@pytest.mark.parametrize("size", [3, 40])
def test_kept_sums_must_be_those_of_the_rows(size: int) -> None:
    """As a root of few rows, and as sums."""
    rows = random_set(size, 12, 3)
    model = LinearModel(12, 3)
    sums = RowSums.of(rows, np.zeros(model.shape), model)
    stats = SufficientStats.from_rows(rows)
    assert (stats.root is not None) == (size == 3)
    assert is_sum(stats, sums)
    other = SufficientStats.from_rows(random_set(size, 12, 3, seed=1))
    assert not is_sum(other, sums)
    assert not is_sum(replace(stats, count=size - 1), sums)


def test_kept_gradients_must_be_those_of_the_rows() -> None:
    clients = some_clients()
    asked = federation(clients)
    params = np.random.default_rng(0).normal(size=asked.model.shape)
    kept = gradients_at(asked, params)
    assert isinstance(asked.model, LinearModel)
    sums = RowSums.of(clients["0"], params, asked.model)
    assert is_gradient(kept.gradients["0"], sums, params)
    assert not is_gradient(kept.gradients["1"], sums, params)
    assert not is_gradient(kept.gradients["0"] * (1 + 1e-9), sums, params)


@pytest.mark.parametrize("intercept", ["free", "penalized"])
def test_the_ridge_of_cross_validation_is_recognized(intercept: str) -> None:
    """Of rows of many shapes, fewer than columns and far from zero included."""
    recognized = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        sizes = random.integers(3, 40, 3)
        clients = some_clients(
            sizes.tolist(), width=int(random.integers(2, 30)), seed=seed, signal=1.0
        )
        asked = federation(clients, intercept=intercept)  # type: ignore[arg-type]
        model = asked.model
        assert isinstance(model, LinearModel)
        parts = [SufficientStats.from_rows(rows) for rows in clients.values()]
        stats = sum_stats(parts)
        chosen = Gcv().choose(stats, model.intercept)
        state = State(np.zeros(model.shape), model, None, {}, None)  # type: ignore[arg-type]
        sums = sums_of(clients, state)
        found = is_best_ridge(chosen, Gcv(), clients, model, sums)
        assert found is not False
        recognized += found is True
        assert is_best_ridge(chosen * 1.01, Gcv(), clients, model, sums) is not True
        assert is_best_ridge(chosen * 10**0.2, Gcv(), clients, model, sums) is not True
    assert recognized > 55
