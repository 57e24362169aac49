"""Bounds that are no certificates: the paper's three terms as printed, and concentration under an assumption.

The paper bounds E|removed - retrained|^2 by 4 Delta + 4 xi / (B beta) + 4 |dG|^2 / lambda_min(H_p)^2. Its third
term lacks the squared gradient and a second inverse, so that its units do not match; its first is for FedAvg;
no server can compute all of it. It stands beside our bound so that the difference can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.federated.summation import StatisticsTree
from probekit.linear.design import ClientStats
from probekit.linear.norms import norm
from probekit.linear.solvers import Cholesky
from probekit.linear.squares import Curvature, StatsSquares

MOST_WORK = 5e9
"""Operations that the first term may cost: it needs a solve per client."""
DIRECT = ("cholesky", "eigen", "conjugate gradients", "preconditioned gradient rounds")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Term:
    """One term of a published bound: its value, or why there is none."""

    name: str
    value: float | None
    why: str


def paper_terms(
    statistics: Mapping[str, ClientStats] | None, server: ClientStats | None, *, ridge: float, solver: str
) -> tuple[Term, ...]:
    """The paper's three terms, computed where they can be; `ridge` in mean scaling."""
    return (_training(statistics, ridge), _solving(solver), _representing(statistics, server, ridge))


def _training(statistics: Mapping[str, ClientStats] | None, ridge: float) -> Term:
    """4 Delta with Delta = 4 sigma_L / ridge for full batches; sigma_L = sum p_c (L_c(w*) - L_c(w_c*))."""
    name = "4 Delta: FedAvg's bias"
    if statistics is None:
        return Term(name, None, "not computable: needs every client's loss at its own minimum")
    designs = (one.design for one in statistics.values())
    if sum(one.columns**2 * (one.columns + 6 * one.classes) for one in designs) > MOST_WORK:
        return Term(name, None, f"not computed: a solve for each of {len(statistics)} clients takes too long")
    if not ridge > 0:
        return Term(name, None, "not computable: infinite without a ridge")
    total = StatisticsTree.of(statistics).total
    best = _minimum(total, ridge)
    bias = 0.0
    for one in statistics.values():
        bias += one.count / total.count * (_loss(one, ridge, best) - _loss(one, ridge, _minimum(one, ridge)))
    return Term(name, 16 * bias / ridge, "with full batches; a head in closed form has no such bias")


def _minimum(stats: ClientStats, ridge: float) -> Array:
    return Cholesky(tolerance=math.inf).solve(_curvature(stats, ridge), stats.moment / stats.count).value


def _loss(stats: ClientStats, ridge: float, params: Array) -> float:
    squares, kept = StatsSquares(stats), params.copy()
    kept[len(kept) - squares.free :] = 0
    return 1 / squares.count * squares.value(params) / 2 + ridge / 2 * float(np.square(kept).sum())


def _curvature(stats: ClientStats, ridge: float) -> Curvature:
    return Curvature(StatsSquares(stats), ridge)


def _solving(solver: str) -> Term:
    name = "4 xi / (B beta): the solver's noise"
    if solver in DIRECT:
        return Term(name, 0.0, "the equations were solved, not sampled")
    return Term(name, None, "not computable: needs the minimum of every single server row's objective")


def _representing(statistics: Mapping[str, ClientStats] | None, server: ClientStats | None, ridge: float) -> Term:
    name = "4 |dG|^2 / lambda_min(H_p)^2: the server's rows"
    if server is None:
        return Term(name, None, "not computable: the server has no rows of its own")
    smallest = smallest_curvature(server, ridge)
    if statistics is None:
        why = "needs the retained clients' second moments; the smallest curvature of the server's rows is"
        return Term(name, None, f"not computable: {why} {smallest:.3g}")
    if not smallest > 0:
        return Term(name, None, "not computable: infinite, the server's curvature is singular")
    total = StatisticsTree.of(statistics).total
    difference = total.total_gram / total.count - server.total_gram / server.count
    apart = float(np.abs(np.linalg.eigvalsh(difference)).max())
    ratio = apart / smallest
    return Term(name, 4 * ratio * ratio, "as printed, without the factor of the gradient")


def smallest_curvature(stats: ClientStats, ridge: float) -> float:
    """The smallest eigenvalue of G/n + ridge P."""
    curvature = np.asarray(_curvature(stats, ridge).dense())
    return max(float(np.linalg.eigvalsh(curvature)[0]), 0.0)


@dataclass(frozen=True)
class Concentration:
    """An upper bound that holds with a probability, if the server's and the retained rows are iid. No certificate."""

    holds_if: str
    probability: float
    second_moments: float | None
    weights: float | None
    why: str


def concentration(server: ClientStats, rows: int, *, ridge: float, step: Array, delta: float = 0.01) -> Concentration:
    """Matrix Bernstein: how far the server's second moments, and so a single step, can be off by chance.

    Rows of norm at most r: |G_p/n_p - S| <= sqrt(2 r^2 |S| log(2 d / delta) / n_p) + 2 r^2 log(2 d / delta) / (3 n_p),
    with |S| <= r^2; the same for the retained rows; and the step's error is at most |H_p^-1| |dG| |g| / ridge,
    g = H_p step.
    """
    design = server.design
    holds_if = "the server's rows and the retained rows are independent draws of one distribution"
    if design.view != "l2":
        why = "not computable: rows of unknown norm; divide each by its norm (view l2)"
        return Concentration(holds_if, 1 - delta, None, None, why)
    square = 1.0 + (design.intercept != "none")
    logarithm = math.log(2 * 2 * design.columns / delta)
    apart = sum(
        math.sqrt(2 * square**2 * logarithm / n) + 2 * square * logarithm / (3 * n) for n in (server.count, rows)
    )
    smallest = smallest_curvature(server, ridge)
    if not (ridge > 0 and design.intercept != "free"):
        why = "no bound on weights: an intercept that is free, or no ridge, leaves no sure curvature"
        return Concentration(holds_if, 1 - delta, apart, None, why)
    gradient = norm(_curvature(server, ridge).matvec(step))
    weights = apart * gradient / (smallest * ridge)
    return Concentration(holds_if, 1 - delta, apart, weights, "assumption, never a certificate")
