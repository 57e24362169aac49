"""Rounds from where training ended, to the minimum over the retained rows.

The head keeps a trace of the old one, below the distance asked for; `exact` starts from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from probekit.federated.queries import Gradient
from probekit.federated.state import State
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.model import LinearModel
from probekit.records import record
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

SAFETY = 0.8
"""A certificate allows for rounding, and rounds up."""


@record("method/rounds")
@dataclass(frozen=True)
class Rounds:
    """Until the certified distance is at most `distance`; refused after so many `rounds`.

    Of gradients (L-BFGS), and of products (conjugate gradients) of a linearized network.
    """

    promise: ClassVar[Promise] = "minimum"
    distance: float = 1e-6
    rounds: int = 300

    def needs(self, removal: Removal) -> frozenset[Need]:
        rows = frozenset() if removal.has_sums else {Need.RETAINED_ROWS}
        return frozenset({Need.RETAINED, Need.PENALIZED, Need.LINEAR, *rows})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        gradient = Gradient(removal.state.params)
        return [*choosing_questions(removal), Questions(gradient, times=self.rounds)]

    def unlearn(self, removal: Removal) -> State:
        model = removal.state.model
        params = removal.state.params
        if not isinstance(model, LinearModel):
            params = ConjugateGradients(self.rounds).minimize(
                removal.retained,
                params,
                ridge=removal.ridge_choice.value,
                distance=SAFETY * self.distance,
                progress=removal.progress,
            )
            return removal.finish(params)
        trainer = LbfgsRounds(self.rounds, SAFETY * self.distance, keep=frozenset())
        solution = trainer.minimize(
            removal.retained,
            params,
            ridge=removal.ridge_choice.value,
            parts=removal.statistics or {},
            progress=removal.progress,
        )
        return removal.finish(solution.value)
