"""From the paper's step to the exact answer: conjugate gradients on the retained loss, one round per iteration.

The server's curvature is the preconditioner. A retained gradient at w - s p gives H p = (g(w) - g(w - s p)) / s,
so a round is a broadcast of parameters and the clients' gradients there, as in training. s is chosen so that
s p is as long as w: then no digits are lost in the difference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.federated.client import penalty
from probekit.federated.trained import Progress, Trained
from probekit.linear.design import Solution
from probekit.linear.solvers import PASS
from probekit.unlearning.fedremoval import finished
from probekit.unlearning.method import NOTHING, Material, Unlearned
from probekit.unlearning.remainder import penalised_gradients
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.retained import RetainedLoss
from probekit.unlearning.step import Plan, Ready, ready

DEFAULT_ROUNDS = 10

Params = NDArray[np.float64]


@dataclass(frozen=True)
class FedRemovalPcg:
    """Up to `rounds` gradient rounds (0: the paper's step), fewer once |g| is `tolerance` of what it was.

    One more round at the end tells the true gradient there: the certificate's residual, and what a further
    removal starts from.
    """

    rounds: int = DEFAULT_ROUNDS
    tolerance: float = 1e-12
    needs: frozenset[str] = frozenset({"server set", "retained clients"})

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 <= self.tolerance < 1:
            raise InputError(
                "fedremoval-pcg takes 0 rounds or more and a tolerance in [0, 1); found "
                f"{self.rounds} and {self.tolerance}."
            )

    @property
    def name(self) -> str:
        """How it is asked for."""
        return f"fedremoval-pcg:{self.rounds}"

    def plan(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Plan:
        """What is known before the step."""
        return ready(self, trained, request, material).plan

    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Unlearned:
        """The head after these rounds."""
        start = time.perf_counter()
        here = ready(self, trained, request, material)
        if here.loss is None:
            raise InputError("fedremoval-pcg asks the retained clients for gradients; none answers.")
        params, used = self._descend(here, here.loss)
        answers = here.loss.clients.gradients(params)
        left = float(np.linalg.norm(here.loss.combined(answers, params)))
        before = float(np.linalg.norm(here.gradient))
        solution = Solution(params, left / before if before else left, used, "preconditioned gradient rounds")
        flops = here.flops(used + 1, factored=not here.whole)
        cost = replace(here.cost(used + 1), flops=flops, seconds=time.perf_counter() - start)
        note = f"{used} gradient rounds and one to check; the retained gradient fell to {solution.residual:.3g}."
        found = finished(
            self.name,
            trained,
            here,
            request=request,
            params=params,
            solution=solution,
            cost=cost,
            note=note,
        )
        gradients = penalised_gradients(answers, penalty(trained.design, here.ridge) * params)
        return replace(found, trained_after=replace(found.trained_after, gradients=gradients))

    def _descend(self, here: Ready, loss: RetainedLoss) -> tuple[Params, int]:
        """Preconditioned conjugate gradients on all classes at once; the parameters and the rounds taken.

        Clients that trained in coarser numbers answer in them; when they believe to be a good way on, a round in
        float64 tells the true gradient, and from there it goes on.
        """
        inverse = here.inverse()
        params, remainder, used = here.start, here.gradient, 0
        goal = self.tolerance * float(np.linalg.norm(remainder))
        z = inverse.matvec(remainder)
        if self.rounds == 0:
            return params - z, 0
        rounds, rough = _Rounds(here.start, here.gradient, loss), loss.rough
        if rough is not None:
            rounds, used = _Rounds(here.start, rough.gradient(here.start), rough), 1
        near = goal if rough is None else max(goal, PASS * float(np.linalg.norm(remainder)))
        direction, product = z, (remainder * z).sum(axis=0)
        told, first = here.watch("gradient rounds"), float(np.linalg.norm(remainder)) or 1.0
        while used < self.rounds:
            image = rounds.curvature(direction)
            length = _ratio(product, (direction * image).sum(axis=0))
            params, remainder, used = params - length * direction, remainder - length * image, used + 1
            left = float(np.linalg.norm(remainder))
            told(Progress(used, self.rounds, residual=left / first))
            if left <= near:
                if rough is None or used == self.rounds:
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
    loss: RetainedLoss

    def curvature(self, direction: Params) -> Params:
        """The curvature applied to a direction."""
        length = float(np.linalg.norm(direction))
        if not length:
            return np.zeros_like(direction)
        scale = (float(np.linalg.norm(self.start)) or 1.0) / length
        away: Params = (self.gradient - self.loss.gradient(self.start - scale * direction)) / scale
        return away


def load(argument: str) -> FedRemovalPcg:
    """The method, for the registry: `fedremoval-pcg[:ROUNDS]`."""
    if argument and not argument.isdecimal():
        raise InputError(f"fedremoval-pcg:ROUNDS takes a whole number of rounds; found {argument!r}.")
    return FedRemovalPcg(int(argument or DEFAULT_ROUNDS))


def _ratio(above: Params, below: Params) -> Params:
    """above / below, 0 for columns that are already solved."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
