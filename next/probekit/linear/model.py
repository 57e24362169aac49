"""LinearModel: scores W^T z with z = [x 1], under squares (ridge) or cross-entropy (logistic)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet, Rows
from probekit.errors import InputError
from probekit.linear.ridge import INTERCEPTS, Intercept
from probekit.linear.stats import SufficientStats
from probekit.objective import Loss, Place, Pull, Selection, Squares
from probekit.records import record

RESIDENT_BYTES = 1 << 26
"""Rows up to this size are converted to float64 once, others in every pass, a block at a time."""


@dataclass(frozen=True, eq=False)
class LinearOutputs:
    """X W + b, whose Jacobian is [X 1] for every class."""

    rows: Rows

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def matrix(self) -> Array:
        return np.asarray(self.rows, np.float64)

    def at(self, params: Array) -> tuple[Array, Pull]:
        X = self.matrix

        def pull(cotangent: Array) -> Array:
            gradient = np.empty(params.shape)
            gradient[:-1] = X.T @ cotangent
            gradient[-1] = cotangent.sum(axis=0)
            return gradient

        return X @ params[:-1] + params[-1], pull

    def push(self, params: Array, vector: Array) -> Array:
        return np.asarray(self.matrix @ vector[:-1] + vector[-1])

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

    def start(self) -> Array:
        return np.zeros(self.shape)

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
