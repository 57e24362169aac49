"""FedAU (Gu et al., IJCAI 2024): the head, mixed with the auxiliary heads of those who leave. Nobody is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.federated.methods.fedau import AUXILIARY
from probekit.models.adapters import last_layer
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal

WHOLE = "a request that forgets whole clients: an auxiliary head knows all rows of one"
TRAINER = "the clients' auxiliary heads: train with `method=fedau`"


@dataclass(frozen=True)
class FedAuCombination:
    """(1 - alpha) W + alpha times the mean of the leavers' auxiliary heads (of a network, in its last layer).

    The paper's `alpha` is 0.9; on a linear head that leaves little of the others, and 0.5 is the default.
    """

    name: ClassVar[str] = "fedau"
    source: ClassVar[str] = "Gu et al., IJCAI 2024"
    needs: ClassVar[tuple[Any, ...]] = (("kept", AUXILIARY, TRAINER), ("request", "clients", WHOLE))
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"alpha": (0.05, 0.1, 0.2, 0.3, 0.5, 0.9)}

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(f"fedau takes an alpha in (0, 1]; found {self.alpha}.")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The mixture."""
        parts, params = removal.before.kept[AUXILIARY].parts, removal.params
        absent = [name for name in removal.request.clients if name not in parts]
        if absent:
            raise InputError(f"Client {absent[0]} has no auxiliary head in this run: it joined later. Use retrain.")
        mean = np.mean([parts[name]["params"] for name in removal.request.clients], axis=0)
        mixed = params + self.alpha * last_layer(removal.problem) * (mean - params)
        return removal.finish(
            self, params=mixed, flops=3 * params.size, note="Mixed with auxiliary heads; nobody asked."
        )
