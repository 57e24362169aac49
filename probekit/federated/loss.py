"""The loss of all clients together, known by asking them: the ridge is added once, by whoever asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.federated.federation import Federation

Array = NDArray[np.float64]


@dataclass(eq=False)
class CommonLoss:
    """The mean ridge loss of all clients' rows, by asking; products are counted as rounds."""

    clients: Federation
    problem: Any
    ridge: float
    rounds: int = field(default=0)
    precision: str = ""

    @property
    def rows(self) -> int:
        """Of all clients."""
        return sum(self.clients.counts.values())

    def gradient(self, params: Array) -> Array:
        """The gradient, the ridge's part included."""
        return self._mean("gradient", params)

    def gradient_and_loss(self, params: Array) -> tuple[Array, float]:
        """The gradient and the loss, in one question."""
        total = self.clients.ask("gradient", {"params": params}, {"loss": True}, precision=self._numbers).total()
        penalty = self.problem.penalty(self.ridge)
        loss = total.values["loss"] / total.count + float((penalty * params * params).sum()) / 2
        return total.arrays["gradient"] / total.count + penalty * params, loss

    def matvec(self, v: Array) -> Array:
        """The curvature applied: one round."""
        self.rounds += 1
        return self._mean("product", v)

    def dense(self) -> Array | None:
        """Never formed."""
        return None

    def form(self, v: Array) -> float:
        """<v, H v>: one number from each client."""
        total = self.clients.ask("form", {"params": v}, precision=self._numbers).total()
        return total.values["form"] / total.count + float((self.problem.penalty(self.ridge) * v * v).sum())

    @property
    def _numbers(self) -> str:
        return self.precision or self.problem.precision

    def _mean(self, kind: str, params: Array) -> Array:
        total = self.clients.ask(kind, {"params": params}, precision=self._numbers).total()
        return np.asarray(total.arrays[kind] / total.count + self.problem.penalty(self.ridge) * params)
