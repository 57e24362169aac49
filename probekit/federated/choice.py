"""Choosing the ridge of a head by asking the clients: errors of rows left out, statistics of folds or of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.errors import InputError, NotFoundError
from probekit.federated.federation import Federation
from probekit.federated.summation import StatisticsTree
from probekit.linear.folds import cross_validate
from probekit.linear.leaveout import refined_choice, validation_of
from probekit.linear.path import RidgePath, Validation, decompose
from probekit.linear.target_path import TargetPaths
from probekit.linear.targets import TargetStats
from probekit.models.target_problem import SPREAD
from probekit.registry import nearest
from probekit.values import LABELS, Array

WAYS = ("auto", "auto:loo", "auto:kfold", "auto:clients")
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Choice:
    """A ridge, the errors it was chosen by, and what is known of the system there.

    A ridge chosen with a client's rows still depends on them after the client left.
    """

    ridge: float
    validation: Validation
    effective_dimension: float
    condition: float

    @property
    def at_edge(self) -> bool:
        """Whether the best ridge is the smallest or largest that was tried."""
        return self.ridge in (self.validation.ridges[0], self.validation.ridges[-1])

    @property
    def summary(self) -> RidgeChoice:
        """What is worth saying of it."""
        found = self.validation
        best = int(np.argmin(found.squared))
        wrong = None if found.wrong is None else float(found.wrong[best])
        lowest, highest, squared = float(found.ridges[0]), float(found.ridges[-1]), float(found.squared[best])
        return RidgeChoice(found.scheme, len(found.ridges), lowest, highest, squared, wrong, self.at_edge)


@dataclass(frozen=True)
class RidgeChoice:
    """How a ridge was chosen: by which errors, among how many from the lowest to the highest, and with what error."""

    by: str
    candidates: int
    lowest: float
    highest: float
    squared_error: float
    wrong_share: float | None
    at_edge: bool


def choose(clients: Federation, problem: Any, *, how: str = "auto", scaling: str = "mean", seed: int = 0) -> Choice:
    """The ridge of least squared error on rows left out, among 45.

    "auto" and "auto:loo": each row in turn, exactly; clients answer with sums of errors. "auto:kfold": one of 5 random
    parts of every client's rows in turn. "auto:clients": one client in turn. Rows stay with their clients.
    """
    if how not in WAYS:
        raise NotFoundError(f"There is no way {how!r} of choosing a ridge. {nearest(how, list(WAYS))}")
    if "statistics" not in problem.traits:
        raise InputError("This problem has no statistics to choose a ridge from. Give a number.")
    options: Any = {"scaling": scaling, "standardise": problem.standardise, "class_weight": problem.class_weight}
    parts = {one.client: problem.stats(one.arrays) for one in clients.ask("statistics").each()}
    total = StatisticsTree.of(parts).total
    if isinstance(total, TargetStats):
        return _choose_for_targets(clients, total, how=how, scaling=scaling, standardise=problem.standardise)
    path = decompose(total, **options)
    if how in ("auto", "auto:loo"):
        ridge, validation = refined_choice(path.grid(), lambda some, dtype: _left_out(clients, path, some, dtype))
    else:
        each = [parts[name] for name in clients.clients]
        if how == "auto:kfold":
            folds = min(FOLDS, sum(clients.counts.values()))
            folded = clients.ask("statistics", plan={"folds": folds, "seed": seed}).total().arrays
            each = [problem.stats({name: sums[number] for name, sums in folded.items()}) for number in range(folds)]
        validation = cross_validate(each, ridges=path.grid(), **options)
        ridge = validation.best()
    return Choice(ridge, validation, path.effective_dimension(ridge), path.condition(ridge))


def _choose_for_targets(clients: Federation, total: TargetStats, *, how: str, scaling: str, standardise: Any) -> Choice:
    """One ridge for all targets: each one's errors of left-out rows relative to its spread, as the clients sum them."""
    if how not in ("auto", "auto:loo"):
        raise InputError(f"For several labels or real targets a ridge is chosen by auto:loo, or given; found {how}.")
    paths = TargetPaths.of(total, scaling=scaling, standardise=standardise)

    def errors(ridges: Array, dtype: str) -> Validation:
        squared = np.zeros(len(ridges))
        for labels, path in paths.paths:
            arrays, plan = path.shipped
            own = {"ridges": ridges, LABELS: labels, SPREAD: paths.spread[labels]}
            squared += clients.ask("leave-out", {**arrays, **own}, {**plan, "dtype": dtype}).total().arrays["squared"]
        return Validation("leave-one-out", ridges, squared / len(paths.spread))

    ridge, validation = refined_choice(paths.grid(), errors)
    largest = max((path for _, path in paths.paths), key=lambda path: path.system.weight)
    return Choice(ridge, validation, largest.effective_dimension(ridge), largest.condition(ridge))


def _left_out(clients: Federation, path: RidgePath, ridges: Array, dtype: str) -> Validation:
    arrays, plan = path.shipped
    total = clients.ask("leave-out", {**arrays, "ridges": ridges}, {**plan, "dtype": dtype}).total().arrays
    return validation_of(path, ridges, total["squared"], total["wrong"])
