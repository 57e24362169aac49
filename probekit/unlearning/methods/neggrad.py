"""NegGrad+: down the retained clients' loss and up the forgotten one's at once, beta L_R - (1 - beta) L_u.

On quadratic losses it is bounded iff beta > l / (1 + l), l = lambda_max(H_R^-1 H_u), and its optimum is then
(beta H_R - (1 - beta) H_u)^-1 (beta b_R - (1 - beta) b_u).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from probekit.errors import InputError
from probekit.unlearning.joint import joint_rounds, plan_of, positive, share_of_norm, target_shares, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE


@dataclass(frozen=True)
class NegGrad:
    """`rounds` in which the retained clients descend (with weight `beta`) and the forgotten one climbs (1 - `beta`).

    `max_norm`: how far from the start the forgotten one may climb, as a share of the parameters' norm. `steps`,
    `batch` and `rate` are the run's own unless given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "neggrad"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("target", "fit"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Kurmanji et al., 2023"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"beta": (0.8, 0.9, 0.95), "rounds": (5, 20)}

    beta: float = 0.9
    rounds: int = 20
    max_norm: float | None = 0.3
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "beta", "rounds", "max_norm", "steps", "batch", "rate", "rate_scale")
        if self.beta >= 1:
            raise InputError(f"neggrad:beta lies between 0 and 1; found {self.beta}. With 1 it is cf.")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after the rounds."""
        plan = plan_of(self, removal)
        climbing = replace(plan, sign=-1.0, ball=share_of_norm(self.max_norm, removal.params))
        shares = (
            {name: self.beta * share for name, share in removal.shares(removal.counts).items()},
            {name: (1 - self.beta) * share for name, share in target_shares(removal).items()},
        )
        start = removal.params
        params = joint_rounds(removal, start, (plan, climbing), shares, self.rounds, centre=start)
        return removal.finish(
            self,
            params=params,
            flops=work(removal, plan, removal.counts, self.rounds)
            + work(removal, plan, removal.target.counts, self.rounds),
            note=f"{self.rounds} rounds down the retained loss and up the forgotten one, {self.beta:g} to 1.",
        )
