"""Whole networks as they are, not linearized, as a problem: cross-entropy or squared loss, buffers included.

The loss is not quadratic: no distance to retraining can be certified, and methods that need a curvature refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import InputError
from probekit.jacobian.linearize import tensor_of
from probekit.linear.statistics import checked_labels
from probekit.models.fitting import FitPlan
from probekit.models.flat_module import DRAWS_STREAM, FlatModule, batch_rows, buffers_of, rows_at_once, seed_of, trained
from probekit.models.heads import ConventionalHead, Head, Network
from probekit.models.networks import inputs_of, module_at, network
from probekit.models.problem import AS_IS, BuiltIn, SetHolding
from probekit.values import Array, EmbeddingSet, Indices, Json, Rows


@dataclass(frozen=True, eq=False)
class NetworkSums:
    """The loss in the place of half a sum of squares, as the network predicts (in eval mode)."""

    holding: ConventionalHolding
    precision: str

    @property
    def count(self) -> int:
        """How many rows."""
        return self.holding.count

    def value(self, params: Array) -> float:
        """Twice the loss."""
        model, total = self.holding.problem.model(params, self.precision), 0.0
        with torch.no_grad():
            for rows, wanted in self.holding.chunks():
                total += float(model.mean_loss(rows, wanted)) * len(rows)
        return 2 * total

    def gradient(self, params: Array) -> Array:
        """The loss's gradient; buffers have none."""
        every = np.arange(self.count)
        return self.count * self.holding.mean_gradient(params, every, precision=self.precision)


@dataclass(frozen=True, eq=False)
class ConventionalHolding(SetHolding):
    """Rows of an embedding set, as inputs of a network."""

    # no products, no scales: the curvature is another at every point
    offers: ClassVar[frozenset[str]] = frozenset({"gradient", "importance", "fit", "evaluate"})

    @cached_property
    def inputs(self) -> Tensor:
        """The rows, in the numbers that they are kept in."""
        return inputs_of(self.problem.network, np.asarray(self.embeddings.embeddings[self.rows]))

    @cached_property
    def classes(self) -> Tensor:
        """The labels."""
        return tensor_of(checked_labels(self.labels, self.count, self.problem.outputs).astype(np.int64))

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and labels, some at a time."""
        many = self.problem.chunk
        return zip(torch.split(self.inputs, many), torch.split(self.classes, many), strict=True)

    def squares(self, precision: str = "float64") -> NetworkSums:
        """The loss."""
        return NetworkSums(self, precision)

    @property
    def quick(self) -> NetworkSums:
        """The loss in the numbers that are trained in."""
        return self.squares(self.problem.precision)

    def importance(self, params: Array) -> Array:
        """The squares of every row's own gradient, added up; buffers have none."""
        model, found = self.problem.model(params, self.problem.precision), np.zeros(self.problem.shape)
        for row, wanted in zip(torch.split(self.inputs, 1), torch.split(self.classes, 1), strict=True):
            model.mean_gradient(row, wanted)
            found[: len(model.weights), 0] += model.gradient.double().square().numpy()
        return found

    def batch_gradient(self, params: Array, some: Indices, wanted: Array | None = None) -> Array:
        """The gradient of the mean of some rows' losses; `wanted` stands in for their labels."""
        return self.mean_gradient(params, some, wanted, precision=self.problem.precision)

    def mean_gradient(self, params: Array, some: Indices, wanted: Array | None = None, *, precision: str) -> Array:
        """The same in these numbers."""
        model, place = self.problem.model(params, precision), tensor_of(some)
        model.mean_gradient(self.inputs[place], self.classes[place] if wanted is None else tensor_of(wanted))
        found = np.zeros(self.problem.shape)
        found[: len(model.weights), 0] = model.gradient.double().numpy()
        return found


