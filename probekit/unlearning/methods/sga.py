"""Stochastic gradient ascent: the forgotten client climbs its own loss for some steps.

On a quadratic loss W_t = W_u + (I + rate H_u)^t (W - W_u) grows without bound, so that the distance gone is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.models.fitting import FitPlan
from probekit.protocols import Progress
from probekit.unlearning.joint import plan_of, positive, share_of_norm, target_steps, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, TARGET_RATE, retained_rounds
from probekit.values import Array


@dataclass(frozen=True)
class GradientAscent:
    """`steps` up the forgotten client's loss, and `post` rounds of the retained ones, if any.

    `max_norm`: the farthest it may go, as a share of the parameters' norm (none: no limit). `clip`: the largest norm of
    a gradient. `until`: end once the forgotten client is right on no more than this share of its rows (1 / k: chance).
    `batch` and `rate` are the run's own unless given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "sga"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("target", "fit"), TARGET_RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Li et al., 2021"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"steps": (3, 10, 30), "rate_scale": (0.03, 0.1, 0.3)}

    steps: int = 10
    rate_scale: float = 0.1
    max_norm: float | None = 0.1
    clip: float | None = None
    until: float | None = None
    post: int = 0
    batch: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        positive(self, "steps", "batch", "rate", "rate_scale", "max_norm", "clip", "until")
        further = (("target", "evaluate"),) * (self.until is not None) + (("retained", "fit"), RATE) * bool(self.post)
        object.__setattr__(self, "needs", (*GradientAscent.needs, *further))

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters up there."""
        ball = share_of_norm(self.max_norm, removal.params)
        plan = plan_of(self, removal, clients=removal.target, sign=-1.0, ball=ball, clip=self.clip)
        if self.until is None:
            params, taken = target_steps(removal, removal.params, plan), self.steps
        else:
            params, taken = self._watched(removal, plan)
        if self.post:
            params = retained_rounds(removal, params, plan_of(self, removal, steps=None, scale=1.0), self.post)
        note = f"{taken} steps up the forgotten client's loss: this hides what it taught, and retrains nothing."
        return removal.finish(self, params=params, flops=work(removal, plan, removal.target.counts), note=note)

    def _watched(self, removal: Removal, plan: FitPlan) -> tuple[Array, int]:
        """Step by step, as long as the forgotten client is right often enough."""
        params, progress = removal.params, removal.watch("ascent")
        for number in range(self.steps):
            counts = removal.target.ask("evaluate", {"params": params}).total().arrays["confusion"]
            if float(np.trace(counts)) <= float(self.until or 0) * counts.sum():
                return params, number
            params = target_steps(
                removal, params, replace(plan, steps=1, round=plan.round + number), centre=removal.params
            )
            progress(Progress(number + 1, self.steps))
        return params, self.steps
