"""FUSED (Zhong et al., CVPR 2025): retained clients train an adapter on the critical tensors.

Everything else is frozen. The head without the adapter is that of the run's state before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from probekit.arrays import Array, Indices
from probekit.errors import InputError
from probekit.federated.client import ClientData
from probekit.federated.local import ChangedLoss, LocalLoss, LocalPlan, TrainingLoss, check_positive
from probekit.federated.state import State
from probekit.objective import Place
from probekit.records import record
from probekit.unlearning.local import fit_questions, local_training, rate_needs, rate_questions
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

ADAPTER_STREAM = 26


@record("recipe/sparse-adapter")
@dataclass(frozen=True, eq=False)
class SparseAdapter:
    """The model's loss as a function of what is added to `entries` of `base`."""

    ridge: float
    base: Array
    entries: Indices

    def local_loss(self, client: ClientData, plan: LocalPlan) -> ChangedLoss:
        return ChangedLoss(self, TrainingLoss(self.ridge).local_loss(client, plan))

    def start(self) -> Array:
        return np.zeros(len(self.entries))

    def applied(self, adapter: Array) -> Array:
        """The parameters with the adapter."""
        params = self.base.copy()
        params.flat[self.entries] += adapter
        return params

    def gradient(self, training: LocalLoss, params: Array) -> Array:
        return training.gradient(self.applied(params)).ravel()[self.entries]


@record("recipe/low-rank-adapter")
@dataclass(frozen=True, eq=False)
class LowRankAdapter:
    """The model's loss as a function of A and B, with A B^T added to a matrix in `base`.

    first: where the matrix begins in the flat base; columns: how many it has.
    down: the A that training starts from, of orthonormal columns; B starts from 0.
    """

    ridge: float
    base: Array
    first: int
    columns: int
    down: Array

    def local_loss(self, client: ClientData, plan: LocalPlan) -> ChangedLoss:
        return ChangedLoss(self, TrainingLoss(self.ridge).local_loss(client, plan))

    @property
    def span(self) -> slice:
        return slice(self.first, self.first + len(self.down) * self.columns)

    def start(self) -> Array:
        return np.concatenate([self.down, np.zeros((self.columns, self.down.shape[1]))])

    def applied(self, adapter: Array) -> Array:
        rows = len(self.down)
        params = self.base.copy()
        params.reshape(-1)[self.span] += (adapter[:rows] @ adapter[rows:].T).ravel()
        return params

    def gradient(self, training: LocalLoss, params: Array) -> Array:
        rows = len(self.down)
        gradient = training.gradient(self.applied(params))
        part = gradient.reshape(-1)[self.span].reshape(rows, self.columns)
        return np.concatenate([part @ params[rows:], part.T @ params[:rows]])


Adapter = SparseAdapter | LowRankAdapter


@record("method/fused")
@dataclass(frozen=True)
class Fused:
    """`rounds` of an adapter on the `layers` tensors that a round of the retained changes most.

    density: the share of their entries that are trained, drawn at random.
    rank: in place of entries, an adapter A B^T of this rank on the most changed matrix; at most
        the smaller of its sides. 0 is none.
    """

    promise: ClassVar[Promise] = "nothing"
    rounds: int = 20
    layers: int = 2
    density: float = 0.5
    rank: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "rounds", "layers", "density")
        if self.density > 1 or self.rank < 0:
            raise InputError(
                f"density is at most 1 and rank 0 or more; found {self.density:g} and {self.rank}."
            )

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.RETAINED, Need.RETAINED_ROWS}) | rate_needs(removal)

    def questions(self, removal: Removal) -> Sequence[Questions]:
        params = removal.state.params
        sizes = np.zeros(params.shape)  # at most: as if the largest adapters were needed
        for span, shape in removal.state.model.tensors.values():
            rows, columns = _matrix(shape)
            rank = min(self.rank, rows, columns)
            sizes[span] = rank * (rows + columns) if self.rank else rows * columns
        recipe = self._adapter(removal, 0.0, sizes)
        fit = fit_questions(recipe.start(), recipe, times=self.rounds)
        return [*choosing_questions(removal), *rate_questions(removal), fit_questions(params), fit]

    def unlearn(self, removal: Removal) -> State:
        fedavg = local_training(removal, removal.retained)
        ridge = removal.ridge_choice.value
        base = removal.state.params
        uploads = fedavg.uploads(removal.retained, base, removal.round, ridge=ridge)
        changes = np.mean([np.abs(upload.params - base) for _, upload in uploads], axis=0)
        recipe = self._adapter(removal, ridge, np.asarray(changes))
        adapter = recipe.start()
        for number in range(removal.round, removal.round + self.rounds):
            uploads = fedavg.uploads(removal.retained, adapter, number, ridge=ridge, recipe=recipe)
            adapter = fedavg.step(adapter, uploads)
        return removal.finish(recipe.applied(adapter), rounds=self.rounds)

    def _adapter(self, removal: Removal, ridge: float, changes: Array) -> Adapter:
        """changes: how far a round of the retained clients moves each parameter, in the mean."""
        base = removal.state.params
        generator = np.random.Generator(np.random.PCG64([self.seed, ADAPTER_STREAM]))
        places: list[Place] = list(removal.state.model.tensors.values())
        places.sort(key=lambda tensor: -float(changes[tensor[0]].mean()))
        numbers = np.arange(base.size).reshape(base.shape)
        if self.rank:
            span, shape = _most_changed_matrix(places)
            rows, columns = _matrix(shape)
            down = np.linalg.qr(generator.normal(size=(rows, min(self.rank, rows, columns))))[0]
            first = int(numbers[span].flat[0])
            return LowRankAdapter(ridge, base, first, columns, np.ascontiguousarray(down))
        candidates = np.concatenate([numbers[span].ravel() for span, _ in places[: self.layers]])
        size = max(1, round(self.density * len(candidates)))
        entries = np.sort(generator.choice(candidates, size, replace=False))
        return SparseAdapter(ridge, base, entries)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns of a tensor; each kernel of a convolution is a row."""
    return math.prod(shape[:1]), math.prod(shape[1:])


def _most_changed_matrix(places: Sequence[Place]) -> Place:
    """The first that has rows."""
    for span, shape in places:
        if len(shape) > 1 and shape[0] > 1:
            return span, shape
    raise InputError(
        "An adapter of a rank needs a matrix; found tensors of shapes "
        f"{', '.join(str(shape) for _, shape in places)}. Leave out rank, for entries."
    )
