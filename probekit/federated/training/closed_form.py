"""One round: the clients' statistics, summed and solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probekit.errors import InputError
from probekit.federated.federation import Federation, collect_stats, total_stats
from probekit.federated.state import KeptStatistics, Ridge, State, check_keep, choose_from, kept_by
from probekit.linear.model import LinearModel
from probekit.linear.ridge import solve_ridge
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

    def train(self, federation: Federation, *, ridge: Ridge, progress: Progress = silent) -> State:
        _head_of_squares(federation)
        if "statistics" in self.keep:
            parts = collect_stats(federation, progress=progress)
            return self.solve(federation, parts, ridge=ridge)
        return self._state(federation, total_stats(federation, progress=progress), None, ridge)

    def solve(
        self,
        federation: Federation,
        parts: Mapping[str, SufficientStats],
        *,
        ridge: Ridge,
    ) -> State:
        """The state that follows from the statistics of the federation's clients."""
        absent = federation.clients.keys() - parts.keys()
        if absent:
            raise InputError(
                f"Statistics of {len(federation.clients)} clients are needed; those of "
                f"{min(absent)} are not here. Collect them first."
            )
        statistics = KeptStatistics({name: parts[name] for name in federation.clients})
        return self._state(federation, statistics.total, statistics, ridge)

    def _state(
        self,
        federation: Federation,
        stats: SufficientStats,
        statistics: KeptStatistics | None,
        ridge: Ridge,
    ) -> State:
        model = _head_of_squares(federation)
        choice = choose_from(ridge, model, stats)
        params = solve_ridge(stats, choice.value, model.intercept)
        kept = kept_by(self.keep, federation, params, statistics)
        return State(params, model, choice, dict(federation.clients), self, kept=kept)


def _head_of_squares(federation: Federation) -> LinearModel:
    model = federation.model
    if not isinstance(model, LinearModel) or not isinstance(model.loss, Squares):
        raise InputError(
            f"A closed form needs a LinearModel of squares; this is a {type(model).__name__} of "
            f"{type(model.loss).__name__}. Train by fedavg, or a head by lbfgs."
        )
    return model
