"""A third backend, known to nothing but the tests: heads on random cosine features of the rows, in NumPy.

It imports values and solvers of ours for brevity; what makes it a backend are its structural members alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.linear.affine import ModelSquares
from probekit.linear.rows import Picked
from probekit.linear.solvers import Cholesky, ConjugateGradient, Inverse, Operator, Solver
from probekit.models.fitting import FitPlan, local_steps
from probekit.models.problem import ScoredRows
from probekit.values import EmbeddingSet, Json, Partition, Rows, digest

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
FEATURES, OFFERS = 12, frozenset({"gradient", "product", "form", "scales", "fit", "evaluate"})


@dataclass(frozen=True, eq=False)
class ToyHead:
    """Scores cos(x Q) params of fixed random directions Q."""

    backend: ClassVar[str] = "toy"
    view: ClassVar[str] = "raw"

    params: Array
    classes: tuple[str, ...]
    ridge: float
    directions: Array
    spec_digest: str = ""
    recipe: Mapping[str, Json] = field(default_factory=dict)

    @property
    def dimension(self) -> int:
        return len(self.directions)

    @property
    def digest(self) -> str:
        parts = np.ascontiguousarray(self.params).tobytes() + np.ascontiguousarray(self.directions).tobytes()
        return hashlib.sha256(repr(self.classes).encode() + parts).hexdigest()


@dataclass(frozen=True, eq=False)
class CosineModel:
    """outputs = features params."""

    features: Array
    classes: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.features.shape[1], self.classes)

    @property
    def offset(self) -> Array:
        return np.zeros((len(self.features), self.classes))

    def jvp(self, params: Array) -> Array:
        return np.asarray(self.features @ params)

    def vjp(self, outputs: Array) -> Array:
        return np.asarray(self.features.T @ outputs)


@dataclass(frozen=True, eq=False)
class ToySquares(ModelSquares):
    """The squares of the cosine features, with their matrix."""

    @property
    def features(self) -> Array:
        assert isinstance(self.model, CosineModel)
        return self.model.features

    @property
    def rank(self) -> int:
        return int(min(self.features.shape))

    def dense(self) -> Array | None:
        return np.asarray(self.features.T @ self.features)

    def energy(self) -> float:
        return float(np.square(self.features).sum())

    def largest_curvature(self, ridge: float) -> float:
        return float(np.linalg.eigvalsh(self._curvature(ridge))[-1])

    def largest_row_curvature(self) -> float:
        return float(np.square(self.features).sum(axis=1).max())

    def effective_dimension(self, ridge: float) -> float | None:
        return float(np.trace(np.linalg.solve(self._curvature(ridge), self._curvature(0.0))))

    def inverse(self, ridge: float) -> Operator:
        return Inverse.of(self._curvature(ridge))

    def work(self, products: int, *, factored: bool) -> int:
        return products * self.features.size

    def _curvature(self, ridge: float) -> Array:
        return np.asarray(self.features.T @ self.features / self.count + ridge * np.eye(self.features.shape[1]))


@dataclass(frozen=True, eq=False)
class ToyHolding:
    """Rows of a set."""

    problem: ToyProblem
    embeddings: EmbeddingSet
    rows: Indices

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def offers(self) -> frozenset[str]:
        return OFFERS

    @property
    def labels(self) -> Indices:
        return self.embeddings.labels[self.rows]

    @property
    def ids(self) -> list[str]:
        return [self.embeddings.ids[row] for row in self.rows.tolist()]

    @property
    def picked(self) -> Picked:
        return Picked(self.embeddings.embeddings, self.rows)

    def squares(self, precision: str = "float64") -> ToySquares:
        features = self.problem.features(self.picked)
        classes = len(self.problem.classes)
        return ToySquares(CosineModel(features, classes), np.eye(classes)[self.labels])

    @property
    def quick(self) -> ToySquares:
        return self.squares()


@dataclass(frozen=True, eq=False)
class ToyProblem:
    """Ridge regression on cosine features."""

    backend: ClassVar[str] = "toy"
    traits: ClassVar[frozenset[str]] = frozenset({"quadratic", "plain", "minimum"})
    precision: ClassVar[str] = "float64"
    arithmetic: ClassVar[str] = "float64"
    knows_server: ClassVar[bool] = False
    kind: ClassVar[str] = "toy head"
    assumptions: ClassVar[tuple[str, ...]] = ("The cosine features are taken as computed.",)

    directions: Array
    classes: tuple[str, ...]
    spec_digest: str = ""

    @property
    def plain(self) -> Mapping[str, Json]:
        return {"classes": list(self.classes), "spec": self.spec_digest, "directions": self.objective["directions"]}

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        return {"directions": self.directions}

    @property
    def digest(self) -> str:
        return digest(self.plain)

    @property
    def objective(self) -> Mapping[str, Json]:
        found = hashlib.sha256(np.ascontiguousarray(self.directions).tobytes()).hexdigest()
        return {"directions": found, "view": "none", "class_weight": None}

    @property
    def recipe(self) -> Mapping[str, Json]:
        return {"head": "toy"}

    @property
    def shape(self) -> tuple[int, int]:
        return (FEATURES, len(self.classes))

    @property
    def blocks(self) -> Mapping[str, slice]:
        return {"weight": slice(0, FEATURES)}

    @property
    def start(self) -> Array:
        return np.zeros(self.shape)

    def features(self, rows: Rows) -> Array:
        return np.cos(np.asarray(rows, np.float64) @ self.directions)

    def params(self, head: Any) -> Array:
        found: Array = head.params
        return found

    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> ToyHead:
        return ToyHead(params, self.classes, ridge, self.directions, self.spec_digest, recipe)

    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> ToyHolding:
        return ToyHolding(self, embeddings, rows)

    def fit(self, holding: ToyHolding, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
        squares = holding.squares()

        def gradient(params: Array, some: Indices) -> Array:
            return np.asarray(squares.gradient(params) / squares.count + plan.ridge * params)

        return local_steps(plan, arrays, plan.batches(holding.count, name), gradient)

    def loss(self, holding: ToyHolding, params: Array) -> float:
        return holding.squares().value(params) / 2

    def scores(self, head: ToyHead, rows: Rows) -> Array:
        return np.asarray(self.features(rows) @ head.params)

    def scored(self, head: ToyHead, embeddings: EmbeddingSet, *, centre: Array | None = None) -> Iterator[ScoredRows]:
        features = self.features(embeddings.embeddings)
        yield ScoredRows(np.asarray(features @ head.params), features)

    def penalty(self, ridge: float) -> Array:
        return np.full((1, 1), ridge)

    def solver(self, name: str, watch: Callable[[int, float, Array], None] | None = None) -> Solver:
        return ConjugateGradient(1e-10, 1000) if name == "cg" else Cholesky()

    def preconditioner(self, squares: ToySquares, ridge: float) -> Operator:
        return squares.inverse(ridge)


class ToyBackend:
    """Makes toy problems."""

    trainer = "cg"
    ridge: float | None = 0.05
    serving = "NumPy"
    options: tuple[str, ...] = ()

    def prepare(self, embeddings: EmbeddingSet, partition: Partition, options: Any, **more: Any) -> ToyProblem:
        known = more.get("known") or {}
        drawn = np.random.default_rng(options.seed).standard_normal((embeddings.dimension, FEATURES))
        return ToyProblem(known.get("directions", drawn), embeddings.class_names, embeddings.spec.digest)

    def of(self, head: ToyHead, stored: Mapping[str, Any] | None = None) -> ToyProblem:
        return ToyProblem(head.directions, head.classes, head.spec_digest)

    def from_plain(self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ToyProblem:
        return ToyProblem(arrays["directions"], tuple(plain["classes"]), plain["spec"])

    def save(self, head: ToyHead) -> tuple[dict[str, Json], dict[str, NDArray[Any]]]:
        return {}, {"directions": head.directions}

    def load(self, config: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> ToyHead:
        fields = {name: config[name] for name in ("ridge", "spec_digest", "recipe")}
        return ToyHead(arrays["params"], tuple(config["classes"]), directions=arrays["directions"], **fields)
