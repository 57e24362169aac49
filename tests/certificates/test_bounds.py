"""The bounds themselves, where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.certificates.bounds import (
    Bounds,
    a_priori_distance,
    bounds_from_statistics,
    gamma,
    least_curvature,
    self_concordant,
    summing_error,
)
from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import collect_stats, total_stats
from probekit.linear.stats import SufficientStats, sum_stats
from tests.unlearning.problems import federation, forget, some_clients, trained


def bounds_at(shift: float) -> tuple[Bounds, float]:
    """The bounds of a head that was moved away from its minimum, and how far."""
    asked = federation(some_clients())
    state = trained(asked)
    direction = np.random.default_rng(1).normal(size=state.params.shape)
    params = state.params + shift * direction
    parts = collect_stats(asked).values()
    total = sum_stats(parts)
    summing = summing_error(parts)
    found = bounds_from_statistics(total, params, model=asked.model, ridge=0.1, summing=summing)
    return found, shift * float(np.linalg.norm(direction))


@pytest.mark.parametrize("shift", [1e-8, 1e-3, 10.0])
def test_a_known_hessian_bounds_the_distance_tightly(shift: float) -> None:
    found, distance = bounds_at(shift)
    assert distance <= found.distance <= 1.1 * distance
    plain = found.residual / found.curvature
    assert found.distance < plain


def test_self_concordance_holds_near_the_minimum_only() -> None:
    plain = replace(bounds_at(0.0)[0], curvature=0.01, drift=9.0, distance=9.0, excess_loss=9.0)
    assert self_concordant(plain, decrement=0.1, longest_row=1.0) == plain
    near = self_concordant(plain, decrement=0.01, longest_row=1.0)
    growth = np.sqrt(2 / 0.01)
    length = -np.log(1 - growth * 0.01) / growth
    assert length / np.sqrt(0.01) <= near.distance <= 1.2 * length / np.sqrt(0.01)
    assert 0.01 * length <= near.excess_loss <= 1.2 * 0.01 * length
    assert near.drift == near.distance


def test_rows_that_change_their_class_are_not_certified() -> None:
    found, _ = bounds_at(3.0)
    rows = some_clients(seed=4)["0"]
    Z = np.hstack([np.asarray(rows.rows, float), np.ones((len(rows), 1))])
    before = (Z @ found.params).argmax(axis=1)
    after = (Z @ (found.params - found.step)).argmax(axis=1)
    certified = found.keeps_class(rows)
    assert 0 < certified.sum() < len(rows)
    assert not (certified & (before != after)).any()
    assert found.certified_rows(rows) == certified.sum()


@pytest.mark.parametrize("margin", [0.9, 1.1])
def test_a_margin_must_exceed_what_the_drift_can_move(margin: float) -> None:
    """The worst change of length 1 adds to one class and takes from the other along the row."""
    row = np.array([3.0, 4.0])
    length = np.sqrt(26.0)
    params = np.zeros((3, 2))
    params[2, 0] = margin * np.sqrt(2) * length
    found, _ = bounds_at(0.0)
    bound = replace(found, params=params, step=np.zeros((3, 2)), drift=1 / 1.0625)
    worst = params - np.outer([*row, 1.0], [1, -1]) / (length * np.sqrt(2)) * (1 - 1e-12)
    flips = ([*row, 1.0] @ worst).argmax() == 1
    rows = EmbeddingSet.from_numpy(row[None], [0])
    assert flips == (margin < 1)
    assert bool(bound.keeps_class(rows)[0]) == (margin > 1)


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 8),
    spread=st.floats(0, 14),
    rank=st.integers(1, 8),
)
def test_the_curvature_is_at_most_the_least_eigenvalue(
    seed: int, size: int, spread: float, rank: int
) -> None:
    random = np.random.default_rng(seed)
    root = random.normal(size=(min(rank, size), size)) * np.geomspace(1, 10**-spread, size)
    hessian = root.T @ root
    least = np.square(np.linalg.svd(root)[1]).min() if len(root) == size else 0.0
    assert least_curvature(hessian, 0.0, floor=0.0) <= least * (1 + 1e-9) + 1e-30
    assert least_curvature(hessian, 0.0, floor=0.5) >= 0.5 * (1 - 1e-15)


def test_the_rounding_of_sums_follows_blocks_not_rows() -> None:
    rows = some_clients((400,), width=6)["0"]
    few = SufficientStats.from_rows(rows)
    many = replace(few, count=100_000_000)
    assert summing_error([many]) > summing_error([few])
    assert summing_error([many]) < gamma(400_000)
    root = SufficientStats.from_rows(some_clients((40,), width=200)["0"])
    assert root.root is not None
    assert summing_error([few, root]) > summing_error([few])


@pytest.mark.parametrize("intercept", ["free", "penalized"])
@given(seed=st.integers(0, 999), rows=st.integers(5, 200))
def test_the_a_priori_bound_holds_for_one_step(intercept: str, seed: int, rows: int) -> None:
    clients = some_clients(seed=seed)
    asked = federation(clients, intercept=intercept)
    server = federation({"server": some_clients((rows,), seed=seed + 1)["0"]})
    state = trained(asked, ridge=0.05)
    after = forget(state, asked, "fedremoval", clients={"2"}, server=server)
    minimum = forget(state, asked, clients={"2"}).params
    bound = a_priori_distance(
        total_stats(server),
        total_stats(asked.without({"2"})),
        state.params,
        model=asked.model,
        ridge=0.05,
    )
    assert np.linalg.norm(after.params - minimum) <= bound * (1 + 1e-9)


def test_the_a_priori_bound_is_infinite_without_curvature() -> None:
    asked = federation(some_clients((3,), width=6))
    stats = total_stats(asked)
    params = np.zeros(asked.model.shape)
    assert a_priori_distance(stats, stats, params, model=asked.model, ridge=0.0) > 1e9
