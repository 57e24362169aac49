"""Heads on embeddings as a problem: one-hot least squares with a ridge, from rows or from statistics. NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.errors import NotFoundError
from probekit.linear.design import ClientStats, Design, Solution
from probekit.linear.ridge import CHOLESKY, fit, penalty_of
from probekit.linear.solvers import Cholesky, ConjugateGradient, Operator, Solver
from probekit.linear.squares import CurvedSquares
from probekit.linear.statistics import row_blocks
from probekit.linear.system import ClassWeight, Standardisation
from probekit.models.adam import F2L2, AdamSteps
from probekit.models.fitting import FitPlan, local_steps
from probekit.models.heads import Head, LinearHead, head_of
from probekit.models.linear_holding import RowHolding, StatisticsHolding
from probekit.models.problem import ScoredRows
from probekit.registry import nearest
from probekit.values import Array, EmbeddingSet, Indices, Json, Rows, digest

SOLVERS: dict[str, Solver] = {
    "cholesky": Cholesky(tolerance=1e-4),
    "cg": ConjugateGradient(tolerance=1e-8, max_steps=10_000),
    "adam": AdamSteps(),
    "f2l2": F2L2,
}


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """A head of embeddings. Centring or scaling, class weights and normalised classes are done on summed statistics."""

    backend: ClassVar[str] = "embeddings"
    precision: ClassVar[str] = "float64"

    design: Design
    classes: tuple[str, ...] = ()
    spec_digest: str = ""
    standardise: str | Standardisation = "none"
    class_weight: ClassWeight = None
    normalise_classes: bool = False

    @property
    def traits(self) -> frozenset[str]:
        """Always quadratic with statistics; plain where the clients' own losses are what is minimised."""
        found = {"quadratic", "statistics"} | (set() if self.normalise_classes else {"minimum"})
        plain = self.standardise == "none" and self.class_weight is None and not self.normalise_classes
        return frozenset(found | ({"plain"} if plain else set()))

    @property
    def plain(self) -> Mapping[str, Json]:
        """What defines it."""
        weight = self.class_weight
        return {
            "design": asdict(self.design),
            "classes": list(self.classes),
            "spec": self.spec_digest,
            "view": self.standardise if isinstance(self.standardise, str) else self.standardise.name,
            "class_weight": weight if weight is None or isinstance(weight, str) else [float(one) for one in weight],
            "normalise_classes": self.normalise_classes,
        }

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """None are needed."""
        return {}

    @cached_property
    def digest(self) -> str:
        """The sha256 of what defines it."""
        return digest(self.plain)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters: the bias is their last row, where there is one."""
        return (self.design.columns, self.design.classes)

    @property
    def blocks(self) -> Mapping[str, slice]:
        """Weights and bias."""
        return {"weight": slice(0, self.design.dimension), "bias": slice(self.design.dimension, self.design.columns)}

    @property
    def start(self) -> Array:
        """Zeros."""
        return np.zeros(self.shape)

    @property
    def kind(self) -> str:
        """In words."""
        return "head"

    @property
    def arithmetic(self) -> str:
        """How sums of rows are rounded."""
        return self.design.arithmetic

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What a head that was trained by rounds says of it."""
        return {
            "head": "ridge",
            "intercept": self.design.intercept,
            "arithmetic": self.design.arithmetic,
            "grid": self.design.grid,
            "fit_view": "none",
            "class_weight": None,
            "normalise_classes": False,
        }

    @property
    def knows_server(self) -> bool:
        """Nothing of the server's rows is in it."""
        return False

    def params(self, head: Head) -> Array:
        """The parameters of the least-squares problem: the head's, but no bias where the design has none."""
        return head.params[: self.design.columns]

    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> LinearHead:
        """The head at these parameters (with a bias of zero where the design has none)."""
        bias = np.zeros((self.design.dimension + 1 - len(params), params.shape[1]))
        classes = self.classes or tuple(map(str, range(self.design.classes)))
        whole = np.vstack([params, bias])
        return LinearHead(whole, classes, ridge, self.design.view, self.spec_digest, recipe)

    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> RowHolding:
        """What a client with these rows of a set holds."""
        return RowHolding(self, embeddings, rows)

    def hold_statistics(self, stats: ClientStats) -> StatisticsHolding:
        """What is known of a client by its statistics alone."""
        return StatisticsHolding(self, stats)

    def stats(self, arrays: Mapping[str, NDArray[Any]]) -> ClientStats:
        """The statistics in an answer."""
        return ClientStats(self.design, arrays["gram"], arrays["moment"], arrays["class_counts"])

    def minimum(
        self,
        total: ClientStats,
        ridge: float,
        *,
        scaling: str = "mean",
        term: Array | None = None,
        solver: Solver = CHOLESKY,
    ) -> tuple[LinearHead, Solution]:
        """The head that minimises the loss of summed statistics (with a linear `term`), and how well it was solved."""
        found = fit(
            total,
            ridge,
            scaling=scaling,
            standardise=self.standardise,
            class_weight=self.class_weight,
            normalise_classes=self.normalise_classes,
            solver=solver,
            objective=term,
        )
        return head_of(found, classes=self.classes, spec_digest=self.spec_digest), found.solution

    def fit(
        self,
        holding: RowHolding,
        name: str,
        start: Array,
        plan: FitPlan,
        *,
        centre: Array | None = None,
        away: Array | None = None,
    ) -> Array:
        """A client's parameters after its local steps."""
        penalty = self.penalty(plan.ridge)
        if plan.batch is None:
            squares = holding.quick

            def gradient(params: Array, some: Indices) -> Array:
                return np.asarray(squares.gradient(params) / squares.count + penalty * params)
        else:
            columns, labels = holding.table, holding.labels

            def gradient(params: Array, some: Indices) -> Array:
                some = some[some >= 0]
                block = columns[some].astype(np.float64, copy=False)
                return np.asarray(self.row_gradient(params, block, labels[some]) / len(some) + penalty * params)

        batches = plan.batches(holding.count, name)
        return local_steps(start, batches, gradient, plan, centre=centre, away=away)

    def row_gradient(self, params: Array, columns: Array, labels: Indices) -> Array:
        """The gradient of the sum of some rows' losses."""
        residual = columns @ params
        residual[np.arange(len(labels)), labels] -= 1
        return np.asarray(columns.T @ residual)

    def loss(self, holding: RowHolding | StatisticsHolding, params: Array) -> float:
        """Half the sum of squares."""
        return holding.quick.value(params) / 2

    def scores(self, head: LinearHead, rows: Rows) -> Array:
        """The score of each class for each row."""
        weights, bias = head.params[:-1], head.params[-1]
        found = np.empty((len(rows), len(head.classes)))
        length = max(64, 2**24 // (8 * head.dimension))
        for start in range(0, len(rows), length):
            block = np.asarray(rows[start : start + length], dtype=np.float64)
            result = block @ weights
            if head.view == "l2":
                with np.errstate(invalid="ignore", divide="ignore"):
                    result /= np.sqrt(np.square(block).sum(axis=1))[:, None]
            found[start : start + length] = result + bias
        return found

    def scored(
        self, head: LinearHead, embeddings: EmbeddingSet, *, centre: Array | None = None
    ) -> Iterator[ScoredRows]:
        """Scores and columns of a set's rows, `centre` taken off."""
        seen = replace(self.design, view=head.view, arithmetic="float64", grid=0.0)
        for _, block in row_blocks(embeddings.embeddings, seen):
            rows = block.astype(np.float64) if centre is None else block - centre
            if self.design.intercept != "none":
                rows = np.hstack([rows, np.ones((len(rows), 1))])
            yield ScoredRows(rows @ self.params(head), rows)

    def penalty(self, ridge: float) -> Array:
        """The ridge of every row of the parameters, (d, 1): 0 for an intercept that is free."""
        result = np.full((self.design.columns, 1), ridge)
        if self.design.intercept == "free":
            result[-1] = 0.0
        return result

    def mean_ridge(self, ridge: float, scaling: str, rows: int) -> float:
        """A ridge in mean scaling."""
        return penalty_of(ridge, scaling, rows) / rows

    @property
    def objective(self) -> Mapping[str, Json]:
        """For a certificate."""
        plain = self.plain
        return {"design": plain["design"], "view": plain["view"], "class_weight": plain["class_weight"]}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Nothing beyond the usual."""
        return ()

    def solver(self, name: str, watch: Callable[[int, float, Array], None] | None = None) -> Solver:
        """A solver of systems with a matrix."""
        if name not in SOLVERS:
            raise NotFoundError(f"A head has no solver {name!r}. {nearest(name, list(SOLVERS))}")
        return SOLVERS[name]

    def preconditioner(self, squares: CurvedSquares, ridge: float) -> Operator:
        """The inverse of the sample's curvature."""
        return squares.inverse(ridge)
