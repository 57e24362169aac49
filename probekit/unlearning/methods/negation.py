"""NoT: the first layer's weights change their sign, and the retained clients train on from there.

On a head the first layer is all there is: continued training from the other side of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.unlearning.joint import plan_of, positive, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, retained_rounds


@dataclass(frozen=True)
class Negation:
    """The first `tensors` of the parameters are negated, then `rounds` of FedAvg of the retained clients.

    Of a linearized network the parameters are what it learned beside w_p. `steps`, `batch` and `rate` are the run's own
    unless given; `rate_scale` times the rate.
    """

    name: ClassVar[str] = "not"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Khalil et al., 2025"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rounds": (10, 30, 100), "rate_scale": (0.5, 1.0)}

    rounds: int = 30
    tensors: int = 1
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "rounds", "tensors", "steps", "batch", "rate", "rate_scale")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after training on from the negated ones."""
        plan, problem = plan_of(self, removal), removal.problem
        # the weights themselves change their sign; far from w_p a linearized network means nothing, so there only what
        # it learned does
        origin = np.zeros(problem.shape)
        if "quadratic" not in problem.traits:
            origin = getattr(problem, "origin", origin)
        start = removal.params.copy()
        for rows in [*problem.blocks.values()][: self.tensors]:
            start[rows] = -(start + 2 * origin)[rows]
        params = retained_rounds(removal, start, plan, self.rounds)
        note = f"The first layer negated, and {self.rounds} rounds without the forgotten."
        return removal.finish(self, params=params, flops=work(removal, plan, removal.counts, self.rounds), note=note)
