"""Logistic heads as a problem: clients answer with sums of the loss and of its gradient, from their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from probekit.errors import SolverError
from probekit.linear.design import Solution
from probekit.linear.lapack import special
from probekit.linear.logistic import NO_EXACT_UNLEARNING, fit_logistic, loss_and_gradient
from probekit.models.fitting import FitPlan
from probekit.models.linear_holding import RowHolding
from probekit.models.linear_problem import HeadProblem
from probekit.values import Array, EmbeddingSet, Indices, Json


@dataclass(eq=False)
class LogisticSums:
    """The loss in the place of half a sum of squares."""

    columns: Array
    labels: Indices
    last: tuple[Any, float, Array] = field(default=(None, 0.0, np.empty(0)), repr=False)

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.labels)

    def value(self, params: Array) -> float:
        """Twice the loss."""
        self.gradient(params)
        return 2 * self.last[1]

    def gradient(self, params: Array) -> Array:
        """The loss's gradient."""
        if self.last[0] is not params:
            self.last = (params, *loss_and_gradient(params, self.columns, self.labels))
        return self.last[2]

    def product(self, v: Array, at: Array) -> Array:
        """The curvature at a point, applied."""
        scores, along = special.softmax(self.columns @ at, axis=1), self.columns @ v
        return np.asarray(self.columns.T @ (scores * (along - (scores * along).sum(axis=1, keepdims=True))))

    def energy(self) -> float:
        """|X|^2."""
        return float(np.square(self.columns).sum())

    def target_energy(self) -> float:
        """One for each row."""
        return float(self.count)

    def largest_curvature(self, ridge: float) -> float:
        """Of the mean loss, anywhere, at most: a softmax has 1/2."""
        gram = self.columns.T @ self.columns / self.count
        return float(np.linalg.eigvalsh(gram)[-1]) / 2 + ridge

    def largest_row_curvature(self) -> float:
        """Of any single row's."""
        return float(np.square(self.columns).sum(axis=1).max(initial=0.0)) / 2


@dataclass(frozen=True, eq=False)
class LogisticHolding(RowHolding):
    """Rows of an embedding set, for a logistic head."""

    # no products: the curvature is another at every point
    offers: ClassVar[frozenset[str]] = frozenset({"statistics", "gradient", "curvature", "scales", "fit", "evaluate"})

    @cached_property
    def columns(self) -> Array:
        """The rows in float64, with a column of ones where there is a bias."""
        return self.table.astype(np.float64, copy=False)

    def squares(self, precision: str = "float64") -> Any:
        """The loss."""
        return LogisticSums(self.columns, self.labels)

    @property
    def quick(self) -> Any:
        """The same."""
        return self.squares()

    def batch_gradient(self, params: Array, some: Indices, wanted: Array | None = None) -> Array:
        """The gradient of the mean of some rows' losses; `wanted` stands in for their labels."""
        if wanted is not None:
            columns = self.columns[some]
            return np.asarray(columns.T @ (self.problem.softened(columns @ params) - wanted) / len(some))
        return np.asarray(loss_and_gradient(params, self.columns[some], self.labels[some])[1] / len(some))


@dataclass(frozen=True, eq=False)
class LogisticProblem(HeadProblem):
    """A softmax of scores. The loss is no sum of squares, so that nothing is certified of it and only training
    anew unlearns."""

    no_unlearning: ClassVar[str] = NO_EXACT_UNLEARNING

    @property
    def trainer(self) -> str:
        """An intercept is penalised where the loss has a secret linear term, and there alone."""
        return "guo" if self.design.intercept == "penalised" else "logistic"

    @property
    def traits(self) -> frozenset[str]:
        """Nothing of quadratic problems holds."""
        return frozenset({"trainer", "softmax"})

    @property
    def plain(self) -> Mapping[str, Json]:
        """What defines it."""
        return {**super().plain, "head": "logistic"}

    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> LogisticHolding:
        """What a client with these rows of a set holds."""
        return LogisticHolding(self, embeddings, rows)

    def penalty(self, ridge: float) -> Array:
        """scikit-learn's: two classes share one vector there, which is a softmax of half the C."""
        return super().penalty(2 * ridge if self.design.classes == 2 else ridge)

    def softened(self, scores: Array) -> Array:
        """Probabilities."""
        found = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def fit(self, holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
        """A client's parameters after its local steps; where the plan counts none, at the minimum of its own loss."""
        if plan.steps is None and plan.epochs is None:
            try:
                found = fit_logistic(holding.picked, holding.labels, self.design, c=1 / (plan.ridge * holding.count))
                best = found.solution
            except SolverError as error:  # whoever asked looks at the gradient there
                if not isinstance(error.best, Solution):
                    raise
                best = error.best
            return np.asarray(best.value[: self.design.columns])
        return super().fit(holding, name, plan, arrays)
