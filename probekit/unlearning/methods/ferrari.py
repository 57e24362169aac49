"""Ferrari (Gu et al., NeurIPS 2024): the forgotten clients blind their outputs to some directions.

They descend E |f(x) - f(x + d)| / |d| over noise d. On a linear head the gradient lies in the span
of d: W shrinks there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.federated.client import ClientData
from probekit.federated.local import LocalPlan, Sgd, check_positive
from probekit.federated.state import State
from probekit.federated.training.fedavg import FedAvg
from probekit.objective import Model
from probekit.records import record
from probekit.unlearning.local import fit_questions, own_fedavg, target_round
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

NOISE_STREAM = 27
LOW, HIGH = 0.05, 1.0
"""The noise's size is drawn between them."""
SHORTEST = 1e-12

Reduce = Literal["mean", "sum"]


@record("recipe/blindness")
@dataclass(frozen=True, eq=False)
class Blindness:
    """How much outputs move with noise: Gaussian multiples of `directions` (m, d)."""

    directions: Array
    draws: int
    reduce: Reduce

    def local_loss(self, client: ClientData, plan: LocalPlan) -> BlindnessLoss:
        generator = plan.generator(client.name, NOISE_STREAM)
        return BlindnessLoss(self, client.model, client.rows, generator)


@dataclass(frozen=True, eq=False)
class BlindnessLoss:
    """The mean or sum over rows; every gradient draws new noise, row weights play no part."""

    blindness: Blindness
    model: Model
    rows: EmbeddingSet
    generator: np.random.Generator

    @property
    def count(self) -> int:
        return len(self.rows)

    def gradient(self, params: Array) -> Array:
        """J(x)^T u - J(x + d)^T u with u the unit vector along f(x) - f(x + d), over |d|."""
        rows = np.asarray(self.rows.rows, np.float64)
        scores, pull = self.model.outputs(self.rows).at(params)
        gradient = np.zeros(params.shape)
        for _ in range(self.blindness.draws):
            noise = self._noise()
            noisy_rows = replace(self.rows, rows=rows + noise)
            noisy_scores, noisy_pull = self.model.outputs(noisy_rows).at(params)
            change = scores - noisy_scores
            lengths = np.linalg.norm(noise, axis=1, keepdims=True)
            scale = np.linalg.norm(change, axis=1, keepdims=True) * lengths
            unit = change / np.maximum(scale, SHORTEST)
            gradient += pull(unit) - noisy_pull(unit)
        count = self.count if self.blindness.reduce == "mean" else 1
        return gradient / (self.blindness.draws * count)

    def batch(self, indices: Indices) -> BlindnessLoss:
        return replace(self, rows=self.rows.take(indices))

    def _noise(self) -> Array:
        directions = self.blindness.directions
        size = self.generator.uniform(LOW, HIGH, (self.count, 1))
        return np.asarray(
            size * self.generator.normal(size=(self.count, len(directions))) @ directions
        )


@record("method/ferrari")
@dataclass(frozen=True)
class Ferrari:
    """`steps` of the forgotten clients against what their outputs see of some directions.

    columns: of the embedding, "0:9+20:22": where a trigger is, in pixels.
    directions: a .npy file (m, d) of what a trigger adds to embeddings: those of m inputs with it
        minus those without.
    draws: of noise for each row and step.
    reduce: the loss is a "mean" over the rows, or their "sum", as in the published code, where the
        step grows with the batch.
    """

    promise: ClassVar[Promise] = "nothing"
    columns: str = ""
    directions: str = ""
    steps: int = 50
    rate: float = 0.01
    draws: int = 20
    reduce: Reduce = "mean"

    def __post_init__(self) -> None:
        check_positive(self, "steps", "rate", "draws")
        if self.columns and self.directions:
            raise InputError("Ferrari takes columns or directions; found both. Leave one out.")

    def needs(self, removal: Removal) -> frozenset[Need]:
        unknown = set() if self.columns or self.directions else {Need.DIRECTIONS}
        return frozenset({Need.TARGET, *unknown})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        recipe = Blindness(self.matrix(removal), self.draws, self.reduce)
        fit = fit_questions(removal.state.params, recipe, target=True)
        return [*choosing_questions(removal), fit]

    def unlearn(self, removal: Removal) -> State:
        plan = LocalPlan(self.rate, steps=self.steps, optimizer=Sgd())
        fedavg = own_fedavg(removal)
        if fedavg is not None:
            plan = replace(plan, batch_size=fedavg.plan.batch_size, seed=fedavg.plan.seed)
        recipe = Blindness(self.matrix(removal), self.draws, self.reduce)
        averaging = fedavg or FedAvg(1, plan)
        params = target_round(removal, averaging, removal.state.params, plan, recipe)
        return removal.finish(params, rounds=1)

    def matrix(self, removal: Removal) -> Array:
        """The directions, (m, d)."""
        width = removal.state.model.width
        if self.columns:
            return np.eye(width)[_columns(self.columns, width)]
        path = Path(self.directions).expanduser()
        if not path.is_file():
            raise NotFoundError(f"No file {path} with directions. Check the path.")
        try:
            matrix = np.atleast_2d(np.asarray(np.load(path, allow_pickle=False), np.float64))
        except (ValueError, OSError, EOFError) as error:
            raise InputError(
                f"{path} must be an array of numbers (.npy); it cannot be read: {error}. Write it "
                "with numpy.save."
            ) from error
        if matrix.ndim != 2 or matrix.shape[1] != width or not np.isfinite(matrix).all():
            raise InputError(
                f"Directions must be finite rows of {width} numbers, as the embeddings are; found "
                f"{matrix.shape} in {path}. Subtract embeddings of this encoding."
            )
        return matrix


def _columns(text: str, width: int) -> Indices:
    """The numbers in "0:9+20:22"."""
    try:
        spans = [[int(number) for number in part.split(":")] for part in text.split("+")]
        numbers = np.concatenate([np.arange(first, stop) for first, stop in spans])
    except ValueError as error:
        raise InputError(
            f"columns must be FIRST:STOP, several joined by +; found {text!r}. Write columns=0:9."
        ) from error
    if not len(numbers) or numbers.min() < 0 or numbers.max() >= width:
        raise InputError(f"columns must be among 0 to {width - 1}; found {text}.")
    return numbers
