"""The loss of all clients together, known by asking them, and how it goes from round to round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.errors import SolverError
from probekit.federated.federation import Federation
from probekit.federated.message import Answer
from probekit.linear.design import Solution
from probekit.values import Array

EXPLODED = 10.0  # a loss this many times that of the start will not come back


@dataclass(eq=False)
class CommonLoss:
    """The mean ridge loss of all clients' rows, by asking; the ridge is added here, once. Products count as rounds."""

    clients: Federation
    problem: Any
    ridge: float
    rounds: int = 0
    precision: str = ""
    term: Array | None = None
    """A linear term of the mean loss."""

    def gradient(self, params: Array) -> Array:
        """The gradient, the ridge's part included."""
        found = self._mean("gradient", params)
        return found if self.term is None else found + self.term

    def gradient_and_loss(self, params: Array) -> tuple[Array, float]:
        """The gradient and the loss, in one question."""
        total, pull = self._ask("gradient", params, loss=True)
        loss = total.values["loss"] / total.count + float((pull * params).sum()) / 2
        if self.term is not None:
            pull, loss = pull + self.term, loss + float((self.term * params).sum())
        return total.arrays["gradient"] / total.count + pull, loss

    def matvec(self, v: Array) -> Array:
        """The curvature applied: one round."""
        self.rounds += 1
        return self._mean("product", v)

    def dense(self) -> Array | None:
        """Never formed."""
        return None

    def form(self, v: Array) -> float:
        """<v, H v>: one number from each client."""
        total, pull = self._ask("form", v)
        return total.values["form"] / total.count + float((pull * v).sum())

    def _mean(self, kind: str, params: Array) -> Array:
        total, pull = self._ask(kind, params)
        return np.asarray(total.arrays[kind] / total.count + pull)

    def _ask(self, kind: str, params: Array, **plan: bool) -> tuple[Answer, Array]:
        """The sum of the clients' answers, and the ridge's part."""
        precision = self.precision or self.problem.precision
        total = self.clients.ask(kind, {"params": params}, plan, precision=precision).total()
        return total, self.problem.penalty(self.ridge) * params


class LossWatch:
    """Follows the loss from round to round and refuses a run that diverges.

    `bound` is the loss at the problem's start; `remedy` says which rate would do.
    """

    def __init__(self, rate: float, start: Array, bound: float, remedy: Callable[[], str]) -> None:
        self.rate, self.best, self.bound, self.remedy = rate, start, bound, remedy
        self.losses: list[float] = []

    def look(self, params: Array, loss: float) -> None:
        """Note the loss; raises as soon as it is not finite or has exploded."""
        self.losses.append(loss)
        self.bound = max(self.bound, self.losses[0])
        if not loss <= EXPLODED * self.bound:
            self.refuse()
        if loss <= min(self.losses):
            self.best = params

    def judge(self) -> None:
        """Refuse an end that is worse than the start, and still rising."""
        if self.losses[-1] > self.bound and self.losses[-1] > self.losses[-2]:
            self.refuse()

    def refuse(self) -> None:
        """Say that the rounds diverge, and which rate would not."""
        best = Solution(self.best, math.nan, int(np.nanargmin([*self.losses, math.inf])), "fedavg", "the best so far")
        went = f"from {self.losses[0]:.6g} to {self.losses[-1]:.6g}" if self.losses else "out of all bounds"
        raise SolverError(
            f"FedAvg must lower the loss; after {max(len(self.losses) - 1, 0)} rounds at learning rate {self.rate:.6g} "
            f"it went {went}. Lower the learning rate: {self.remedy()}.",
            best,
        )
