"""MoDe: momentum degradation towards a model that never saw the forgotten, then guidance by that model's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from probekit.errors import InputError
from probekit.protocols import Progress
from probekit.unlearning.joint import joint_rounds, plan_of, positive, random_params, shares_of_all, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, retained_rounds


@dataclass(frozen=True)
class MomentumDegradation:
    """`degrade` rounds in which the retained clients train a fresh model that is drawn in, then `rounds` of guidance.

    The fresh model begins at the problem's start and small random numbers (`start` / sqrt(columns)), a network's at
    weights made anew; after each of its rounds w becomes `momentum` w + (1 - `momentum`) fresh. In guidance all clients
    train, the forgotten one on the fresh model's soft labels. `steps`, `batch` and `rate` are the run's own unless
    given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "mode"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("target", "fit"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Zhao et al., 2023"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"momentum": (0.8, 0.95), "degrade": (5, 20), "rounds": (5, 20)}

    rounds: int = 10
    degrade: int = 5
    momentum: float = 0.95
    start: float = 0.1
    seed: int = 0
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "rounds", "degrade", "steps", "batch", "rate", "rate_scale")
        if not 0 <= self.momentum < 1:
            raise InputError(f"mode:momentum lies in [0, 1); found {self.momentum}.")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after degradation and guidance."""
        plan, params, fresh = (
            plan_of(self, removal),
            removal.params,
            random_params(removal.problem, self.seed, scale=self.start),
        )
        progress = removal.watch("degradation")
        for number in range(self.degrade):
            fresh = retained_rounds(removal, fresh, replace(plan, round=plan.round + number), 1)
            params = self.momentum * params + (1 - self.momentum) * fresh
            progress(Progress(number + 1, self.degrade))
        plan = replace(plan, round=plan.round + self.degrade)
        plans = plan, replace(plan, targets="teacher")
        params = joint_rounds(removal, params, plans, shares_of_all(removal), self.rounds, teacher=fresh)
        return removal.finish(
            self,
            params=params,
            flops=work(removal, plan, removal.counts, self.degrade + self.rounds)
            + work(removal, plan, removal.target.counts, self.rounds),
            note=f"{self.degrade} rounds of degradation, {self.rounds} of guidance by a model without the forgotten.",
        )
