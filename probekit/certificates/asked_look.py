"""A head against the retained loss where clients answer and nothing is summed: the gradient, and the ridge below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.second_look import Range, range_of
from probekit.federated.federation import Federation

Array = NDArray[np.float64]

ROUNDING = 2.0**-53


@dataclass(frozen=True, eq=False)
class AskedLook:
    """The mean loss's gradient as clients answered it (and what adding up may have hidden, by class), the ridge
    where it holds every parameter, and the rows' mean square: no curvature is larger than both together."""

    gradient: Array
    error: Array
    ridge: Fraction
    energy: Fraction

    @classmethod
    def of(
        cls, params: Array, objective: Mapping[str, Any], problem: Any, clients: Federation, term: Array | None
    ) -> AskedLook:
        """One gradient round at these parameters; the answers are taken as they come."""
        rows = sum(clients.counts.values())
        total, sizes, number = np.zeros_like(params), np.zeros(params.shape[1]), 8
        for one in clients.ask("gradient", {"params": params}, precision="float64").each():
            total, number = total + one.arrays["gradient"], number + 1
            sizes = sizes + np.linalg.norm(one.arrays["gradient"], axis=0)
        ridge = objective["ridge"] / (rows if objective["scaling"] == "sum" else 1)
        pull = problem.penalty(ridge) * params
        gradient = (total if term is None else total + term) / rows + pull
        sizes = sizes / rows + np.linalg.norm(pull, axis=0) + np.linalg.norm(gradient, axis=0)
        squares = clients.ask("scales").total().values["energy"]
        held = bool((problem.penalty(ridge) > 0).all())
        found = Fraction(ridge) if held else Fraction(0)
        return cls(gradient, 2 * number * ROUNDING * sizes, found, Fraction(squares) / rows)

    def residuals(self) -> tuple[Range, ...]:
        """The gradient's norm for each class, and last for all together."""
        norms, room = np.linalg.norm(self.gradient, axis=0), 1 + 2.0**-40
        pairs = zip((norms / room - self.error).tolist(), (norms * room + self.error).tolist(), strict=True)
        whole, off = float(np.linalg.norm(norms)), float(np.linalg.norm(self.error))
        return tuple(range_of(*one) for one in (*pairs, (whole / room - off, whole * room + off)))

    def curvature(self) -> Range:
        """The smallest curvature of the mean loss."""
        return Range(self.ridge, self.ridge + self.energy)

    def distance(self) -> Range:
        """From the head's parameters to the minimum's."""
        return self._over(self.residuals()[-1])

    def excess(self) -> Range:
        """The mean loss above its minimum."""
        norm = self.residuals()[-1]
        squared = Range(norm.low**2 / 2, None if norm.high is None else norm.high**2 / 2)
        return self._over(squared)

    def _over(self, one: Range) -> Range:
        high = one.high / self.ridge if one.high is not None and self.ridge else None
        return Range(one.low / (self.ridge + self.energy), high)
