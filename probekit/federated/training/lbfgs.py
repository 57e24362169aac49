"""Gradient rounds: L-BFGS on the federation's loss, preconditioned by the clients' Grams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from probekit.arrays import Array
from probekit.errors import InputError, SolverError
from probekit.federated.federation import Federation, collect_stats
from probekit.federated.local import check_positive
from probekit.federated.loss import MeanLoss, identity, whitener
from probekit.federated.state import (
    Kept,
    KeptStatistics,
    State,
    check_keep,
    choose_ridge,
    gradients_at,
)
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv, RidgeRule
from probekit.linear.solvers import Lbfgs, Map, Solution
from probekit.linear.stats import SufficientStats, sum_stats
from probekit.progress import Progress, Step, silent
from probekit.records import record


@record("trainer/lbfgs")
@dataclass(frozen=True)
class LbfgsRounds:
    """Rounds of gradients until |gradient| <= ridge * tolerance.

    The minimum of a loss whose every parameter is penalized is then within `tolerance`. `whiten`
    takes the clients' Grams as a first guess of the curvature, in one round before.
    """

    rounds: int = 2000
    tolerance: float = 1e-6
    whiten: bool = True
    keep: frozenset[str] = frozenset({"statistics"})

    def __post_init__(self) -> None:
        check_keep(self.keep, ("statistics", "gradients"), "lbfgs")
        check_positive(self, "rounds", "tolerance")

    def train(
        self, federation: Federation, *, ridge: float | RidgeRule, progress: Progress = silent
    ) -> State:
        if isinstance(ridge, Gcv):
            raise InputError(
                "Gradient rounds need a ridge or a C; found a rule (GCV). Pass --ridge or --c."
            )
        model = federation.model
        if not isinstance(model, LinearModel):
            raise InputError(
                f"L-BFGS rounds are for heads; this is a {type(model).__name__}. Train by cg "
                "(linearized networks) or fedavg."
            )
        parts: dict[str, SufficientStats] = {}
        if self.whiten or "statistics" in self.keep:
            parts = collect_stats(federation, progress=progress)
        stats = sum_stats(parts.values()) if parts else None
        choice = choose_ridge(ridge, federation, stats=stats, progress=progress)
        if not choice.value:
            raise InputError("Gradient rounds need a ridge above 0; found 0. Pass --ridge or --c.")
        solution = self.minimize(
            federation, model.start(), ridge=choice.value, parts=parts, progress=progress
        )
        kept: list[Kept] = []
        if "statistics" in self.keep:
            kept.append(KeptStatistics(parts))
        if "gradients" in self.keep:
            kept.append(gradients_at(federation, solution.value))
        clients = dict(federation.clients)
        return State(solution.value, model, choice, clients, self, kept=tuple(kept))

    def minimize(
        self,
        federation: Federation,
        start: Array,
        *,
        ridge: float,
        parts: Mapping[str, SufficientStats],
        progress: Progress = silent,
    ) -> Solution:
        """The minimum, from any start; `parts` are statistics to precondition by, or none."""
        loss = _ReportedLoss(MeanLoss(federation, ridge), progress)
        precondition: Map = identity
        if parts and self.whiten:
            precondition = whitener(federation.model, sum_stats(parts.values()), ridge)
        solver = Lbfgs(self.rounds, self.tolerance * ridge)
        solution = solver.minimize(loss.value_and_gradient, start, precondition=precondition)
        residual = float(np.linalg.norm(solution.residual))
        if residual > solver.goal:
            raise SolverError(
                f"A gradient of norm {solver.goal:.2g} was expected after {solution.steps} rounds; "
                f"found {residual:.2g}. Raise the ridge (lower --c), or the rounds (--method "
                f"lbfgs:rounds={2 * self.rounds})."
            )
        return solution


@dataclass
class _ReportedLoss:
    """A loss that reports its rounds."""

    loss: MeanLoss
    progress: Progress
    done: int = 0

    def value_and_gradient(self, params: Array) -> tuple[float, Array]:
        self.done += 1
        value, gradient = self.loss.value_and_gradient(params)
        self.progress(Step("gradient rounds", self.done, note=f"loss {value:.6g}"))
        return value, gradient
