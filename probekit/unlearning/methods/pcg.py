"""From the paper's step to the exact answer: conjugate gradients on the retained loss, one round per iteration.

The server's curvature is the preconditioner. A retained gradient at w - s p gives H p = (g(w) - g(w - s p)) / s,
so a round is a broadcast of parameters and the clients' gradients there, as in training. s is chosen so that
s p is as long as w: then no digits are lost in the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.federated.loss import CommonLoss
from probekit.federated.trained import Gradients
from probekit.linear.design import Solution
from probekit.linear.solvers import PASS
from probekit.protocols import Progress
from probekit.unlearning.method import Unlearned, require
from probekit.unlearning.methods.fedremoval import FedRemoval, ServerPlan, server_plan
from probekit.unlearning.removal import Removal

DEFAULT_ROUNDS = 10

Params = NDArray[np.float64]


@dataclass(frozen=True)
class FedRemovalPcg:
    """Up to `rounds` gradient rounds (0: the paper's step), fewer once |g| is `tolerance` of what it was.

    One more round at the end gives the true gradient there: the certificate's residual, and what a further
    removal starts from.
    """

    name: ClassVar[str] = "fedremoval-pcg"
    needs: ClassVar[tuple[Any, ...]] = (*FedRemoval.needs, ("retained", "form"))
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients")
    traits: ClassVar[frozenset[str]] = frozenset()

    rounds: int = DEFAULT_ROUNDS
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 <= self.tolerance < 1:
            raise InputError(
                "fedremoval-pcg takes 0 rounds or more and a tolerance in [0, 1); found "
                f"{self.rounds} and {self.tolerance}."
            )

    @property
    def spec(self) -> str:
        """How it is asked for."""
        return f"fedremoval-pcg:{self.rounds}"

    def plan(self, removal: Removal) -> ServerPlan:
        """What is known before the step."""
        return server_plan(removal)

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after these rounds."""
        require(self, removal)
        plan, loss = server_plan(removal), removal.loss
        params, used = self._descend(removal)
        extra = removal.problem.penalty(removal.ridge) * params
        answers = list(removal.retained.ask("gradient", {"params": params}).each())
        common = sum((one.arrays["gradient"] for one in answers), np.zeros_like(params)) / loss.rows + extra
        left, before = float(np.linalg.norm(common)), float(np.linalg.norm(removal.gradient))
        solution = Solution(params, left / before if before else left, used, "preconditioned gradient rounds")
        squares = removal.server.squares()
        found = {one.client: one.arrays["gradient"] / one.count + extra for one in answers}
        return removal.finish(
            self,
            solution,
            params=params,
            flops=squares.work(used + 1, factored=squares.dense() is not None),
            note=f"{used} gradient rounds and one to check; the retained gradient fell to {solution.residual:.3g}.",
            warnings=plan.warnings,
            gradients=Gradients({name: found[name] for name in removal.counts}),
        )

    def _descend(self, removal: Removal) -> tuple[Params, int]:
        """Preconditioned conjugate gradients on all classes at once; the parameters and the rounds taken.

        Clients that trained in coarser numbers answer in them; when they believe to be a good way on, a round in
        float64 tells the true gradient, and from there it goes on.
        """
        loss, inverse = removal.loss, removal.server.squares().inverse(removal.ridge)
        params, remainder, used = removal.params, removal.gradient, 0
        goal = self.tolerance * float(np.linalg.norm(remainder))
        z = inverse.matvec(remainder)
        if self.rounds == 0:
            return params - z, 0
        coarse = None if removal.problem.precision == "float64" else replace(loss, precision=removal.problem.precision)
        rounds = _Rounds(params, remainder, loss)
        if coarse is not None:
            rounds, used = _Rounds(params, coarse.gradient(params), coarse), 1
        near = goal if coarse is None else max(goal, PASS * float(np.linalg.norm(remainder)))
        direction, product = z, (remainder * z).sum(axis=0)
        progress, first = removal.watch("gradient rounds"), float(np.linalg.norm(remainder)) or 1.0
        while used < self.rounds:
            image = rounds.curvature(direction)
            length = _ratio(product, (direction * image).sum(axis=0))
            params, remainder, used = params - length * direction, remainder - length * image, used + 1
            left = float(np.linalg.norm(remainder))
            progress(Progress(used, self.rounds, residual=left / first))
            if left <= near:
                if coarse is None or used == self.rounds:
                    return params, used
                remainder, used = loss.gradient(params), used + 1
                left = float(np.linalg.norm(remainder))
                if left <= goal:
                    return params, used
                near, product = max(goal, PASS * left), np.zeros_like(product)
            z = inverse.matvec(remainder)
            previous, product = product, (remainder * z).sum(axis=0)
            direction = z + _ratio(product, previous) * direction
        return params, used


@dataclass(frozen=True, eq=False)
class _Rounds:
    """H p from one gradient round, given the gradient at the start from the same clients."""

    start: Params
    gradient: Params
    loss: CommonLoss

    def curvature(self, direction: Params) -> Params:
        """The curvature applied to a direction."""
        length = float(np.linalg.norm(direction))
        if not length:
            return np.zeros_like(direction)
        scale = (float(np.linalg.norm(self.start)) or 1.0) / length
        away: Params = (self.gradient - self.loss.gradient(self.start - scale * direction)) / scale
        return away


def _ratio(above: Params, below: Params) -> Params:
    """above / below, 0 for columns that are already solved."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
