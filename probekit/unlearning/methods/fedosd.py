"""FedOSD: the forgotten client's unlearning direction, taken orthogonal to every retained client's gradient.

d = g_u - A^T (A A^T)^+ A g_u, the rows of A the retained gradients, rescaled to |g_u|: to first order no retained
client loses. Afterwards the retained clients train on without walking back to where the model was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.models.fitting import FitPlan
from probekit.models.optimiser import Optimiser
from probekit.protocols import Progress
from probekit.unlearning.joint import buffers, one_of, plan_of, positive, target_shares, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, averaged, fits
from probekit.values import Array

CUT = 1e-6
"""Singular values of the retained gradients below this share of the largest are none."""
PROJECT, WEIGHTS = ("back", "always"), ("run", "uniform")


@dataclass(frozen=True)
class OrthogonalDescent:
    """`rounds` of orthogonal steepest descent, then `post` rounds of the retained clients, kept from walking back.

    The forgotten client descends an unlearning loss: uniform targets on squared loss, -log(1 - p/2) on cross-entropy.
    `rescale`: give projected directions their old length. `project`: after unlearning, take out of a retained client's
    update what leads `back`, or, as the public code does, `always` what lies along the way. `weights`: of the updates
    then, as in the `run`, or `uniform` as in the public code. `batch` and `rate` are the run's own unless given;
    `rate_scale` times the rate of unlearning.
    """

    name: ClassVar[str] = "fedosd"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "plain"), ("target", "fit"), ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Pan et al., 2025"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rounds": (10, 30), "rate_scale": (0.1, 0.3, 1.0)}

    rounds: int = 30
    post: int = 10
    rescale: bool = True
    project: str = "back"
    weights: str = "run"
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 0.3

    def __post_init__(self) -> None:
        one_of("fedosd:project", self.project, PROJECT)
        one_of("fedosd:weights", self.weights, WEIGHTS)
        positive(self, "rounds", "batch", "rate", "rate_scale")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after both phases."""
        plan, params, progress = plan_of(self, removal, scale=1.0), removal.params, removal.watch("rounds")
        for number in range(self.rounds):
            params = params - self.rate_scale * plan.rate * self.direction(removal, params, plan)
            progress(Progress(number + 1, self.rounds))
        for number in range(self.post):
            params = self._forward(removal, params, replace(plan, round=plan.round + number))
        once = replace(plan, steps=1, batch=None)
        return removal.finish(
            self,
            params=params,
            flops=work(removal, once, removal.target.counts, self.rounds)
            + work(removal, once, removal.counts, self.rounds)
            + work(removal, plan, removal.counts, self.post),
            note=f"{self.rounds} steps orthogonal to the retained gradients, {self.post} rounds without the forgotten.",
        )

    def direction(self, removal: Removal, params: Array, plan: FitPlan) -> Array:
        """The unlearning gradient without what any retained client would feel."""
        crossed = getattr(removal.problem, "criterion", "squared") == "cross-entropy"
        once = FitPlan(steps=1, optimiser=Optimiser(), ridge=plan.ridge, seed=plan.seed, round=plan.round)
        forget = replace(once, loss="bounded") if crossed else replace(once, targets="uniform")
        theirs = fits(removal.target, params, forget)
        wanted = sum(
            share * self._moved(removal, params, theirs[name]) for name, share in target_shares(removal).items()
        )
        retained = fits(removal.retained, params, once)
        found = orthogonal(
            np.asarray(wanted), [self._moved(removal, params, retained[name]) for name in removal.counts]
        )
        return _rescaled(found, float(np.linalg.norm(wanted))) if self.rescale else found

    def _forward(self, removal: Removal, params: Array, plan: FitPlan) -> Array:
        """A round of the retained clients, their updates kept from leading back."""
        way, uploads = params - removal.params, fits(removal.retained, params, plan)
        found = {name: params + self._kept(one - params, way) for name, one in uploads.items()}
        uniform = self.weights == "uniform"
        mean = np.mean([*found.values()], axis=0) if uniform else averaged(removal, found)
        for rows in buffers(removal):
            mean[rows] = averaged(removal, uploads)[rows]
        return np.asarray(mean)

    def _kept(self, update: Array, way: Array) -> Array:
        along, length = float((update * way).sum()), float(np.square(way).sum())
        if not length or (along >= 0 and self.project == "back"):
            return update
        found = update - along / length * way
        return _rescaled(found, float(np.linalg.norm(update))) if self.rescale else found

    def _moved(self, removal: Removal, params: Array, upload: Array) -> Array:
        """The gradient that a step of length 1 went against; buffers have none."""
        found = params - upload
        for rows in buffers(removal):
            found[rows] = 0.0
        return np.asarray(found)


def orthogonal(vector: Array, others: list[Array]) -> Array:
    """The part of a vector that is orthogonal to all others."""
    rows = np.stack([one.ravel() for one in others])
    _, sizes, right = np.linalg.svd(rows, full_matrices=False)
    basis = right[sizes > CUT * sizes.max(initial=0.0)]
    return np.asarray(vector - (basis.T @ (basis @ vector.ravel())).reshape(vector.shape))


def _rescaled(vector: Array, length: float) -> Array:
    own = float(np.linalg.norm(vector))
    return vector * (length / own) if own else vector
