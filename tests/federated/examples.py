"""Clients and federations for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from probekit.embeddings import EmbeddingSet
from probekit.errors import Failure, MissingClients
from probekit.federated.client import Holding, LocalData
from probekit.federated.federation import Answer, Ask, Federation, InProcess, Outcome, Transport
from probekit.federated.queries import Arrays
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Intercept
from probekit.objective import CrossEntropy, Model
from tests.oracles import Array, one_hot, random_set, with_ones

Clients = dict[str, EmbeddingSet]


def divided(
    sizes: Iterable[int] = (40, 25, 30, 35), *, width: int = 6, classes: int = 3, seed: int = 0
) -> Clients:
    """Clients "a", "b", ... with so many rows each."""
    counts = list(sizes)
    rows = random_set(sum(counts), width, classes, seed=seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = np.split(order, np.cumsum(counts)[:-1])
    return {chr(ord("a") + number): rows.take(part) for number, part in enumerate(parts)}


def federation(
    clients: Mapping[str, LocalData],
    *,
    transport: Callable[[Mapping[str, LocalData]], Transport] = InProcess,
    logistic: bool = False,
    intercept: Intercept = "free",
) -> Federation:
    first = next(iter(clients.values()))
    if not isinstance(first, EmbeddingSet):
        return Federation.of(transport(clients), LinearModel(first.columns - 1, first.targets))
    model = LinearModel(first.width, first.outputs, intercept=intercept)
    if logistic:
        model = LinearModel(first.width, first.outputs, CrossEntropy(), "penalized")
    return Federation.of(transport(clients), model)


def design(clients: Mapping[str, EmbeddingSet]) -> tuple[Array, Array]:
    """[X 1] and one-hot targets of all clients together, in the order given."""
    Z = np.vstack([with_ones(rows.rows) for rows in clients.values()])
    Y = np.vstack([one_hot(rows.labels, rows.outputs) for rows in clients.values()])
    return Z, Y


@dataclass
class Meddling:
    """A transport that answers for some clients in its own way; None: it says nothing of them."""

    inner: Transport
    answers: Mapping[str, Callable[[Arrays], Arrays | Failure] | None]
    asked: list[str] = field(default_factory=list)

    def describe(self) -> Mapping[str, Holding]:
        return self.inner.describe()

    def carries(self, model: Model, ask: Ask) -> bool:
        return True

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        for ask, outcome in self.inner.exchange(model, asks):
            self.asked.append(ask.client)
            if ask.client not in self.answers or isinstance(outcome, Failure):
                yield ask, outcome
                continue
            change = self.answers[ask.client]
            if change is not None:
                yield ask, change(outcome)


def arrived(answers: Iterator[Answer]) -> tuple[list[str], dict[str, str]]:
    """Who answered, and the reasons of those who did not."""
    present: list[str] = []
    try:
        present.extend(answer.client for answer in answers)
    except MissingClients as missing:
        return present, {name: failure.reason for name, failure in missing.reasons.items()}
    return present, {}
