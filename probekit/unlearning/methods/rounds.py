"""Gradient rounds from where training ended, to the minimum over the retained rows.

The head keeps a trace of the old one, below the distance asked for; `exact` starts from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from probekit.federated.queries import Gradient
from probekit.federated.state import State
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.records import record
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

SAFETY = 0.8
"""A certificate allows for rounding, and rounds up."""


@record("method/rounds")
@dataclass(frozen=True)
class Rounds:
    """L-BFGS until the certified distance is at most `distance`; refused after so many `rounds`."""

    promise: ClassVar[Promise] = "minimum"
    distance: float = 1e-6
    rounds: int = 300

    def needs(self, removal: Removal) -> frozenset[Need]:
        rows = frozenset() if removal.is_quadratic else {Need.RETAINED_ROWS}
        return frozenset({Need.RETAINED, Need.PENALIZED, *rows})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        gradient = Gradient(removal.state.params)
        return [*choosing_questions(removal), Questions(gradient, times=self.rounds)]

    def unlearn(self, removal: Removal) -> State:
        trainer = LbfgsRounds(self.rounds, SAFETY * self.distance, keep=frozenset())
        solution = trainer.minimize(
            removal.retained,
            removal.state.params,
            ridge=removal.ridge_choice.value,
            parts=removal.statistics or {},
            progress=removal.progress,
        )
        return removal.finish(solution.value)
