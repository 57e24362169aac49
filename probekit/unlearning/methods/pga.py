"""Projected gradient ascent: from the other clients' mean model up the forgotten client's loss, within a ball.

w_ref = (w - p_u w_u) / (1 - p_u) takes the client's last local model w_u out of the average. On a quadratic loss the
climb in a ball is a trust-region problem: Delta = (nu I - H_u)^-1 g_u(w_ref), |Delta| = radius, nu > lambda_max(H_u).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.unlearning.joint import (
    one_of,
    plan_of,
    positive,
    random_params,
    shares_of_all,
    target_shares,
    target_steps,
    work,
)
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, fits, retained_rounds
from probekit.values import Array

RADII = ("norm", "random")
RANDOM_STARTS = 10
HALVINGS = 200


@dataclass(frozen=True)
class ProjectedAscent:
    """`steps` up the forgotten client's loss from w_ref within a ball, then `post` rounds of the retained clients.

    w_ref leaves out the client's last upload, from the history or, without one, from local training now. `radius` is a
    share of w_ref's norm; `ball=random`: sqrt(mean squared distance to random starts / 3), as the public code has it.
    `tau`: end once the squared distance to the last upload is above it (the public code's 2.2). `exact`: the farthest
    point of the ball in closed form (a head's squared loss). `batch` and `rate` are the run's own unless given.
    """

    name: ClassVar[str] = "pga"
    needs: ClassVar[tuple[Any, ...]] = (
        ("problem", "plain"),
        ("target", "fit"),
        ("retained", "fit"),
        RATE,
        (("target", "fit"), ("kept", "history")),
    )
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Halimi et al., 2022"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"radius": (0.01, 0.03, 0.1), "post": (0, 5, 20)}

    radius: float = 0.03
    steps: int = 20
    post: int = 10
    ball: str = "norm"
    tau: float | None = None
    clip: float | None = None
    exact: bool = False
    batch: int | None = None
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        one_of("pga:ball", self.ball, RADII)
        positive(self, "radius", "steps", "tau", "clip", "batch", "rate", "rate_scale")
        if self.exact:
            further = ("problem", "statistics"), ("target", "statistics")
            object.__setattr__(self, "needs", (*ProjectedAscent.needs, *further))

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after both phases."""
        usual = plan_of(self, removal, steps=None, scale=1.0)
        reference, last = reference_model(removal, usual)
        radius = self._radius(removal, reference)
        if self.exact:
            total = removal.problem.stats(removal.target.ask("statistics").total().arrays)
            curvature = total.total_gram / total.count + np.diagflat(removal.problem.penalty(removal.ridge))
            slope = curvature @ reference - total.moment / total.count
            params = reference + farthest(curvature, slope, radius)
        else:
            limits: Any = {"clip": self.clip, "ball": radius, "stop": self.tau and self.tau**0.5}
            plan = replace(usual, steps=self.steps, epochs=None, rate=usual.rate * self.rate_scale, sign=-1.0, **limits)
            params = target_steps(removal, reference, plan, away=last)
        params = retained_rounds(removal, params, usual, self.post)
        return removal.finish(
            self,
            params=params,
            flops=work(removal, replace(usual, steps=self.steps), removal.target.counts)
            + work(removal, usual, removal.counts, self.post),
            note=f"Up the forgotten client's loss within {radius:.3g} of the others' mean, {self.post} rounds after.",
        )

    def _radius(self, removal: Removal, reference: Array) -> float:
        if self.ball == "norm":
            return self.radius * float(np.linalg.norm(reference))
        starts = (random_params(removal.problem, seed) for seed in range(RANDOM_STARTS))
        return float(np.sqrt(np.mean([np.square(reference - one).sum() for one in starts]) / 3))


def reference_model(removal: Removal, plan: Any) -> tuple[Array, Array]:
    """The average without the forgotten clients' last local models, and the mean of these."""
    history, names = removal.before.history, removal.request.clients
    if history is not None and not removal.request.by_row:
        found = {name: history.last_upload(name) for name in names}
        uploads = {name: removal.params if one is None else one for name, one in found.items()}
        shares: Mapping[str, float] = {name: removal.before.weights[name] for name in names}
    else:
        uploads, shares = fits(removal.target, removal.params, plan), shares_of_all(removal)[1]
    part, own = sum(shares.values()), target_shares(removal)
    taken = sum(share * uploads[name] for name, share in shares.items())
    last = sum(share * uploads[name] for name, share in own.items())
    return (removal.params - taken) / (1 - part), np.asarray(last)


def farthest(curvature: Array, slope: Array, radius: float) -> Array:
    """The step of at most this length that raises <slope, D> + <D, curvature D> / 2 most: the secular equation."""
    values, vectors = np.linalg.eigh(curvature)
    parts = vectors.T @ slope
    low, high = 0.0, float(np.linalg.norm(slope)) / radius  # nu - the largest eigenvalue

    def step(excess: float) -> Array:
        return np.asarray(parts / (values[-1] - values + max(excess, np.finfo(float).tiny))[:, None])

    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.linalg.norm(step(middle)) > radius else (low, middle)
    found = step(high)
    short = radius**2 - float(np.square(found).sum())
    if short > 1e-9 * radius**2:  # the slope has nothing along the top direction: any way along it will do
        found[-1, 0] += np.sqrt(short)
    return np.asarray(vectors @ found)
