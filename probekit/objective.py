"""The loss of a model on rows: outputs (what a model is) times a loss (what it is trained for).

With scores f(w), Jacobian J and a loss l(f, y): gradient = J^T l'(f), curvature (Gauss-Newton) =
J^T l''(f) J. So a new kind of model says how scores move with parameters, a new loss says how it
moves with scores, and no pair of them is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.records import record

Pull = Callable[[Array], Array]
Place = tuple[slice, tuple[int, ...]]
Selection = Indices | slice


class Outputs(Protocol):
    """The scores of rows, (n, k), as a function of the parameters."""

    @property
    def count(self) -> int: ...
    @property
    def block(self) -> int:
        """How many rows are computed at once."""

    def at(self, params: Array) -> tuple[Array, Pull]:
        """The scores, and u -> J^T u there."""

    def pull(self, params: Array, cotangent: Array) -> Array:
        """J^T u."""

    def push(self, params: Array, vector: Array) -> Array:
        """J v."""

    def diagonal(self, params: Array, weights: Array) -> Array:
        """That of sum_i v_i J_i^T J_i: how much each parameter moves the scores of weighted rows.

        Broadcasts to the parameters, where all outputs have the same.
        """

    def lengths(self, params: Array, cotangents: Array) -> Array:
        """|J_i^T u_i| of each row, (n,)."""

    def take(self, selection: Selection) -> Outputs: ...


class Loss(Protocol):
    """A loss of scores (n, k), row by row."""

    def values(self, scores: Array, targets: Array) -> Array:
        """The loss of each row, (n,)."""

    def slope(self, scores: Array, targets: Array) -> Array:
        """Its gradient in the scores, (n, k)."""

    @property
    def is_quadratic(self) -> bool:
        """Whether its Hessian in the scores is 1, whatever they are."""

    def curvature(self, scores: Array, moved: Array) -> Array:
        """Its Hessian in the scores times a change of them, (n, k)."""

    @property
    def largest_curvature(self) -> float:
        """A bound of that Hessian's eigenvalues, whatever the scores."""


class Objective(Protocol):
    """The data term of a model's loss: a weighted sum over rows, without the penalty.

    Its mean is the sum over `weight`, which is `count` where rows have no weights.
    """

    @property
    def count(self) -> int: ...
    @property
    def weight(self) -> float: ...
    def value_and_gradient(self, params: Array) -> tuple[float, Array]: ...
    def product(self, params: Array, vector: Array) -> Array:
        """The Gauss-Newton curvature times a vector."""

    def batch(self, indices: Indices) -> Objective: ...


class Model(Protocol):
    """What is trained. Its penalty, beside the mean loss: ridge/2 |penalized * (w - center)|^2.

    is_linear: scores are affine in the parameters, so that the loss is convex.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def width(self) -> int:
        """How many numbers a row has."""

    @property
    def classes(self) -> int: ...
    @property
    def center(self) -> Array: ...
    @property
    def penalized(self) -> Array: ...
    @property
    def tensors(self) -> Mapping[str, Place]: ...
    @property
    def loss(self) -> Loss: ...
    @property
    def is_linear(self) -> bool: ...
    @property
    def exact(self) -> Model:
        """The same in float64."""

    @property
    def digest(self) -> str:
        """The sha256 of the network that it starts from; "" for a head, which starts from 0."""

    def start(self) -> Array: ...
    def random_start(self, seed: int) -> Array: ...
    def check_rows(self, client: str, width: int, outputs: int) -> None:
        """Refuse a client's rows that are not of this model."""

    def narrowed(self, classes: Indices) -> Model:
        """The model of these classes alone."""

    def narrowed_params(self, params: Array, classes: Indices) -> Array: ...
    def outputs(self, rows: EmbeddingSet) -> Outputs: ...


@record("loss/squares")
@dataclass(frozen=True)
class Squares:
    """1/2 |f - y|^2."""

    def values(self, scores: Array, targets: Array) -> Array:
        return np.asarray(0.5 * np.square(scores - targets).sum(axis=1))

    def slope(self, scores: Array, targets: Array) -> Array:
        return scores - targets

    @property
    def is_quadratic(self) -> bool:
        return True

    def curvature(self, scores: Array, moved: Array) -> Array:
        return moved

    @property
    def largest_curvature(self) -> float:
        return 1.0


