"""Continued training (catastrophic forgetting): FedAvg goes on with the retained clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from probekit.federated.local import check_positive
from probekit.federated.state import State
from probekit.records import record
from probekit.unlearning.local import (
    continued_questions,
    local_training,
    own_fedavg,
    rate_needs,
    rate_questions,
)
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions


@record("method/cf")
@dataclass(frozen=True)
class ContinuedTraining:
    """`rounds` more without the forgotten."""

    promise: ClassVar[Promise] = "nothing"
    rounds: int = 20

    def __post_init__(self) -> None:
        check_positive(self, "rounds")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.RETAINED, Need.RETAINED_ROWS}) | rate_needs(removal)

    def questions(self, removal: Removal) -> Sequence[Questions]:
        numbers = range(removal.round, removal.round + self.rounds)
        return [
            *choosing_questions(removal),
            *rate_questions(removal),
            *continued_questions(own_fedavg(removal), removal, numbers),
        ]

    def unlearn(self, removal: Removal) -> State:
        fedavg = local_training(removal, removal.retained)
        numbers = range(removal.round, removal.round + self.rounds)
        ridge = removal.ridge_choice.value
        params = fedavg.continued(removal.retained, removal.state.params, numbers, ridge=ridge)
        return removal.finish(params, rounds=self.rounds)
