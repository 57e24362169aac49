"""One round: clients send statistics, the server adds them up and solves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.federated.training import Training
from probekit.linear.objective import SIGMA, draw_objective, refuse_unhidden
from probekit.linear.ridge import CHOLESKY
from probekit.linear.solvers import Solver
from probekit.linear.system import ClassWeight, Standardisation


@dataclass(frozen=True)
class ClosedForm:
    """The minimum of the ridge loss, from summed statistics."""

    name: ClassVar[str] = "closed-form"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "statistics"), ("clients", "statistics"))
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients")
    traits: ClassVar[frozenset[str]] = frozenset({"minimum"})

    standardise: str | Standardisation = "none"
    class_weight: ClassWeight = None
    normalise_classes: bool = False
    solver: Solver = field(default=CHOLESKY, repr=False)

    def configure(self, problem: Any) -> Any:
        """The problem with this feature scaling and these class weights."""
        weighing: Any = {"class_weight": self.class_weight, "normalise_classes": self.normalise_classes}
        return replace(problem, standardise=self.standardise, **weighing)

    def train(self, training: Training) -> Trained:
        """Ask once, add up, solve."""
        problem = training.problem
        if training.objective_noise is not None:
            design = problem.design
            seen = {"intercept": design.intercept, "arithmetic": design.arithmetic, "fit_view": problem.plain["view"]}
            others: Any = {"weighted": self.class_weight is not None, "normalised": self.normalise_classes}
            refuse_unhidden(ridge=training.ridge, keep=training.keep, **seen, **others)
        with training.purpose("statistics"):
            kept = training.keep == "statistics"
            parts = StatisticsTree.of(training.statistics(), keep_sums=True) if kept else None
            total = parts.total if parts else problem.stats(training.clients.ask("statistics").total().arrays)
        noise = training.objective_noise
        term = None if noise is None else draw_objective(total, noise)
        head, solution = problem.minimum(total, training.ridge, scaling=training.scaling, term=term, solver=self.solver)
        if noise is not None:
            head = replace(head, recipe={**head.recipe, SIGMA: noise})
        gradients = training.kept_gradients(problem.params(head))
        return training.finish(head, solution, method=self.name, statistics=parts, objective=term, gradients=gradients)