@record("loss/cross-entropy")
@dataclass(frozen=True)
class CrossEntropy:
    """log sum exp(f) - y^T f, with y one-hot."""

    def values(self, scores: Array, targets: Array) -> Array:
        top = scores.max(axis=1)
        partition = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
        return np.asarray(partition - (scores * targets).sum(axis=1))

    def slope(self, scores: Array, targets: Array) -> Array:
        return np.asarray(softmax(scores) - targets)

    @property
    def is_quadratic(self) -> bool:
        return False

    def curvature(self, scores: Array, moved: Array) -> Array:
        """(diag(p) - p p^T) moved, with p = softmax(f)."""
        probabilities = softmax(scores)
        products = probabilities * moved
        return np.asarray(products - probabilities * products.sum(axis=1, keepdims=True))

    @property
    def largest_curvature(self) -> float:
        return 0.5


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class RowsObjective:
    """sum_i v_i l(f(x_i; w), y_i) over rows with weights v, a block at a time.

    targets: (n, k), or class numbers (n,), which are one-hot in the block at hand only.
    """

    outputs: Outputs
    targets: Array | Indices
    classes: int
    loss: Loss
    weight: float
    row_weights: Array | None = None

    @classmethod
    def of(cls, model: Model, rows: EmbeddingSet) -> RowsObjective:
        targets = rows.labels if rows.targets is None else rows.targets
        if targets is None:
            raise InputError(f"{rows.source} has no labels. Pass labels (--labels FILE).")
        outputs = model.outputs(rows)
        return cls(outputs, targets, model.classes, model.loss, rows.weight, rows.weights)

    @property
    def count(self) -> int:
        return len(self.targets)

    @property
    def target_matrix(self) -> Array:
        """The targets (n, k), labels one-hot."""
        if self.targets.ndim == 2:
            return np.asarray(self.targets, np.float64)
        matrix = np.zeros((self.count, self.classes))
        matrix[np.arange(self.count), self.targets.astype(np.int64)] = 1.0
        return matrix

    def value_and_gradient(self, params: Array) -> tuple[float, Array]:
        value = 0.0
        gradient = np.zeros(params.shape)
        for block in self._blocks():
            scores, pull = block.outputs.at(params)
            targets = block.target_matrix
            value += float(block._weighted(self.loss.values(scores, targets)).sum())
            gradient += pull(block._weighted(self.loss.slope(scores, targets)))
        return value, gradient

    def product(self, params: Array, vector: Array) -> Array:
        blocks = self._blocks()
        product = next(blocks)._product(params, vector)
        for block in blocks:
            product = product + block._product(params, vector)
        return product

    def batch(self, indices: Indices) -> RowsObjective:
        """Some of the rows with their share of the weight, so that a batch's mean is unbiased."""
        return self._take(indices, self.weight * len(indices) / self.count)

    def _product(self, params: Array, vector: Array) -> Array:
        """Of a single block."""
        moved = self.outputs.push(params, vector)
        if not self.loss.is_quadratic:
            moved = self.loss.curvature(self.outputs.at(params)[0], moved)
        return self.outputs.pull(params, self._weighted(moved))

    def _take(self, selection: Selection, weight: float) -> RowsObjective:
        return RowsObjective(
            self.outputs.take(selection),
            self.targets[selection],
            self.classes,
            self.loss,
            weight,
            None if self.row_weights is None else self.row_weights[selection],
        )

    def _blocks(self) -> Iterator[RowsObjective]:
        size = self.outputs.block
        if self.count <= size:
            yield self
            return
        for first in range(0, self.count, size):
            yield self._take(slice(first, first + size), 0.0)

    def _weighted(self, values: Array) -> Array:
        if self.row_weights is None:
            return values
        return values * self.row_weights.reshape(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True, eq=False)
class Penalty:
    """ridge/2 |penalized * (w - center)|^2."""

    model: Model
    ridge: float

    def value(self, params: Array) -> float:
        return 0.5 * float(((params - self.model.center) * self.gradient(params)).sum())

    def gradient(self, params: Array) -> Array:
        return self.product(params - self.model.center)

    def product(self, vector: Array) -> Array:
        """The penalty's Hessian times a vector."""
        return self.ridge * self.model.penalized**2 * vector


def scores(outputs: Outputs, params: Array) -> Array:
    """The scores of all rows, (n, k), a block of them at a time."""
    blocks = (
        outputs.take(slice(first, first + outputs.block))
        for first in range(0, outputs.count, outputs.block)
    )
    return np.concatenate([block.at(params)[0] for block in blocks])
