"""The classes that retained rows have: a head keeps these and no others.

Clients number their classes as before; a transport that narrows them renumbers in every question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from probekit.arrays import Array, Indices
from probekit.federated.client import ClientData, Holding, RowClient, StatisticsClient
from probekit.federated.federation import Ask, Federation, Outcome, Transport
from probekit.federated.queries import Arrays, Query, Shapes
from probekit.federated.state import Kept, KeptGradients, KeptStatistics, State
from probekit.federated.transports.kept import KeptFirst
from probekit.linear.model import LinearModel
from probekit.linear.stats import SufficientStats
from probekit.objective import Model
from probekit.records import record


@record("query/class-squares")
@dataclass(frozen=True)
class ClassSquares:
    """The squares of each class's one-hot column, summed: 0 where a client has no row of it."""

    def answer(self, client: ClientData) -> Arrays:
        if isinstance(client, StatisticsClient):
            return {"squares": client.statistics.target_squares}
        squares = np.zeros(client.model.classes)
        for block in client.rows.blocks():
            squares += (block.row_weights[:, None] * np.square(block.target_matrix)).sum(axis=0)
        return {"squares": squares}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"squares": (model.classes,)}


@record("query/of-classes")
@dataclass(frozen=True, eq=False)
class OfClasses:
    """A query to a client whose classes are only these, numbered from 0."""

    query: Query
    classes: Indices

    def answer(self, client: ClientData) -> Arrays:
        model = client.model.narrowed(self.classes)
        if not isinstance(client, RowClient):
            stats = narrow_stats(client.statistics, self.classes)
            return self.query.answer(StatisticsClient(client.name, model, stats, client.limits))
        rows = client.rows.with_classes([client.rows.class_names[k] for k in self.classes])
        return self.query.answer(RowClient(client.name, model, rows, client.limits))

    def shapes(self, model: Model, rows: int) -> Shapes:
        return self.query.shapes(model.narrowed(self.classes), rows)


@dataclass(frozen=True, eq=False)
class Narrowed:
    """A transport to clients who number more classes, those of `wide`."""

    transport: Transport
    wide: Model
    classes: Indices

    def describe(self) -> Mapping[str, Holding]:
        return self.transport.describe()

    def carries(self, model: Model, ask: Ask) -> bool:
        return self.transport.carries(self.wide, ask)

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        questions = (replace(ask, query=OfClasses(ask.query, self.classes)) for ask in asks)
        wide = self.wide.exact if model is model.exact else self.wide
        yield from self.transport.exchange(wide, questions)


def narrow_federation(federation: Federation, classes: Indices) -> Federation:
    """The same clients, asked about these classes only."""
    model = federation.model.narrowed(classes)
    transport = federation.transport
    if isinstance(transport, KeptFirst):
        parts = {name: narrow_stats(part, classes) for name, part in transport.parts.items()}
        live = Narrowed(transport.live, federation.model, classes)
        return replace(federation, transport=KeptFirst(parts, live), model=model)
    narrowed = Narrowed(transport, federation.model, classes)
    return replace(federation, transport=narrowed, model=model)


def narrow_state(state: State, classes: Indices) -> State:
    """The state with the parameters and sums of these classes; a history has no such part.

    Nor have gradients of a network, whose classes share parameters. A state of so few is as it was.
    """
    if len(classes) == state.model.classes:
        return state
    kept: list[Kept] = []
    for item in state.kept:
        if isinstance(item, KeptStatistics):
            parts = {name: narrow_stats(part, classes) for name, part in item.parts.items()}
            kept.append(KeptStatistics(parts))
        elif isinstance(item, KeptGradients) and isinstance(state.model, LinearModel):
            gradients = {name: _columns(array, classes) for name, array in item.gradients.items()}
            kept.append(KeptGradients(_columns(item.params, classes), gradients, item.weights))
    params = state.model.narrowed_params(state.params, classes)
    model = state.model.narrowed(classes)
    return replace(state, params=params, model=model, kept=tuple(kept))


def narrow_stats(stats: SufficientStats, classes: Indices) -> SufficientStats:
    """Statistics of these classes only."""
    if stats.root is not None:
        kept = np.concatenate([np.arange(stats.columns), stats.columns + classes])
        return replace(stats, root=_columns(stats.root, kept))
    return replace(
        stats,
        moment_sum=_columns(stats.moment, classes),
        target_squares_sum=stats.target_squares[classes],
    )


def _columns(array: Array, columns: Indices) -> Array:
    return np.ascontiguousarray(array[:, columns])
