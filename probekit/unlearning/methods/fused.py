"""FUSED (Zhong et al., CVPR 2025): retained clients train adapters on the layers that change most; the rest is frozen.

With a frozen orthonormal A, full batches and no momentum, B's steps are those of continued training, projected: the
change after t rounds is (CF_t - W) A^T A. Trained A and B are averaged apart, as the method does, which is no average
of their products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError, NotFoundError
from probekit.federated.trained import Kept, Trained
from probekit.models.adapters import Adapters, matrices_of
from probekit.protocols import Progress
from probekit.unlearning.method import CONTAINS_BEFORE, Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, averaged, fits, local_plan
from probekit.values import Array

ADAPTER = "adapter"
"""By which name the change is kept, as the array "delta"."""


@dataclass(frozen=True)
class Fused:
    """Adapters of a `rank` on the `layers` matrices that change most in a round (0: on all), trained for `rounds`.

    `freeze` keeps A as it was drawn (by `seed`). The old head comes back by `dropped`: what was kept is subtracted.
    Local training is the run's own unless `steps`, `epochs`, `batch`, `rate` or `optimiser` say otherwise.
    """

    name: ClassVar[str] = "fused"
    source: ClassVar[str] = "Zhong et al., 2025"
    needs: ClassVar[tuple[Any, ...]] = (("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset({CONTAINS_BEFORE})
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rank": (4, 16), "rounds": (5, 20, 50)}

    rank: int = 16
    rounds: int = 20
    layers: int = 2
    freeze: bool = False
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    rate: float | None = None
    optimiser: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1 or self.rounds < 1 or self.layers < 0:
            found = f"{self.rank}, {self.rounds} and {self.layers}"
            raise InputError(f"fused takes a rank and rounds of 1 or more, and 0 layers or more; found {found}.")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head with what the adapters came to."""
        how: Any = {name: getattr(self, name) for name in ("steps", "epochs", "batch", "rate", "optimiser")}
        plan, base = local_plan(removal, **how), removal.params
        names = self._most_sensitive(removal, plan)
        adapters = Adapters.of(removal.problem, names, self.rank)
        column, progress = adapters.start(self.seed), removal.watch("adapters")
        frozen: dict[str, Array] = {"mask": adapters.mask()} if self.freeze else {}
        for number in range(self.rounds):
            now = replace(plan, rank=self.rank, layers=names, round=plan.round + number)
            column = averaged(removal, fits(removal.retained, base, now, adapter=column, **frozen))
            progress(Progress(number + 1, self.rounds))
        delta = adapters.change(column)
        kept = {**removal.before.without(removal.forgotten).kept}
        kept[ADAPTER] = Kept({"delta": delta}, about=frozenset(removal.counts))
        steps = plan.steps or plan.epochs or 1
        return removal.finish(
            self,
            params=base + delta,
            flops=4 * self.rounds * steps * removal.rows * base.size,
            note=f"An adapter of {adapters.size} numbers on {', '.join(names)}; without it the old head is back.",
            kept=kept,
        )

    def _most_sensitive(self, removal: Removal, plan: Any) -> tuple[str, ...]:
        """The matrices whose numbers change most in a round of the retained clients."""
        known = matrices_of(removal.problem)
        if not self.layers or len(known) <= self.layers:
            return tuple(known)
        sent = fits(removal.retained, removal.params, plan)
        changes = np.mean([np.abs(one - removal.params) for one in sent.values()], axis=0)
        score = {name: float(changes[where].mean()) for name, (where, _) in known.items()}
        chosen = sorted(known, key=lambda name: (-score[name], name))[: self.layers]
        return tuple(name for name in known if name in chosen)


def dropped(trained: Trained) -> Array:
    """The parameters without the adapter: those before the removal, but for rounding."""
    if ADAPTER not in trained.kept:
        raise NotFoundError("This run keeps no adapter to drop: it was not unlearned by fused, or not last.")
    return np.asarray(trained.params - trained.kept[ADAPTER].arrays["delta"])
