"""What clients can train: a problem, and one whose loss is quadratic, of which alone distances can be certified.

Parameters are two-dimensional: (d + 1, k) for a head on embeddings (bias last), (p, 1) for a network. A backend makes
problems; backends are registered, and a head says which one it belongs to. Nobody else asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.linear.rows import Picked
from probekit.linear.solvers import Operator, Solver
from probekit.models.fitting import FitPlan, local_steps
from probekit.models.heads import Head
from probekit.registry import nearest, problems
from probekit.values import UNLABELLED, Array, EmbeddingSet, Indices, Json, Partition, Rows, digest


class Holding(Protocol):
    """What a client holds, prepared once. `offers` names the questions that it can answer.

    A quadratic problem's has `squares(precision)`, the sum of squares of an affine model.
    """

    @property
    def problem(self) -> Problem: ...
    @property
    def count(self) -> int: ...
    @property
    def offers(self) -> frozenset[str]: ...


class Problem(Protocol):
    """What clients train together, apart from their rows.

    `backend` is the name it is registered by, `plain` and `arrays` define it (another process makes it anew from
    them), `blocks` are the rows of parameters that are one tensor, `precision` the numbers it is trained in,
    `traits` what holds for it: "quadratic" (a ridge loss of an affine model), "plain" (the clients' own losses add up
    to it), "minimum" (a head of it is that loss's minimum), "statistics" (sums of rows suffice for the minimum),
    "start" (training begins at a point of its own), "trainer" (only `trainer`, by name, finds its minimum). `averaged`,
    where it is there, names blocks that are averaged and never penalised, as a network's buffers.
    """

    @property
    def backend(self) -> str: ...
    @property
    def kind(self) -> str:
        """What it trains, in words."""

    @property
    def knows_server(self) -> bool:
        """Whether something of the server's rows is in it, as in pretrained weights."""

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What a head that was trained by rounds says of it."""

    @property
    def traits(self) -> frozenset[str]: ...
    @property
    def plain(self) -> Mapping[str, Json]: ...
    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]: ...
    @property
    def digest(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def blocks(self) -> Mapping[str, slice]: ...
    @property
    def precision(self) -> str: ...
    @property
    def start(self) -> Array:
        """Where training begins unless a trainer draws another point."""

    def params(self, head: Head) -> Array: ...
    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> Head: ...
    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> Holding: ...
    def fit(self, holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array: ...
    def loss(self, holding: Any, params: Array) -> float: ...
    def scores(self, head: Any, rows: Rows) -> Array: ...


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Some rows' scores, and how they depend on the parameters.

    Where all classes share a row's columns, `rows` are these. Where every class has its own (a network), `apart` is
    the norm of the difference of each class's to the best one's, `norms` that of each, and `images` gives the
    products of each row's and class's with the columns of a matrix, (n, k, columns).
    """

    scores: Array
    rows: Array | None = None
    apart: Array | None = None
    norms: Array | None = None
    images: Callable[[Array], Array] | None = None


class Quadratic(Problem, Protocol):
    """A problem with a ridge loss of an affine model."""

    @property
    def objective(self) -> Mapping[str, Json]:
        """What determines the loss besides rows and ridge, for a certificate."""

    @property
    def arithmetic(self) -> str:
        """How sums of rows are rounded: "float64", "fast" or "exact"."""

    @property
    def assumptions(self) -> tuple[str, ...]: ...

    def penalty(self, ridge: float) -> Array:
        """The ridge of every row of the parameters, (d, 1): 0 where nothing is penalised."""

    def solver(self, name: str, watch: Callable[[int, float, Array], None] | None = None) -> Solver: ...
    def preconditioner(self, squares: Any, ridge: float) -> Operator:
        """For the loss of other people's rows, of which these are a sample."""

    def scored(self, head: Any, embeddings: EmbeddingSet, *, centre: Array | None = None) -> Iterator[ScoredRows]: ...


class BuiltIn:
    """What the problems here share; one from elsewhere need not stand on it."""

    solvers: ClassVar[Mapping[str, Any]] = {}
    canary: ClassVar[str | None] = None
    """What its code gives for fixed inputs: others' problem is another where their code is. None: not looked at."""

    @cached_property
    def digest(self: Any) -> str:
        """The sha256 of what defines it."""
        return digest({**self.plain, **({} if self.canary is None else {"canary": self.canary})})

    def solver(self, name: str, watch: Callable[[int, float, Array], None] | None = None) -> Solver:
        """A solver of systems with the curvature."""
        if name not in self.solvers:
            raise NotFoundError(f"This problem has no solver {name!r}. {nearest(name, list(self.solvers))}")
        found: Solver = self.solvers[name]
        return found

    def fit(self: Any, holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
        """A client's parameters after its local steps."""
        if plan.loss != "own":
            raise InputError(f"Local training on a {plan.loss} loss needs cross-entropy; this is a {self.kind}.")

        def teacher() -> Array:
            head = self.head(arrays["teacher"], ridge=0.0, recipe={})
            return np.asarray(self.softened(self.scores(head, holding.picked)))

        drawn = plan.drawn(holding.labels, self.outputs, name, teacher) if plan.targets != "own" else None
        penalty, squares = self.penalty(plan.ridge), holding.quick if plan.batch is None and drawn is None else None

        def gradient(params: Array, some: Indices) -> Array:
            if squares is not None:
                return np.asarray(squares.gradient(params) / squares.count + penalty * params)
            some = some[some >= 0] if plan.batch is not None else np.arange(holding.count)
            wanted = None if drawn is None else drawn(some)
            return np.asarray(holding.batch_gradient(params, some, wanted) + penalty * params)

        return local_steps(plan, arrays, plan.batches(holding.count, name), gradient)

    @property
    def outputs(self: Any) -> int:
        """How many scores a row has."""
        return int(self.shape[1])

    def softened(self, scores: Array) -> Array:
        """Scores as targets of others: of a squared loss, as they are."""
        return scores

    def loss(self, holding: Any, params: Array) -> float:
        """Half the sum of squares."""
        return float(holding.quick.value(params)) / 2


@dataclass(frozen=True, eq=False)
class SetHolding:
    """Rows of an embedding set."""

    problem: Any
    embeddings: EmbeddingSet
    rows: Indices

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def picked(self) -> Picked:
        """The rows, read when asked for."""
        return Picked(self.embeddings.embeddings, self.rows)

    @cached_property
    def labels(self) -> Indices:
        """The class of each row."""
        return self.embeddings.labels[self.rows]

    @cached_property
    def ids(self) -> list[str]:
        """The sample id of each row."""
        return [self.embeddings.ids[row] for row in self.rows.tolist()]


class Backend(Protocol):
    """Makes problems of one kind: for a training (`prepare`), of a head (`of`), of what was sent (`from_plain`).

    `trainer` is what it is trained by unless asked otherwise, `ridge` its usual ridge (None: chosen from the rows),
    `serving` what it takes to use a saved head, `options` the options of a training that are its own.
    """

    trainer: str
    ridge: float | None
    serving: str
    options: tuple[str, ...]

    def prepare(self, embeddings: EmbeddingSet, partition: Partition, options: Any, **more: Any) -> Problem: ...
    def of(self, head: Any, stored: Mapping[str, Any] | None = None) -> Problem: ...
    def from_plain(self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Problem: ...
    def save(self, head: Any) -> tuple[dict[str, Json], dict[str, NDArray[Any]]]: ...
    def load(self, config: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> Head: ...


def backend_named(name: str) -> Backend:
    """The backend that is registered by this name."""
    found: Backend = problems.get(name)()
    return found


def problem_of(head: Head, stored: Mapping[str, Any] | None = None) -> Any:
    """The problem that a head solves; `stored` is what a run kept of it beside the head."""
    return backend_named(head.backend).of(head, stored)


def class_count(embeddings: EmbeddingSet) -> int:
    """How many classes a set's labels can have."""
    return len(embeddings.class_names) or int(embeddings.labels.max(initial=UNLABELLED)) + 1


AS_IS: Mapping[str, Json] = {"fit_view": "none", "class_weight": None, "normalise_classes": False}
"""What a recipe says of rows that are neither scaled nor weighed."""
