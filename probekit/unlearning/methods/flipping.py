"""Flipping (Nguyen et al., 2023): the forgotten train on random labels, then the others go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Literal

import numpy as np

from probekit.federated.client import ClientData
from probekit.federated.local import LocalPlan, Penalized, check_positive
from probekit.federated.state import State
from probekit.objective import Penalty, RowsObjective
from probekit.records import record
from probekit.unlearning.local import (
    continued_questions,
    fit_questions,
    local_training,
    own_fedavg,
    rate_needs,
    rate_questions,
)
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

LABEL_STREAM = 25
Labels = Literal["row", "client"]


@record("recipe/random-labels")
@dataclass(frozen=True)
class RandomLabels:
    """The model's loss on labels drawn anew in each round, for each row or for all at once."""

    ridge: float
    labels: Labels = "row"

    def local_loss(self, client: ClientData, plan: LocalPlan) -> Penalized:
        generator = plan.generator(client.name, LABEL_STREAM)
        classes = client.model.classes
        size = client.count if self.labels == "row" else 1
        drawn = np.broadcast_to(generator.integers(classes, size=size), client.count)
        names = tuple(map(str, range(classes)))
        rows = replace(client.rows, labels=drawn, class_names=names, targets=None)
        return Penalized(RowsObjective.of(client.model, rows), Penalty(client.model, self.ridge))


@record("method/flipping")
@dataclass(frozen=True)
class Flipping:
    """`rounds` of all clients, the forgotten on random labels; then `post` rounds without them.

    labels: drawn for each "row"; or one for all rows of a "client", as the published code draws one
        for each batch.
    """

    promise: ClassVar[Promise] = "nothing"
    rounds: int = 2
    post: int = 20
    labels: Labels = "row"

    def __post_init__(self) -> None:
        check_positive(self, "rounds")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.TARGET, Need.RETAINED, Need.RETAINED_ROWS}) | rate_needs(removal)

    def questions(self, removal: Removal) -> Sequence[Questions]:
        params = removal.state.params
        flipped = removal.round + self.rounds
        post = range(flipped, flipped + self.post)
        return [
            *choosing_questions(removal),
            *rate_questions(removal),
            fit_questions(params, times=self.rounds),
            fit_questions(params, times=self.rounds, target=True),
            *continued_questions(own_fedavg(removal), removal, post),
        ]

    def unlearn(self, removal: Removal) -> State:
        fedavg = local_training(removal, removal.retained)
        ridge = removal.ridge_choice.value
        recipe = RandomLabels(ridge, self.labels)
        params = removal.state.params
        flipped = removal.round + self.rounds
        for number in range(removal.round, flipped):
            retained = fedavg.uploads(removal.retained, params, number, ridge=ridge)
            target = fedavg.uploads(removal.target, params, number, ridge=ridge, recipe=recipe)
            params = fedavg.step(params, chain(retained, target))
        numbers = range(flipped, flipped + self.post)
        if numbers:
            params = fedavg.continued(removal.retained, params, numbers, ridge=ridge)
        return removal.finish(params, rounds=self.rounds + self.post)
