"""One round: the clients' statistics, summed and solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probekit.errors import InputError
from probekit.federated.federation import Federation, collect_stats, total_stats
from probekit.federated.state import (
    Kept,
    KeptStatistics,
    State,
    check_keep,
    choose_from,
    gradients_at,
)
from probekit.linear.model import LinearModel
from probekit.linear.ridge import RidgeRule, solve_ridge
from probekit.linear.stats import SufficientStats
from probekit.objective import Squares
from probekit.progress import Progress, silent
from probekit.records import record


@record("trainer/closed-form")
@dataclass(frozen=True)
class ClosedForm:
    """The minimum of the clients' common loss; kept statistics let clients leave and join."""

    keep: frozenset[str] = frozenset({"statistics"})

    def __post_init__(self) -> None:
        check_keep(self.keep, ("statistics", "gradients"), "closed-form")

    def train(
        self, federation: Federation, *, ridge: float | RidgeRule, progress: Progress = silent
    ) -> State:
        _check_model(federation)
        if "statistics" in self.keep:
            parts = collect_stats(federation, progress=progress)
            return self.solve(federation, parts, ridge=ridge)
        return self._state(federation, total_stats(federation, progress=progress), ridge=ridge)

    def solve(
        self,
        federation: Federation,
        parts: Mapping[str, SufficientStats],
        *,
        ridge: float | RidgeRule,
    ) -> State:
        """The state that follows from the statistics of the federation's clients."""
        _check_model(federation)
        absent = federation.clients.keys() - parts.keys()
        if absent:
            raise InputError(
                f"Statistics of {len(federation.clients)} clients are needed; those of "
                f"{min(absent)} are not here. Collect them first."
            )
        kept = KeptStatistics({name: parts[name] for name in federation.clients})
        return self._state(federation, kept.total, kept, ridge=ridge)

    def _state(
        self,
        federation: Federation,
        stats: SufficientStats,
        *kept: Kept,
        ridge: float | RidgeRule,
    ) -> State:
        model = federation.model
        assert isinstance(model, LinearModel)
        choice = choose_from(ridge, model, stats)
        params = solve_ridge(stats, choice.value, model.intercept)
        if "gradients" in self.keep:
            kept = (*kept, gradients_at(federation, params))
        return State(params, model, choice, dict(federation.clients), self, kept=kept)


def _check_model(federation: Federation) -> None:
    model = federation.model
    if not isinstance(model, LinearModel) or not isinstance(model.loss, Squares):
        raise InputError(
            f"A closed form needs a LinearModel of squares; this is a {type(model).__name__} of "
            f"{type(model.loss).__name__}. Train by fedavg, or a head by lbfgs."
        )
