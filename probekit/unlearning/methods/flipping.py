"""Flipping: for a few rounds the forgotten client trains on random labels beside the others, then the others go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from probekit.unlearning.joint import joint_rounds, one_of, plan_of, positive, shares_of_all, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, retained_rounds

LABELS = {"row": "random", "false": "false", "batch": "random-batch"}


@dataclass(frozen=True)
class Flipping:
    """All clients train for `rounds`, the forgotten one on random labels; then the retained ones alone for `post`.

    `labels`: a random one for each `row`, a `false` one (never its own), or, as the public code has it, one for a whole
    `batch`. `steps`, `batch` and `rate` are the run's own unless given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "flipping"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("target", "fit"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Nguyen et al., 2023"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rounds": (1, 2, 5), "post": (5, 20)}

    rounds: int = 2
    post: int = 20
    labels: str = "row"
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        one_of("flipping:labels", self.labels, LABELS)
        positive(self, "rounds", "steps", "batch", "rate", "rate_scale")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after both phases."""
        plan = plan_of(self, removal)
        flipped = replace(plan, targets=LABELS[self.labels])
        params = joint_rounds(removal, removal.params, (plan, flipped), shares_of_all(removal), self.rounds)
        params = retained_rounds(removal, params, replace(plan, round=plan.round + self.rounds), self.post)
        flops = work(removal, plan, removal.counts, self.rounds + self.post)
        return removal.finish(
            self,
            params=params,
            flops=flops + work(removal, plan, removal.target.counts, self.rounds),
            note=f"{self.rounds} rounds with random labels of the forgotten, then {self.post} without them.",
        )
