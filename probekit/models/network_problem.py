"""Whole networks, linearized around w_p, as a problem: the same ridge loss, with a Jacobian in place of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.kernel import batch_factors
from probekit.jacobian.linearize import LinearizedRows, linearize
from probekit.linear.solvers import Operator, Solver
from probekit.models.adam import ADAM, AdamSteps
from probekit.models.heads import Head, Network, NetworkHead
from probekit.models.network_holding import NetworkHolding, NetworkSquares, row_kernels
from probekit.models.networks import inputs_of, linearized, network
from probekit.models.problem import AS_IS, BuiltIn, ScoredRows
from probekit.values import Array, EmbeddingSet, Indices, Json, Rows

LINEARIZED = (
    "It concerns the network linearized around w_p, and w_p itself knows nobody's rows but the server's.",
    "The Jacobian is taken as computed, in float64; its own rounding is not bounded.",
)
BLOCK_ROWS = 4096
SCORED_ROWS = 8192


@dataclass(frozen=True, eq=False)
class NetworkProblem(BuiltIn):
    """A network linearized around its weights; parameters are counted from w_p or from zero (`centre`)."""

    backend: ClassVar[str] = "jvp"
    traits: ClassVar[frozenset[str]] = frozenset({"quadratic", "plain", "minimum", "start"})
    arithmetic: ClassVar[str] = "float64"
    assumptions: ClassVar[tuple[str, ...]] = LINEARIZED
    solvers: ClassVar[Mapping[str, CurvatureSolver | AdamSteps]] = {
        "cholesky": CurvatureSolver(),
        **{name: CurvatureSolver(name) for name in ("dual", "pcg", "cg")},
        **ADAM,
    }

    network: Network
    centre: str = "wp"
    classes: tuple[str, ...] = ()
    spec_digest: str = ""
    pretraining: Mapping[str, Json] | None = None
    weights: str | None = None

    @property
    def precision(self) -> str:
        """The numbers that it is trained in."""
        return self.network.precision

    @property
    def plain(self) -> Mapping[str, Json]:
        """What defines it, besides the weights."""
        named = {"classes": list(self.classes), "spec": self.spec_digest}
        return {"network": self.network.plain, "weights": self.network.digest, "centre": self.centre, **named}

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """w_p by name."""
        return self.network.weights

    @property
    def shape(self) -> tuple[int, int]:
        """One column of all that moves."""
        return (linearized(self.network).size, 1)

    @property
    def outputs(self) -> int:
        """One for each class."""
        return self.network.classes

    @property
    def blocks(self) -> Mapping[str, slice]:
        """One per tensor that moves."""
        sizes = {name: int(self.network.weights[name].size) for name in self.network.moving}
        ends = accumulate(sizes.values())
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every block as a tensor."""
        return {name: self.network.weights[name].shape for name in self.blocks}

    @property
    def start(self) -> Array:
        """The parameters that stand for w_p."""
        return np.zeros(self.shape) if self.centre == "wp" else linearized(self.network).weights

    @property
    def origin(self) -> Array:
        """The weights that parameters of zero stand for."""
        return linearized(self.network).weights - self.start

    def random_start(self, seed: int) -> Array:
        """The parameters that stand for the weights of a network made anew."""
        own = self.network
        made = network(own.name, own.shape, own.classes, seed=seed).to(getattr(torch, self.precision))
        return linearize(made, subset=list(own.moving)).weights - self.origin

    @property
    def kind(self) -> str:
        """In words."""
        return f"network {self.network.name}, linearized ({self.shape[0]} parameters)"

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What a head of it says of itself."""
        own = {"centre": self.centre, "pretraining": self.pretraining, "weights": self.weights}
        return {"head": "network", "intercept": "none", "arithmetic": "float64", **AS_IS, **own}

    @property
    def knows_server(self) -> bool:
        """Whether w_p was pretrained on the server's rows."""
        return self.pretraining is not None

    def params(self, head: Head) -> Array:
        """All of the head's."""
        return head.params

    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> NetworkHead:
        """The network's head at these parameters."""
        classes = self.classes or tuple(map(str, range(self.network.classes)))
        return NetworkHead(params, classes, ridge, self.network, self.centre, self.spec_digest, recipe)

    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> NetworkHolding:
        """What a client with these rows holds; `share` is its part of the memory that is free."""
        if not len(rows):
            raise InputError(f"Every client needs a row; client {name} has none. Leave it out of the partition.")
        return NetworkHolding(self, embeddings, rows, share)

    def scores(self, head: NetworkHead, rows: Rows) -> Array:
        """The linearized network's scores."""
        model, found = linearized(self.network), np.empty((len(rows), len(head.classes)))
        for start in range(0, len(rows), SCORED_ROWS):
            block = inputs_of(self.network, np.asarray(rows[start : start + SCORED_ROWS]))
            found[start : start + SCORED_ROWS] = model.over(block, centre=self.centre, keep=False).outputs(head.params)
        return found

    def scored(
        self, head: NetworkHead, embeddings: EmbeddingSet, *, centre: Array | None = None
    ) -> Iterator[ScoredRows]:
        """Scores and how far apart the classes' Jacobians are, in float64."""
        model = linearized(self.network, precision="float64")
        for first in range(0, len(embeddings), BLOCK_ROWS):
            inputs = inputs_of(self.network, np.asarray(embeddings.embeddings[first : first + BLOCK_ROWS]))
            rows = model.over(inputs, centre=self.centre)
            scores = rows.outputs(head.params)
            kernels = np.concatenate([row_kernels(one) for one in batch_factors(rows)])
            top, place = scores.argmax(axis=1), np.arange(len(scores))
            diagonal = np.einsum("nkk->nk", kernels)
            apart = diagonal + diagonal[place, top][:, None] - 2 * kernels[place, top]

            def images(matrix: Array, rows: LinearizedRows = rows) -> Array:
                found = np.empty((rows.count, rows.classes, matrix.shape[1]))
                for place, one in enumerate(matrix.T):
                    found[..., place] = rows.jvp(one[:, None])
                return found

            yield ScoredRows(scores, None, np.sqrt(np.maximum(apart, 0)), np.sqrt(diagonal), images)

    def penalty(self, ridge: float) -> Array:
        """Everything is penalised."""
        return np.full((1, 1), ridge)

    @property
    def objective(self) -> Mapping[str, Json]:
        """For a certificate."""
        return {"network": self.network.digest, "centre": self.centre, "view": "none", "class_weight": None}

    def solver(self, name: str, watch: Callable[[int, float, Array], None] | None = None) -> Solver:
        """By the dual of the rows or preconditioned iterations ("cholesky": whichever fits), or Adam's steps."""
        found: Any = super().solver(name)
        return replace(found, watch=watch)  # type: ignore[no-any-return]

    def preconditioner(self, squares: NetworkSquares, ridge: float) -> Operator:
        """Damped where so few rows cannot tell curvature from chance."""
        return CurvatureSolver().shared_inverse(squares.rows, ridge)
