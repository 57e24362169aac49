"""LinearModel: scores W^T z with z = [x 1], under squares (ridge) or cross-entropy (logistic)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import BLOCK, EmbeddingSet, Rows
from probekit.errors import InputError
from probekit.linear.ridge import INTERCEPTS, Intercept
from probekit.linear.stats import SufficientStats
from probekit.objective import Loss, Place, Pull, Selection, Squares
from probekit.records import record

START_STREAM = 24
RESIDENT_BYTES = 1 << 26
"""Rows up to this size are converted to float64 once, others in every pass, a block at a time."""


@dataclass(frozen=True, eq=False)
class LinearOutputs:
    """X W + b, whose Jacobian is [X 1] for every class."""

    rows: Rows

    block = BLOCK

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def matrix(self) -> Array:
        return np.asarray(self.rows, np.float64)

    def at(self, params: Array) -> tuple[Array, Pull]:
        outputs = LinearOutputs(self.matrix)
        scores = outputs.matrix @ params[:-1] + params[-1]
        return scores, partial(outputs.pull, params)

    def pull(self, params: Array, cotangent: Array) -> Array:
        gradient = np.empty(params.shape)
        gradient[:-1] = self.matrix.T @ cotangent
        gradient[-1] = cotangent.sum(axis=0)
        return gradient

    def push(self, params: Array, vector: Array) -> Array:
        return np.asarray(self.matrix @ vector[:-1] + vector[-1])

    def diagonal(self, params: Array, weights: Array) -> Array:
        """Of every class's columns alike, (d + 1, 1)."""
        squares = np.empty((len(params), 1))
        squares[:-1, 0] = weights @ np.square(self.matrix)
        squares[-1] = weights.sum()
        return squares

    def lengths(self, params: Array, cotangents: Array) -> Array:
        squares = np.square(self.matrix).sum(axis=1) + 1
        return np.asarray(np.sqrt(squares) * np.linalg.norm(cotangents, axis=1))

    def take(self, selection: Selection) -> LinearOutputs:
        return LinearOutputs(self.rows[selection])


@record("model/linear")
@dataclass(frozen=True)
class LinearModel:
    """Weights (d, k) above an intercept (1, k), which is free or penalized (as in the paper)."""

    dimension: int
    classes: int
    loss: Loss = field(default_factory=Squares)
    intercept: Intercept = "free"

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.classes < 1:
            raise InputError(
                f"A linear model needs dimensions and classes; found {self.dimension} and "
                f"{self.classes}. Take them from the rows."
            )
        if self.intercept not in INTERCEPTS:
            raise InputError(f"intercept must be 'free' or 'penalized'; found {self.intercept!r}.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.dimension + 1, self.classes

    @property
    def width(self) -> int:
        return self.dimension

    @property
    def tensors(self) -> Mapping[str, Place]:
        d, k = self.dimension, self.classes
        return {"weight": (slice(0, d), (d, k)), "intercept": (slice(d, d + 1), (1, k))}

    @cached_property
    def center(self) -> Array:
        return np.zeros(self.shape)

    @cached_property
    def penalized(self) -> Array:
        penalized = np.ones((self.dimension + 1, 1))
        if self.intercept == "free":
            penalized[-1] = 0.0
        return penalized

    @property
    def is_linear(self) -> bool:
        return True

    @property
    def exact(self) -> LinearModel:
        return self

    @property
    def digest(self) -> str:
        return ""

    def start(self) -> Array:
        return np.zeros(self.shape)

    def random_start(self, seed: int) -> Array:
        """Uniform, as PyTorch draws a linear layer's."""
        generator = np.random.Generator(np.random.PCG64([seed, START_STREAM]))
        return np.asarray(generator.uniform(-1, 1, self.shape) / np.sqrt(self.dimension))

    def check_rows(self, client: str, width: int, outputs: int) -> None:
        if (self.dimension, self.classes) != (width, outputs):
            raise InputError(
                f"Client {client} must have rows of {self.dimension} numbers and {self.classes} "
                f"classes or targets; it has {width} and {outputs}. Encode and label them alike."
            )

    def narrowed(self, classes: Indices) -> LinearModel:
        return replace(self, classes=len(classes))

    def narrowed_params(self, params: Array, classes: Indices) -> Array:
        return np.ascontiguousarray(params[:, classes])

    def outputs(self, rows: EmbeddingSet) -> LinearOutputs:
        if 8 * len(rows) * rows.width <= RESIDENT_BYTES:
            return LinearOutputs(np.asarray(rows.rows, np.float64))
        return LinearOutputs(rows.rows)


@dataclass(frozen=True, eq=False)
class StatsObjective:
    """sum 1/2 |W^T z - y|^2 from sums: p x p work (or a root's) whatever the rows, no batches."""

    stats: SufficientStats

    @property
    def count(self) -> int:
        return self.stats.count

    @property
    def weight(self) -> float:
        return self.stats.weight

    def value_and_gradient(self, params: Array) -> tuple[float, Array]:
        """1/2 <W, G W - 2 C> + 1/2 |Y|^2 and G W - C; of a root, which is rows, as of rows."""
        stats = self.stats
        if stats.root is not None:
            Z = stats.root[:, : stats.columns]
            residuals = Z @ params - stats.root[:, stats.columns :]
            return 0.5 * float(np.square(residuals).sum()), Z.T @ residuals
        moved = stats.gram @ params
        inner = float((params * (moved - 2 * stats.moment)).sum())
        value = 0.5 * (inner + float(stats.target_squares.sum()))
        return value, moved - stats.moment

    def product(self, params: Array, vector: Array) -> Array:
        if self.stats.root is not None:
            Z = self.stats.root[:, : self.stats.columns]
            return np.asarray(Z.T @ (Z @ vector))
        return np.asarray(self.stats.gram @ vector)

    def batch(self, indices: Indices) -> StatsObjective:
        raise InputError("Batches need rows; found statistics. Set batch_size to None.")