@dataclass(frozen=True, eq=False)
class ConventionalProblem(BuiltIn):
    """A network; parameters are its moving weights and then its buffers, counted from w_p or from zero (`centre`)."""

    backend: ClassVar[str] = "network"
    traits: ClassVar[frozenset[str]] = frozenset({"plain", "start"})

    network: Network
    centre: str = "wp"
    classes: tuple[str, ...] = ()
    spec_digest: str = ""
    pretraining: Mapping[str, Json] | None = None
    weights: str | None = None
    criterion: str = "cross-entropy"

    @property
    def precision(self) -> str:
        """The numbers that it is trained in."""
        return self.network.precision

    @property
    def plain(self) -> Mapping[str, Json]:
        """What defines it, besides the weights."""
        named = {"classes": list(self.classes), "spec": self.spec_digest, "loss": self.criterion}
        return {"network": self.network.plain, "weights": self.network.digest, "centre": self.centre, **named}

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """w_p by name."""
        return self.network.weights

    @cached_property
    def averaged(self) -> tuple[str, ...]:
        """Buffers: averaged and never penalised."""
        return buffers_of(module_at(self.network))

    @cached_property
    def blocks(self) -> Mapping[str, slice]:
        """One per tensor that moves, then one per buffer."""
        sizes = {name: int(self.network.weights[name].size) for name in (*self.network.moving, *self.averaged)}
        ends = accumulate(sizes.values())
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every block that moves, as a tensor."""
        return {name: self.network.weights[name].shape for name in self.network.moving}

    @property
    def shape(self) -> tuple[int, int]:
        """One column."""
        return (max(one.stop for one in self.blocks.values()), 1)

    @property
    def outputs(self) -> int:
        """One for each class."""
        return self.network.classes

    @cached_property
    def chunk(self) -> int:
        """How many rows pass through it at once."""
        return rows_at_once(module_at(self.network), self.network.shape, self.precision)

    @cached_property
    def _pretrained(self) -> Array:
        parts = [np.asarray(self.network.weights[name], np.float64).reshape(-1, 1) for name in self.blocks]
        return np.concatenate(parts)

    @property
    def origin(self) -> Array:
        """The weights that parameters of zero stand for."""
        return self._pretrained if self.centre == "wp" else np.zeros(self.shape)

    @property
    def start(self) -> Array:
        """The parameters that stand for w_p."""
        return self._pretrained - self.origin

    def random_start(self, seed: int) -> Array:
        """The parameters of a network made anew."""
        own = self.network
        made = network(own.name, own.shape, own.classes, seed=seed).to(getattr(torch, self.precision))
        return FlatModule(made, own.moving, self.criterion).column - self.origin

    @property
    def kind(self) -> str:
        """In words."""
        return f"network {self.network.name}, conventional ({self.shape[0]} parameters)"

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What a head of it says of itself."""
        own = {"centre": self.centre, "pretraining": self.pretraining, "weights": self.weights}
        return {"head": "network", "loss": self.criterion, **AS_IS, **own}

    @property
    def knows_server(self) -> bool:
        """Whether w_p was pretrained on the server's rows."""
        return self.pretraining is not None

    @property
    def objective(self) -> Mapping[str, Json]:
        """For a certificate."""
        named = {"network": self.network.digest, "centre": self.centre, "loss": self.criterion}
        return {**named, "view": "none", "class_weight": None}

    def params(self, head: Head) -> Array:
        """All of the head's."""
        return head.params

    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> ConventionalHead:
        """The network at these parameters."""
        classes = self.classes or tuple(map(str, range(self.network.classes)))
        own = (self.network, self.centre, self.spec_digest, recipe)
        return ConventionalHead(params, classes, ridge, *own, loss=self.criterion)

    def hold(
        self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = ""
    ) -> ConventionalHolding:
        """What a client with these rows holds."""
        if not len(rows):
            raise InputError(f"Every client needs a row; client {name} has none. Leave it out of the partition.")
        return ConventionalHolding(self, embeddings, rows)

    def model(self, params: Array, precision: str | None = None) -> FlatModule:
        """A network at these parameters, in eval mode, that may be changed."""
        module = module_at(self.network, precision=precision)
        found = FlatModule(module, self.network.moving, self.criterion, self.chunk)
        found.put(params + self.origin)
        return found

    def scores(self, head: ConventionalHead, rows: Rows) -> Array:
        """The network's scores."""
        model, found = self.model(head.params), np.empty((len(rows), len(head.classes)))
        with torch.no_grad():
            for first in range(0, len(rows), self.chunk):
                block = inputs_of(self.network, np.asarray(rows[first : first + self.chunk]))
                found[first : first + self.chunk] = model.scores(block).double().numpy()
        return found

    def softened(self, scores: Array) -> Array:
        """Scores as targets of others: probabilities or, of a squared loss, as they are."""
        if self.criterion == "squared":
            return scores
        found = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def penalty(self, ridge: float) -> Array:
        """The ridge, and 0 for buffers."""
        found = np.full(self.shape, ridge)
        for name in self.averaged:
            found[self.blocks[name]] = 0.0
        return found

    def fit(self, holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
        """A client's parameters after its local steps, in train mode."""
        if plan.loss == "bounded" and self.criterion != "cross-entropy":
            raise InputError(f"A bounded loss is one of cross-entropy; this is a {self.kind} with squared loss.")

        def teacher() -> Array:
            head = self.head(arrays["teacher"], ridge=0.0, recipe={})
            return self.softened(self.scores(head, holding.picked))

        drawn = plan.drawn(holding.labels, self.outputs, name, teacher)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for some in batch_rows(plan.batches(holding.count, name), holding.count):
                place = tensor_of(some)
                wanted = holding.classes[place] if drawn is None else tensor_of(drawn(some))
                yield holding.inputs[place], wanted

        draws = seed_of(plan.generator(name, DRAWS_STREAM))
        model = FlatModule(module_at(self.network), self.network.moving, self.criterion, self.chunk)
        return trained(model, plan, arrays, batches(), origin=self.origin, draws=draws)

    def loss(self, holding: Any, params: Array) -> float:
        """The sum of the rows' losses."""
        return float(holding.quick.value(params)) / 2
