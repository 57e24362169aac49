"""How far a head lay from retraining before a removal, and how far it lies after it, where that can be known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Unlearned, method, missing
from probekit.unlearning.removal import Array, Removal


@dataclass(frozen=True)
class Distance:
    """The distance of the parameters to those of retraining, before a removal and after it."""

    before: float
    after: float

    @property
    def harmed(self) -> bool:
        """Whether the removal led away from retraining."""
        return self.after > self.before


def distance_to_retraining(removal: Removal, unlearned: Unlearned, bound: float | None) -> Distance | None:
    """Measured against the minimum where sums or cached rows give it, else by the certified bound; None: unknown.

    After a method that found the minimum itself, or where only the bound is known, `after` is that bound.
    """
    before, after = removal.params, unlearned.trained_after.params
    retrained = _minimum(removal, unlearned.method)
    if retrained is not None:
        return Distance(float(np.linalg.norm(before - retrained)), float(np.linalg.norm(after - retrained)))
    moved = float(np.linalg.norm(before - after))
    # the minimum lies within the bound of the head after: beyond twice the bound the head before was farther
    return Distance(moved, bound) if bound is not None and 2 * bound < moved else None


def _minimum(removal: Removal, name: str) -> Array | None:
    """The parameters that retraining in closed form gives, where the method did not find them itself."""
    if "minimum" in method(name).traits or "statistics" not in removal.problem.traits:
        return None
    for one in map(method, ("exact", "retrain")):
        asks = one.name == "retrain" and removal.material.clients is not None  # their statistics are not ours to ask
        if not asks and not missing(one, removal):
            return carried_out(removal, one).trained_after.params
    return None
