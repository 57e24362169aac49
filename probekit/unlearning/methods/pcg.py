"""From the paper's step to the exact answer: conjugate gradients on the retained loss, one round per iteration.

The server's curvature is the preconditioner. A retained gradient at w - s p gives H p = (g(w) - g(w - s p)) / s,
so a round is a broadcast of parameters and the clients' gradients there, as in training. s is chosen so that
s p is as long as w: then no digits are lost in the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.federated.loss import CommonLoss
from probekit.federated.trained import Gradients
from probekit.linear.design import Solution
from probekit.linear.solvers import ConjugateGradient
from probekit.protocols import Progress
from probekit.unlearning.method import Unlearned
from probekit.unlearning.methods.fedremoval import FedRemoval, server_plan
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

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after these rounds."""
        squares, check = removal.server.squares(), _Check(removal)
        params, used = self._descend(removal, check)
        left, before = (float(np.linalg.norm(one)) for one in (check.residual(params), removal.gradient))
        solution = Solution(params, left / before if before else left, used, "preconditioned gradient rounds")
        return removal.finish(
            self,
            solution,
            params=params,
            flops=squares.work(used + 1, factored=squares.dense() is not None),
            note=f"{used} gradient rounds and one to check; the retained gradient fell to {solution.residual:.3g}.",
            warnings=server_plan(removal).warnings,
            gradients=Gradients(check.gradients),
        )

    def _descend(self, removal: Removal, check: _Check) -> tuple[Params, int]:
        """Preconditioned conjugate gradients on all classes at once; the parameters and the rounds taken.

        Clients that trained in coarser numbers answer in them; when they believe to be a good way on, a round in
        float64 tells the true gradient, and from there it goes on.
        """
        loss, params, gradient = removal.loss, removal.params, removal.gradient
        inverse = removal.server.squares().inverse(removal.ridge)
        if self.rounds == 0:
            return params - inverse.matvec(gradient), 0
        first, coarse = 0, None
        if removal.problem.precision != "float64":
            rough = replace(loss, precision=removal.problem.precision)
            first, coarse = 1, _Rounds(params, rough.gradient(params), rough)
        progress = removal.watch("gradient rounds")

        def step(done: int, left: float, _: Params) -> None:
            progress(Progress(first + done, self.rounds, residual=left))

        solver = ConjugateGradient(self.tolerance, self.rounds - first, inverse, coarse, step)
        rounds = _Rounds(params, gradient, loss)
        found = solver.descend(rounds, -gradient, start=params, residual=check.residual, look_cost=1)
        return found.value, first + found.steps


@dataclass(eq=False)
class _Check:
    """The true gradient at some parameters, by a round of its own; what was asked last is not asked again."""

    removal: Removal
    params: Params | None = None
    gradients: dict[str, Params] = field(default_factory=dict)

    def residual(self, params: Params) -> Params:
        """The retained loss's gradient, negative."""
        if params is not self.params:
            self.params, self.gradients = params, self.removal.gradients_at(params)
        counts = self.removal.counts
        total = sum((counts[name] * one for name, one in self.gradients.items()), np.zeros_like(params))
        return -total / self.removal.rows


@dataclass(frozen=True, eq=False)
class _Rounds:
    """H p from one gradient round, given the gradient at the start from the same clients."""

    start: Params
    gradient: Params
    loss: CommonLoss

    def matvec(self, direction: Params) -> Params:
        """The curvature applied to a direction."""
        length = float(np.linalg.norm(direction))
        if not length:
            return np.zeros_like(direction)
        scale = (float(np.linalg.norm(self.start)) or 1.0) / length
        return np.asarray((self.loss.gradient(self.start + scale * direction) - self.gradient) / scale)

    def dense(self) -> Params | None:
        """Never formed."""
        return None
