"""Ascent on the forgotten clients' loss: plain (SGA), elastic (EW-SGA), in a ball (PGA).

On a quadratic loss plain ascent grows without bound, W_t = W_u + (I + rate H_u)^t (W - W_u), so the
distance is limited, to a share of that from the model's center: of |w|, for a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from probekit.arrays import Array
from probekit.federated.client import ClientData
from probekit.federated.federation import Federation, total
from probekit.federated.local import (
    ChangedLoss,
    LocalLoss,
    LocalPlan,
    Sgd,
    TrainingLoss,
    check_positive,
)
from probekit.federated.loss import MeanLoss
from probekit.federated.queries import WEIGHT, Arrays, Product, Shapes
from probekit.federated.state import History, State
from probekit.federated.training.fedavg import FedAvg
from probekit.objective import Model
from probekit.records import record
from probekit.unlearning.local import (
    continued_questions,
    fit_questions,
    local_training,
    own_fedavg,
    rate_needs,
    rate_questions,
    target_round,
)
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

POWER_STEPS = 20
Source = Literal["retained", "server", "target"]


def radius(removal: Removal, share: float | None, params: Array) -> float | None:
    """A share of the distance from the center."""
    if share is None:
        return None
    return share * float(np.linalg.norm(params - removal.state.model.center))


@record("method/sga")
@dataclass(frozen=True)
class GradientAscent:
    """`steps` up at `rate_scale` of the run's rate, no farther than `max_norm` (a share of |w|)."""

    promise: ClassVar[Promise] = "nothing"
    steps: int = 10
    rate_scale: float = 0.1
    max_norm: float | None = 0.1
    clip: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "steps", "rate_scale", "max_norm", "clip")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.TARGET}) | rate_needs(removal)

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return [
            *choosing_questions(removal),
            *rate_questions(removal, target=True),
            fit_questions(removal.state.params, target=True),
        ]

    def unlearn(self, removal: Removal) -> State:
        fedavg = local_training(removal, removal.target)
        params = removal.state.params
        plan = replace(
            fedavg.plan,
            rate=-self.rate_scale * (fedavg.plan.rate or 0.0),
            steps=self.steps,
            epochs=None,
            radius=radius(removal, self.max_norm, params),
            clip=self.clip,
        )
        return removal.finish(target_round(removal, fedavg, params, plan), rounds=1)


@record("query/importance")
@dataclass(frozen=True, eq=False)
class Importance:
    """How much each parameter moves the scores: sum_i J_i^T J_i's diagonal.

    Of a head, which has the same for all classes, that of an input.
    """

    params: Array

    def answer(self, client: ClientData) -> Arrays:
        squares = np.zeros(_importance_shape(client.model))
        for block in client.rows.blocks():
            outputs = client.model.outputs(block)
            squares += outputs.diagonal(self.params, block.row_weights)
        return {"squares": squares, "weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"squares": _importance_shape(model), **WEIGHT}


def _importance_shape(model: Model) -> tuple[int, ...]:
    return (model.shape[0], *[1] * (len(model.shape) - 1))


@record("recipe/elastic")
@dataclass(frozen=True, eq=False)
class ElasticRecipe:
    """The model's loss minus 1/2 sum_i pull_i (w_i - anchor_i)^2, to be climbed."""

    ridge: float
    anchor: Array
    pull: Array

    def local_loss(self, client: ClientData, plan: LocalPlan) -> ChangedLoss:
        return ChangedLoss(self, TrainingLoss(self.ridge).local_loss(client, plan))

    def gradient(self, training: LocalLoss, params: Array) -> Array:
        return training.gradient(params) - self.pull * (params - self.anchor)


@record("method/ew-sga")
@dataclass(frozen=True)
class ElasticAscent:
    """Ascent, each parameter pulled back by its importance to the rows of `importance`.

    strength: of the pull, times the least that keeps a quadratic loss bounded.
    floor: the least importance, as a share of the mean.
    """

    promise: ClassVar[Promise] = "nothing"
    steps: int = 100
    strength: float = 1.2
    importance: Source = "retained"
    floor: float = 0.05
    max_norm: float | None = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "steps", "strength", "floor", "max_norm")

    def needs(self, removal: Removal) -> frozenset[Need]:
        sources = {
            "retained": {Need.RETAINED, Need.RETAINED_ROWS},
            "server": {Need.SERVER_ROWS},
            "target": {Need.TARGET},
        }
        return frozenset({Need.TARGET, *sources[self.importance]})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        params = removal.state.params
        weighing = [Questions(Importance(params), target=self.importance == "target")]
        pull = np.zeros(_importance_shape(removal.state.model))
        recipe = ElasticRecipe(0.0, params, pull)
        return [
            *choosing_questions(removal),
            *(weighing if self.importance != "server" else []),
            Questions(Product(params, params), times=POWER_STEPS, target=True),
            fit_questions(params, recipe, target=True),
        ]

    def unlearn(self, removal: Removal) -> State:
        params = removal.state.params
        ridge = removal.ridge_choice.value
        importance = total(self._source(removal).ask(Importance(params))).mean("squares")
        importance = np.maximum(importance, self.floor * importance.mean())
        least = smallest_strength(MeanLoss(removal.target, ridge), params, importance)
        pull = self.strength * least * importance
        plan = LocalPlan(
            rate=-1 / float(pull.max()),
            steps=self.steps,
            optimizer=Sgd(),
            radius=radius(removal, self.max_norm, params),
        )
        fedavg = own_fedavg(removal) or FedAvg(1, plan)
        recipe = ElasticRecipe(ridge, params, pull)
        return removal.finish(target_round(removal, fedavg, params, plan, recipe), rounds=1)

    def _source(self, removal: Removal) -> Federation:
        if self.importance == "server" and removal.server is not None:
            return removal.server
        return removal.target if self.importance == "target" else removal.retained


