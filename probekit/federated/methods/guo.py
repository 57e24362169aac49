"""Logistic regression with a secret linear term, of which rows can be removed by Newton steps (Guo et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.federated.methods.logistic import Logistic
from probekit.federated.trained import Kept
from probekit.federated.training import Training
from probekit.linear.objective import SIGMA, draw_objective, refuse_sigma
from probekit.values import Array

RECORD = "removal-budget"
"""By which name it is kept how far the head may be from the minimum: `spent`, a bound on the gradient of the sum."""


@dataclass(frozen=True)
class Guo(Logistic):
    """A logistic head whose loss has a linear term of independent N(0, `sigma`^2), for the method `guo`.

    minimise sum_i -log softmax(x_i W)[y_i] + penalty/2 |W|^2 + <B, W>; everything is penalised, the intercept too.
    """

    name: ClassVar[str] = "guo"
    keeps: ClassVar[tuple[str, ...]] = ("nothing", RECORD)
    intercept: ClassVar[str] = "penalised"
    intercepts: ClassVar[tuple[str, ...]] = ("penalised",)

    sigma: float = 10.0

    def __post_init__(self) -> None:
        refuse_sigma(self.sigma)

    @property
    def noted(self) -> dict[str, Any]:  # type: ignore[override]
        """The size of the term."""
        return {SIGMA: self.sigma}

    def term(self, training: Training) -> Array | None:
        """Drawn anew, and told to nobody."""
        return draw_objective(training.problem, self.sigma)

    def kept(self, residual: float) -> dict[str, Any]:
        """How much of the budget training itself took."""
        return {"kept": {RECORD: Kept(plain={"spent": residual, "sigma": self.sigma, "requests": 0})}}
