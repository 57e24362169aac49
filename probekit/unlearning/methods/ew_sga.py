"""Elastic-weight gradient ascent: the forgotten client climbs its loss, and what matters to the others holds it back.

It descends -L_u(w) + weight/2 * sum_i F_i (w_i - w0_i)^2 with F the diagonal of the curvature (Fisher) at w0. On a
quadratic loss, with D = diag F and A = weight D - H_u, Delta_t = A^-1 (I - (I - rate A)^t) g_u: bounded from
weight = lambda_max(D^-1/2 H_u D^-1/2) on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.unlearning.joint import one_of, plan_of, positive, share_of_norm, target_steps, work
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.values import Array

SOURCES = {"retained": ("retained", "importance"), "server": ("server", "rows"), "target": ("target", "importance")}
POWER_STEPS = 20
"""Products from which the smallest weight that bounds the loss is taken."""


@dataclass(frozen=True)
class ElasticAscent:
    """`steps` up the forgotten client's loss, each parameter held back by its importance to the `fisher`'s rows.

    `weight` of the pull: `strength` times the smallest that keeps the loss bounded, unless given. `floor`: the least
    importance, as a share of the mean. `fisher`: whose rows tell what matters: the `retained` clients', the `server`'s,
    or, as a public code has it, the forgotten (`target`) client's own. `rate`: 1 / the steepest pull, unless given.
    `max_norm`: the farthest it may go, as a share of the parameters' norm.
    """

    name: ClassVar[str] = "ew-sga"
    needs: ClassVar[tuple[Any, ...]] = (
        ("problem", "plain"),
        ("target", "fit"),
        (("target", "product"), ("target", "importance")),
        ("retained", "importance"),
    )
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Wu et al., 2022"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"steps": (30, 100, 300), "strength": (1.2, 2.0, 5.0)}

    steps: int = 100
    strength: float = 1.2
    fisher: str = "retained"
    weight: float | None = None
    floor: float = 0.05
    max_norm: float | None = 0.1
    batch: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        one_of("ew-sga:fisher", self.fisher, SOURCES)
        positive(self, "steps", "strength", "weight", "floor", "max_norm", "batch", "rate")
        object.__setattr__(self, "needs", (*ElasticAscent.needs[:3], SOURCES[self.fisher]))

    def unlearn(self, removal: Removal) -> Unlearned:
        """The parameters after the steps."""
        fisher = self.importance(removal)
        weight = self.weight or self.strength * smallest_weight(removal, fisher)
        rate, ball = self.rate or 1 / (weight * float(fisher.max())), share_of_norm(self.max_norm, removal.params)
        given: Any = {"rate": rate, "optimiser": "sgd", "sign": -1.0, "ball": ball}
        plan = plan_of(self, removal, scale=1.0, **given)
        params = target_steps(removal, removal.params, plan, importance=weight * fisher)
        note = f"{self.steps} steps up the forgotten client's loss, held back by {weight:.3g} times the importance."
        return removal.finish(self, params=params, flops=work(removal, plan, removal.target.counts), note=note)

    def importance(self, removal: Removal) -> Array:
        """Each parameter's importance to the mean loss of these rows, nowhere below the floor."""
        if self.fisher == "server":
            found = removal.server.importance(removal.params) / removal.server.count
        else:
            found = mean_importance(removal, self.fisher)
        return np.asarray(np.maximum(found, self.floor * found.mean()))


def mean_importance(removal: Removal, party: str) -> Array:
    """What clients answer, for each of their rows."""
    total = getattr(removal, party).ask("importance", {"params": removal.params}).total()
    return np.asarray(total.arrays["importance"] / total.count)


def smallest_weight(removal: Removal, fisher: Array) -> float:
    """lambda_max(D^-1/2 H_u D^-1/2) by products; without these, of both diagonals alone."""
    target, root = removal.target, np.sqrt(fisher)
    pull = removal.problem.penalty(removal.ridge)
    if not target.offers("product"):
        return float(((mean_importance(removal, "target") + pull) / fisher).max())
    v, size = np.random.default_rng(0).normal(size=fisher.shape), 1.0
    for _ in range(POWER_STEPS):
        v /= np.linalg.norm(v)
        total = target.ask("product", {"params": v / root}).total()
        v = (total.arrays["product"] / total.count + pull * v / root) / root
        size = float(np.linalg.norm(v))
    return size
