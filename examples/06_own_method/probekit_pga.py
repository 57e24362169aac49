"""Projected gradient ascent (Halimi et al., 2022), a way to forget of one's own. Nothing of probekit is imported."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class ProjectedAscent:
    """The forgotten client climbs its own loss, near the average of the others; these train on from there.

    The ascent stays within `radius` of how far training came, and ends once it is `away` times as far from the client's
    last upload as it was at first. Then the others take `rounds` rounds of `steps` local steps.
    """

    name: ClassVar[str] = "example-pga"
    needs: ClassVar[tuple[Any, ...]] = (("kept", "history"), ("target", "fit"), ("retained", "fit"))
    keeps: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[frozenset[str]] = frozenset()

    rounds: int = 3
    steps: int = 10
    radius: float = 1 / 3
    away: float = 2.0
    clip: float = 5.0

    def unlearn(self, removal: Any) -> Any:
        """The head after ascent and repair."""
        history, leaving = removal.before.history, removal.target.clients
        uploads = {name: history.last_upload(name) for name in removal.counts if name not in leaving}
        reference = average({name: one for name, one in uploads.items() if one is not None}, removal.counts)
        plan = {"steps": self.steps, "rate": removal.before.learning_rate, "ridge": removal.ridge}
        ball = self.radius * float(np.linalg.norm(reference - removal.problem.start))
        params = reference
        for name in leaving:
            last = history.last_upload(name)
            if last is None:  # it never took part
                continue
            stop = self.away * float(np.linalg.norm(reference - last))
            climb = {**plan, "sign": -1.0, "clip": self.clip, "ball": ball, "stop": stop}
            arrays = {"params": params, "centre": reference, "away": last}
            [answer] = removal.target.ask("fit", arrays, climb, clients=(name,)).each()
            params = answer.arrays["params"]
        for number in range(self.rounds):
            answers = removal.retained.ask("fit", {"params": params}, {**plan, "round": number}).each()
            params = average({one.client: one.arrays["params"] for one in answers}, removal.counts)
        return removal.finish(self, params=params, note=f"Ascent, then {self.rounds} rounds of the others.")


def average(uploads: dict[str, Any], counts: dict[str, int]) -> Any:
    """The mean of some clients' parameters, each with the weight of its rows."""
    if not uploads:
        raise ValueError("Projected ascent starts from what other clients sent; the history has nothing of them.")
    return sum(counts[name] * one for name, one in uploads.items()) / sum(counts[name] for name in uploads)