def smallest_strength(loss: MeanLoss, params: Array, importance: Array) -> float:
    """The largest eigenvalue of D^-1/2 H_u D^-1/2 by power iteration; each step is a round."""
    root = np.sqrt(importance)
    vector = np.random.default_rng(0).normal(size=params.shape)
    eigenvalue = 1.0
    for _ in range(POWER_STEPS):
        vector = vector / np.linalg.norm(vector)
        vector = loss.product(params, vector / root) / root
        eigenvalue = float(np.linalg.norm(vector))
    return eigenvalue


@record("method/pga")
@dataclass(frozen=True)
class ProjectedAscent:
    """From the retained mean up in a ball of `radius` (a share of |w|), then `post` rounds.

    The retained mean is that of the last round, (w - p_u w_u) / (1 - p_u), with w_u the forgotten
    clients' last uploads.
    """

    promise: ClassVar[Promise] = "nothing"
    radius: float = 0.03
    steps: int = 20
    post: int = 10

    def __post_init__(self) -> None:
        check_positive(self, "radius", "steps")

    def needs(self, removal: Removal) -> frozenset[Need]:
        retained = {Need.RETAINED, Need.RETAINED_ROWS} if self.post else set()
        return frozenset({Need.TARGET, Need.HISTORY, Need.WHOLE_CLIENTS, *retained})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return [
            *choosing_questions(removal),
            fit_questions(removal.state.params, target=True),
            *continued_questions(own_fedavg(removal), removal, self._post(removal)),
        ]

    def unlearn(self, removal: Removal) -> State:
        fedavg = local_training(removal, removal.target)
        start = self.reference(removal, fedavg)
        plan = replace(
            fedavg.plan,
            rate=-(fedavg.plan.rate or 0.0),
            steps=self.steps,
            epochs=None,
            radius=radius(removal, self.radius, start),
        )
        params = target_round(removal, fedavg, start, plan)
        numbers = self._post(removal)
        if numbers:
            ridge = removal.ridge_choice.value
            params = fedavg.continued(removal.retained, params, numbers, ridge=ridge)
        return removal.finish(params, rounds=1 + self.post)

    def reference(self, removal: Removal, fedavg: FedAvg) -> Array:
        """The mean of the retained clients' last models."""
        last = removal.kept(History).rounds[-1]
        retained = [
            (name, upload) for name, upload in last.uploads.items() if name in removal.clients
        ]
        return fedavg.step(last.start, retained) if retained else removal.state.params

    def _post(self, removal: Removal) -> range:
        return range(removal.round + 1, removal.round + 1 + self.post)
