"""Small federated problems, and what training without the forgotten rows gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from probekit.arrays import hex_id
from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation, InProcess
from probekit.federated.state import State, Trainer
from probekit.federated.training.closed_form import ClosedForm
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Intercept, RidgeRule
from probekit.objective import CrossEntropy, Loss, Squares
from probekit.records import dump
from probekit.registry import configured
from probekit.unlearning.removal import Removal, Request, unlearn
from tests.oracles import random_set

Clients = Mapping[str, EmbeddingSet]


def some_clients(
    sizes: Collection[int] = (40, 25, 30, 35, 20),
    *,
    width: int = 6,
    classes: int = 3,
    seed: int = 0,
    signal: float = 0.5,
) -> dict[str, EmbeddingSet]:
    """Clients "0", "1", ... with so many rows of one random set."""
    rows = random_set(sum(sizes), width, classes, seed=seed, signal=signal)
    order = np.random.default_rng(seed).permutation(len(rows))
    stops = np.cumsum(list(sizes))[:-1]
    parts = np.split(order, stops)
    return {str(name): rows.take(part) for name, part in enumerate(parts)}


def federation(
    clients: Clients, *, intercept: Intercept = "free", loss: Loss | None = None
) -> Federation:
    first = next(iter(clients.values()))
    model = LinearModel(first.width, first.outputs, loss or Squares(), intercept)
    return Federation.of(InProcess(clients), model)


def logistic(clients: Clients) -> Federation:
    return federation(clients, intercept="penalized", loss=CrossEntropy())


def trained(
    asked: Federation, trainer: Trainer | None = None, ridge: float | RidgeRule = 0.1
) -> State:
    return (trainer or ClosedForm()).train(asked, ridge=ridge)


def sample_ids(rows: EmbeddingSet, numbers: Collection[int]) -> frozenset[str]:
    return frozenset(hex_id(rows.ids[number]) for number in numbers)


def without_class(clients: Clients, number: int) -> dict[str, EmbeddingSet]:
    """The clients without the rows of a class, and the others numbered from 0: a slow selection."""
    remaining = {}
    for name, rows in clients.items():
        names = [label for label in rows.class_names if label != rows.class_names[number]]
        kept = rows.take(np.flatnonzero(rows.labels != number))
        labels = [names.index(rows.class_names[label]) for label in kept.labels]
        remaining[name] = replace(kept, labels=np.array(labels), class_names=tuple(names))
    return {name: rows for name, rows in remaining.items() if len(rows)}


def forget(
    state: State,
    asked: Federation,
    method: str = "exact",
    *,
    clients: Collection[str] = (),
    samples: Mapping[str, frozenset[str]] | None = None,
    server: Federation | None = None,
) -> State:
    request = Request(frozenset(clients), samples or {})
    removal = Removal.of(state, request, asked, server=server)
    return unlearn(configured(method), removal)


def same(left: State, right: State) -> bool:
    """Whether two states have the same bytes: parameters, ridge, clients, all that is kept."""
    return dump(left) == dump(right)
