"""Logistic regression across clients: by scikit-learn where one client has all rows, else by asked gradients."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError, SolverError
from probekit.federated.loss import CommonLoss
from probekit.federated.trained import Trained
from probekit.federated.training import Training
from probekit.linear.design import ClientStats, Solution
from probekit.linear.lapack import linalg, optimize
from probekit.linear.logistic import logistic_recipe
from probekit.linear.ridge import penalty_of
from probekit.models.fitting import FitPlan
from probekit.models.linear_problem import HeadProblem
from probekit.models.logistic_problem import LogisticProblem
from probekit.protocols import Progress
from probekit.values import Array

MEMORY = 50
"""Pairs of steps and gradients that L-BFGS remembers."""


@dataclass(frozen=True)
class Logistic:
    """Ends at `tolerance`, the gradient relative to that at zero, or is refused after so many `rounds`.

    `ridge` is in sum scaling, 1 / C of scikit-learn; None leaves it to the caller.
    """

    name: ClassVar[str] = "logistic"
    needs: ClassVar[tuple[Any, ...]] = (("clients", "fit"), ("clients", "gradient"), ("clients", "statistics"))
    keeps: ClassVar[tuple[str, ...]] = ()
    scaling: ClassVar[str] = "sum"
    intercept: ClassVar[str] = "free"
    intercepts: ClassVar[tuple[str, ...]] = ("free", "none")

    tolerance: float = 1e-6
    rounds: int = 2000
    ridge: float | None = 1.0

    def configure(self, problem: Any) -> LogisticProblem:
        """The same head with another loss."""
        if not hasattr(problem, "design"):
            raise InputError(f"Training by logistic is for heads on embeddings; found a {problem.backend} problem.")
        if problem.design.intercept not in self.intercepts:
            known = " or ".join(f'"{one}"' for one in self.intercepts)
            raise InputError(
                f'A {self.name} head has an intercept that is {known}; found "{problem.design.intercept}".'
            )
        return LogisticProblem(**{one.name: getattr(problem, one.name) for one in fields(HeadProblem)})

    def train(self, training: Training) -> Trained:
        """Ask the only client to fit, or all for gradients."""
        penalty = penalty_of(training.ridge, training.scaling, training.rows)
        if not penalty > 0:
            raise InputError(f"A logistic head needs a ridge above 0; found {training.ridge:g}.")
        common, term = CommonLoss(training.clients, training.problem, training.mean_ridge), self.term(training)
        if term is not None:
            common = replace(common, term=term / training.rows)
        with training.purpose("rounds"):
            scale = float(np.linalg.norm(common.gradient(training.problem.start))) or 1.0
            alone = len(training.counts) == 1 and term is None
            params, steps = self._alone(training) if alone else self._asked(training, common, scale)
            gradient, loss = common.gradient_and_loss(params)
        residual = float(np.linalg.norm(gradient)) / scale
        solution = Solution(params, residual, steps, "newton-cg" if alone else "l-bfgs")
        if not residual <= self.tolerance:
            raise SolverError(
                f"A logistic head wanted a relative gradient of {self.tolerance:g} and reached {residual:g} in {steps} "
                "rounds. Take a larger ridge or tolerance.",
                solution,
            )
        recipe = logistic_recipe(training.problem.design, c=1 / penalty, rows=training.rows, residual=residual)
        head = training.problem.head(params, ridge=penalty, recipe={**recipe, **self.noted})
        more = self.kept(float(np.linalg.norm(gradient)) * training.rows)
        return training.finish(head, solution, method=self.name, rounds=steps, losses=(loss,), objective=term, **more)

    noted: ClassVar[dict[str, Any]] = {}
    """What a head's recipe says besides."""

    def term(self, training: Training) -> Array | None:
        """A linear term of the loss's sum; None: there is none."""
        return None

    def kept(self, residual: float) -> dict[str, Any]:
        """What is kept beside the head, given the norm of the gradient of the loss's sum there."""
        return {}

    def _alone(self, training: Training) -> tuple[Array, int]:
        plan = FitPlan(ridge=training.mean_ridge).plain
        [answer] = training.clients.ask("fit", {"params": training.problem.start}, plan).each()
        return answer.arrays["params"], 1

    def _asked(self, training: Training, common: CommonLoss, scale: float) -> tuple[Array, int]:
        """L-BFGS on the server in coordinates V, params = T V, in which embeddings have no scale of their own."""
        problem, watch, left = training.problem, training.watch("rounds"), list[float]()
        T = whitening(problem.stats(training.clients.ask("statistics").total().arrays), problem.penalty(common.ridge))

        def both(flat: Array) -> tuple[float, Array]:
            gradient, loss = common.gradient_and_loss(T @ flat.reshape(problem.shape))
            left.append(float(np.linalg.norm(gradient)) / scale)
            watch(Progress(len(left), max(len(left), self.rounds), loss, residual=left[-1]))
            return loss, (T.T @ gradient).ravel()

        def look(_: Array) -> None:
            if left[-1] <= self.tolerance / 100:
                raise StopIteration

        options = {"maxiter": self.rounds, "maxfun": 2 * self.rounds, "gtol": 0.0, "ftol": 0.0, "maxcor": MEMORY}
        how: Any = {"jac": True, "method": "L-BFGS-B", "callback": look, "options": options}
        found = optimize.minimize(both, problem.start.ravel(), **how)
        params = T @ np.asarray(found.x).reshape(problem.shape)
        return params if common.term is not None else params - params.mean(axis=1, keepdims=True), len(left)


def whitening(stats: ClientStats, penalty: Array) -> Array:
    """T with T T^T close to the inverse curvature at zero, the embeddings centred where an intercept is free."""
    design, count = stats.design, stats.count
    gram, size = stats.total_gram / count, design.dimension
    mean = gram[-1, :size] if design.intercept == "free" else np.zeros(size)
    # a softmax's curvature is about 1/k of the squares' where classes are even
    curvature = (gram[:size, :size] - np.outer(mean, mean)) / design.classes + np.diag(penalty[:size, 0])
    lower = linalg.cholesky(curvature, lower=True)
    found = np.eye(design.columns)
    found[:size, :size] = linalg.solve_triangular(lower, np.eye(size), lower=True).T
    if design.intercept == "free":
        found[-1, :size] = -mean @ found[:size, :size]
    return found
