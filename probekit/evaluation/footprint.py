"""What a removal took: bytes, seconds, operations, who had to be online, and what had to be stored for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probekit.federated.trained import Trained
from probekit.unlearning.method import Unlearned, choices_of, method
from probekit.unlearning.removal import Removal
from probekit.values.plain import Result

KEPT_FOR = {("server", "rows"): "server", ("retained", "gradient"): "gradients", ("retained", "form"): "statistics"}
"""What may be kept to answer a need, where nobody is asked."""


@dataclass(frozen=True)
class Footprint(Result):
    """The cost of one removal.

    `retained_online`, `target_online`: whether the retained clients, and the forgotten ones, were asked anything.
    `stored`: bytes that the server had kept, by name; `needed`: the names that the method declares to need.
    """

    up: int
    down: int
    rounds: int
    flops: int
    seconds: float
    retained_online: bool
    target_online: bool
    stored: Mapping[str, int]
    needed: tuple[str, ...]

    @property
    def storage(self) -> int:
        """The bytes of what the method needs."""
        return sum(self.stored.get(name, 0) for name in self.needed)


def footprint(removal: Removal, unlearned: Unlearned) -> Footprint:
    """What a removal took, once it was carried out; federations that are given should not have been asked before."""
    cost, stored = unlearned.cost, stored_bytes(removal.before)
    online = _asked(removal, "online", removal.material.clients)
    declared = [one for need in method(unlearned.method).needs for one in choices_of(need)]
    names = [
        what if party == "kept" else KEPT_FOR.get((party, what), "")
        for party, what, *_ in declared
        if party != "retained" or not online
    ]
    return Footprint(
        cost.up,
        cost.down,
        cost.rounds,
        cost.flops,
        cost.seconds,
        retained_online=online,
        target_online=_asked(removal, "target", removal.material.target),
        stored=stored,
        needed=tuple(dict.fromkeys(name for name in names if name in stored)),
    )


def _asked(removal: Removal, name: str, given: Any) -> bool:
    """Whether a federation that the removal made, or was given, was asked anything for it."""
    found = vars(removal).get(name, given)
    past = removal.earlier.rounds if found is given else 0  # those made by the removal have none
    return found is not None and found.traffic.rounds > past


def stored_bytes(trained: Trained) -> dict[str, int]:
    """The bytes of everything that a server keeps beside the head, by name."""
    found: dict[str, int] = {}
    if trained.statistics is not None:
        parts = (trained.statistics[name] for name in trained.statistics)
        found["statistics"] = sum(one.gram.nbytes + one.moment.nbytes + one.class_counts.nbytes for one in parts)
    if trained.gradients is not None:
        held = (*trained.gradients.aggregate.values(), *trained.gradients.local.values())
        found["gradients"] = sum(one.nbytes for one in held)
    if trained.history is not None:
        found["history"] = trained.history.size
    if trained.server is not None and trained.server.statistics is not None:
        own = trained.server.statistics
        found["server"] = own.gram.nbytes + own.moment.nbytes + own.class_counts.nbytes
    for name, kept in trained.kept.items():
        arrays = [*kept.arrays.values(), *(one for part in kept.parts.values() for one in part.values())]
        found[name] = sum(one.nbytes for one in arrays)
    return found
