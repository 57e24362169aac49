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
from probekit.federated.trained import Trained
from probekit.learning import Solution
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
        """Preconditioned conjugate gradients on all classes at once; the parameters and the rounds taken."""
        inverse = here.inverse()
        params, remainder = here.start, here.gradient
        goal = self.tolerance * float(np.linalg.norm(remainder))
        z = inverse.matvec(remainder)
        if self.rounds == 0:
            return params - z, 0
        direction, product = z, (remainder * z).sum(axis=0)
        for used in range(1, self.rounds + 1):
            image = _curvature(here, loss, direction)
            length = _ratio(product, (direction * image).sum(axis=0))
            params, remainder = params - length * direction, remainder - length * image
            if float(np.linalg.norm(remainder)) <= goal:
                return params, used
            z = inverse.matvec(remainder)
            previous, product = product, (remainder * z).sum(axis=0)
            direction = z + _ratio(product, previous) * direction
        return params, self.rounds


def load(argument: str) -> FedRemovalPcg:
    """The method, for the registry: `fedremoval-pcg[:ROUNDS]`."""
    if argument and not argument.isdecimal():
        raise InputError(f"fedremoval-pcg:ROUNDS takes a whole number of rounds; found {argument!r}.")
    return FedRemovalPcg(int(argument or DEFAULT_ROUNDS))


def _curvature(here: Ready, loss: RetainedLoss, direction: Params) -> Params:
    """H p from one gradient round."""
    length = float(np.linalg.norm(direction))
    if not length:
        return np.zeros_like(direction)
    scale = (float(np.linalg.norm(here.start)) or 1.0) / length
    away: Params = (here.gradient - loss.gradient(here.start - scale * direction)) / scale
    return away


def _ratio(above: Params, below: Params) -> Params:
    """above / below, 0 for columns that are already solved."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
