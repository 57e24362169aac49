"""PUF: one round in which the forgotten client's update counts negatively, then rounds without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from probekit.unlearning.joint import joint_round, plan_of, positive, shares_of_all, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, retained_rounds


@dataclass(frozen=True)
class NegatedUpdate:
    """w + sum_R p_c Delta_c - `gamma` p_u Delta_u, then `post` rounds of the retained clients.

    `steps`, `batch` and `rate` are the run's own unless given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "puf"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("target", "fit"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Mora et al., 2026"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"gamma": (0.5, 1.0, 2.0), "post": (5, 20)}

    gamma: float = 1.0
    post: int = 10
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "gamma", "steps", "batch", "rate", "rate_scale")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after the round and those without the forgotten."""
        plan, (stay, leave) = plan_of(self, removal), shares_of_all(removal)
        negated = {name: -self.gamma * share for name, share in leave.items()}
        params = joint_round(removal, removal.params, (plan, plan), (stay, negated))
        params = retained_rounds(removal, params, replace(plan, round=plan.round + 1), self.post)
        flops = work(removal, plan, removal.target.counts) + work(removal, plan, removal.counts, 1 + self.post)
        note = f"One round with the forgotten client's update negated, {self.post} rounds without it."
        return removal.finish(self, params=params, flops=flops, note=note)
