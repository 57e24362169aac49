"""Continued training (catastrophic forgetting): FedAvg goes on with the retained clients, and the rest fades.

On a quadratic loss with full batches a round is affine, W -> W_R + Phi (W - W_R): each direction is forgotten as fast
as its curvature lets it, those of little curvature hardly at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.unlearning.joint import plan_of, positive, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, retained_rounds


@dataclass(frozen=True)
class ContinuedTraining:
    """FedAvg of the retained clients goes on for `rounds`; the forgotten one is not asked.

    `steps`, `batch` and `rate` are the run's own unless given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "cf"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Nguyen et al., 2023"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rounds": (5, 20, 50), "rate_scale": (0.5, 1.0)}

    rounds: int = 20
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "rounds", "steps", "batch", "rate", "rate_scale")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after the rounds."""
        plan = plan_of(self, removal)
        params = retained_rounds(removal, removal.params, plan, self.rounds)
        note = f"{self.rounds} more rounds without the forgotten; what these hardly change is hardly forgotten."
        return removal.finish(self, params=params, flops=work(removal, plan, removal.counts, self.rounds), note=note)
