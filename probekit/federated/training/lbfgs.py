"""Gradient rounds: L-BFGS on the federation's loss, preconditioned by the clients' Grams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np

from probekit.arrays import Array
from probekit.errors import InputError, SolverError
from probekit.federated.federation import Federation
from probekit.federated.local import check_positive
from probekit.federated.loss import MeanLoss, identity, whitener
from probekit.federated.state import Ridge, State, check_keep, collect_and_choose, kept_by
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv
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

    def train(self, federation: Federation, *, ridge: Ridge, progress: Progress = silent) -> State:
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
        collect = self.whiten or "statistics" in self.keep
        statistics, choice = collect_and_choose(
            ridge, federation, collect=collect, progress=progress
        )
        if not choice.value:
            raise InputError("Gradient rounds need a ridge above 0; found 0. Pass --ridge or --c.")
        parts = {} if statistics is None else statistics.parts
        solution = self.minimize(
            federation, model.start(), ridge=choice.value, parts=parts, progress=progress
        )
        kept = kept_by(self.keep, federation, solution.value, statistics)
        return State(solution.value, model, choice, dict(federation.clients), self, kept=kept)

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
        loss = MeanLoss(federation, ridge)
        done = count(1)

        def value_and_gradient(params: Array) -> tuple[float, Array]:
            value, gradient = loss.value_and_gradient(params)
            progress(Step("gradient rounds", next(done), note=f"loss {value:.6g}"))
            return value, gradient

        precondition: Map = identity
        if parts and self.whiten:
            precondition = whitener(federation.model, sum_stats(parts.values()), ridge)
        solver = Lbfgs(self.rounds, self.tolerance * ridge)
        solution = solver.minimize(value_and_gradient, start, precondition=precondition)
        residual = float(np.linalg.norm(solution.residual))
        if residual > solver.goal:
            raise SolverError(
                f"A gradient of norm {solver.goal:.2g} was expected after {solution.steps} rounds; "
                f"found {residual:.2g}. Raise the ridge (lower --c), or the rounds (--method "
                f"lbfgs:rounds={2 * self.rounds})."
            )
        return solution
