"""Conjugate gradients across the clients: an iteration is a round, a direction down and a product up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError, SolverError
from probekit.federated.loss import CommonLoss
from probekit.federated.trained import RoundState, Trained
from probekit.federated.training import Training
from probekit.linear.design import Solution
from probekit.linear.solvers import ConjugateGradient
from probekit.protocols import Progress
from probekit.values import Array

NAME = "federated-cg"
NOTE = "The residual is the common loss's gradient over that at the start."


@dataclass(frozen=True)
class FederatedCg:
    """Ends at `tolerance` (the true relative residual) or with the rounds.

    The server's rows, where it has some, make the preconditioner.
    """

    name: ClassVar[str] = "cg"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "quadratic"), ("problem", "plain"), ("clients", "product"))
    keeps: ClassVar[tuple[str, ...]] = ("gradients",)

    rounds: int = 200
    tolerance: float = 1e-6
    precondition: bool = True

    def train(self, training: Training) -> Trained:
        """Solve H away = g from the start, one product a round."""
        if not 0 < training.ridge < np.inf:
            raise InputError(f"Training by conjugate gradients needs a ridge above 0; found {training.ridge}.")
        problem, common = training.problem, CommonLoss(training.clients, training.problem, training.mean_ridge)
        with training.purpose("rounds"):
            state, scale = self._solve(training, common)
            gradient, loss = common.gradient_and_loss(state.params)
        residual = float(np.linalg.norm(gradient)) / scale
        solution = Solution(state.params, residual, state.rounds, NAME, NOTE)
        head = problem.head(state.params, ridge=training.ridge, recipe=training_recipe(training, solution))
        kept = training.kept_gradients(state.params, "gradients at the end")
        return training.finish(head, solution, method=NAME, rounds=state.rounds, losses=(loss,), gradients=kept)

    def _solve(self, training: Training, common: CommonLoss) -> tuple[RoundState, float]:
        problem, watch = training.problem, training.watch("rounds")
        params = problem.start
        gradient = common.gradient(params)
        scale, before = float(np.linalg.norm(gradient)) or 1.0, 0
        common.rounds = 1
        if training.resume is not None:
            params, before = training.resume.params, training.resume.rounds
            gradient, common.rounds = common.gradient(params), before + 2
        left = float(np.linalg.norm(gradient))

        def step(_: int, residual: float, away: Array) -> None:
            watch(Progress(common.rounds, max(self.rounds + 2, common.rounds), residual=residual * left / scale))
            training.reached(params - away, common.rounds)

        inverse = None
        if self.precondition and training.server is not None:
            inverse = problem.preconditioner(training.server.squares(problem.precision), training.mean_ridge)
        wanted = self.tolerance * scale / left if left else 1.0
        solver = ConjugateGradient(wanted, max(self.rounds - before, 0), inverse, watch=step)
        try:
            away = solver.solve(common, gradient)
        except SolverError as error:
            if not isinstance(error.best, Solution):
                raise
            away = error.best
        return RoundState(params - away.value, common.rounds), scale


def training_recipe(training: Training, solution: Solution) -> dict[str, Any]:
    """What a head that was trained by rounds says of itself."""
    solved = {"solver": solution.method, "note": solution.note, "residual": solution.residual, "rounds": solution.steps}
    recipe = {**training.problem.recipe, "scaling": training.scaling, **solved, "rows": training.rows}
    return {**recipe, "exact_unlearning": False}
