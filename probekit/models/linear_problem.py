"""Heads on embeddings as a problem: one-hot least squares with a ridge, from rows or from statistics. NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import ClientStats, Design, Solution
from probekit.linear.ridge import fit
from probekit.linear.roots import RootStats
from probekit.linear.solvers import Cholesky, ConjugateGradient, Operator, Solver
from probekit.linear.squares import CurvedSquares
from probekit.linear.statistics import row_blocks
from probekit.linear.system import ClassWeight, Standardisation
from probekit.models.adam import ADAM
from probekit.models.heads import Head, LinearHead, head_of
from probekit.models.linear_holding import RowHolding, StatisticsHolding
from probekit.models.problem import AS_IS, BuiltIn, ScoredRows
from probekit.values import Array, EmbeddingSet, Indices, Json, Rows


@dataclass(frozen=True, eq=False)
class HeadProblem(BuiltIn):
    """A head of embeddings. Centring or scaling, class weights and normalised classes are done on summed statistics."""

    backend: ClassVar[str] = "embeddings"
    kind: ClassVar[str] = "head"
    precision: ClassVar[str] = "float64"
    knows_server: ClassVar[bool] = False
    arrays: ClassVar[Mapping[str, NDArray[Any]]] = {}
    assumptions: ClassVar[tuple[str, ...]] = ()
    solvers: ClassVar[Mapping[str, Solver]] = {
        "cholesky": Cholesky(tolerance=1e-4),
        "cg": ConjugateGradient(tolerance=1e-8, max_steps=10_000),
        **ADAM,
    }

    design: Design
    classes: tuple[str, ...] = ()
    spec_digest: str = ""
    standardise: str | Standardisation = "none"
    class_weight: ClassWeight = None
    normalise_classes: bool = False

    @property
    def traits(self) -> frozenset[str]:
        """Always quadratic with statistics; plain where the clients' own losses are what is minimised."""
        minimum = not self.normalise_classes
        plain = minimum and self.standardise == "none" and self.class_weight is None
        return frozenset(["quadratic", "statistics"] + ["minimum"] * minimum + ["plain"] * plain)

    @property
    def plain(self) -> Mapping[str, Json]:
        """What defines it."""
        weight = self.class_weight if isinstance(self.class_weight, str | None) else [*map(float, self.class_weight)]
        view = self.standardise if isinstance(self.standardise, str) else self.standardise.name
        named: Any = {"design": asdict(self.design), "classes": list(self.classes), "spec": self.spec_digest}
        return {**named, "view": view, "class_weight": weight, "normalise_classes": self.normalise_classes}

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
    def arithmetic(self) -> str:
        """How sums of rows are rounded."""
        return self.design.arithmetic

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What a head that was trained by rounds says of it."""
        seen = self.design
        return {"head": "ridge", "intercept": seen.intercept, "arithmetic": seen.arithmetic, "grid": seen.grid, **AS_IS}

    def params(self, head: Head) -> Array:
        """The parameters of the least-squares problem: the head's, but no bias where the design has none."""
        return head.params[: self.design.columns]

    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> LinearHead:
        """The head at these parameters (with a bias of zero where the design has none)."""
        whole = np.vstack([params, np.zeros((self.design.dimension + 1 - len(params), params.shape[1]))])
        classes = self.classes or tuple(map(str, range(self.design.classes)))
        return LinearHead(whole, classes, ridge, self.design.view, self.spec_digest, recipe)

    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> Any:
        """What a client with these rows of a set holds."""
        return RowHolding(self, embeddings, rows)

    def hold_statistics(self, stats: ClientStats) -> Any:
        """What is known of a client by its statistics alone."""
        return StatisticsHolding(self, stats)

    def stats(self, arrays: Mapping[str, NDArray[Any]]) -> ClientStats:
        """The statistics in an answer."""
        if "root" in arrays:
            return RootStats(self.design, arrays["root"], arrays["class_counts"])
        return ClientStats(self.design, arrays["gram"], arrays["moment"], arrays["class_counts"])

    def minimum(
        self, total: ClientStats, ridge: float, *, term: Array | None = None, **options: Any
    ) -> tuple[LinearHead, Solution]:
        """The head that minimises the loss of summed statistics (with a linear `term`), and how well it was solved.

        `options` are the `scaling` of the ridge and the `solver`.
        """
        own: Any = {"standardise": self.standardise, "class_weight": self.class_weight}
        found = fit(total, ridge, normalise_classes=self.normalise_classes, objective=term, **own, **options)
        return head_of(found, classes=self.classes, spec_digest=self.spec_digest), found.solution

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

    @property
    def objective(self) -> Mapping[str, Json]:
        """For a certificate."""
        plain = self.plain
        return {"design": plain["design"], "view": plain["view"], "class_weight": plain["class_weight"]}

    def preconditioner(self, squares: CurvedSquares, ridge: float) -> Operator:
        """The inverse of the sample's curvature."""
        return squares.inverse(ridge)
