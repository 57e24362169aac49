"""FedAvg on a ridge head as affine maps, from the rows alone: full batches, no momentum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation
from probekit.federated.local import LocalPlan
from probekit.federated.state import State
from probekit.federated.training.fedavg import FedAvg
from tests.oracles import Array, with_ones
from tests.unlearning.problems import federation, forget, some_clients, trained

RATE, STEPS, ROUNDS, RIDGE = 0.05, 3, 8, 0.1
LEAVER = "1"


@dataclass(frozen=True)
class Maps:
    """H_c, b_c of every client's mean loss, and what training makes of them."""

    clients: dict[str, EmbeddingSet]
    H: dict[str, Array] = field(default_factory=dict)
    b: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rows in self.clients.items():
            Z = with_ones(rows.rows)
            self.H[name] = Z.T @ Z / len(Z) + RIDGE * np.eye(Z.shape[1])
            self.b[name] = Z.T @ rows.target_matrix / len(Z)

    @property
    def retained(self) -> list[str]:
        return [name for name in self.clients if name != LEAVER]

    def shares(self, names: Iterable[str]) -> dict[str, float]:
        rows = {name: len(self.clients[name]) for name in names}
        return {name: count / sum(rows.values()) for name, count in rows.items()}

    def local(self, name: str, W: Array, *, steps: int = STEPS, b: Array | None = None) -> Array:
        """W* + (I - rate H)^steps (W - W*)."""
        best = np.linalg.solve(self.H[name], self.b[name] if b is None else b)
        shrink = np.linalg.matrix_power(np.eye(len(best)) - RATE * self.H[name], steps)
        return best + shrink @ (W - best)

    def round(self, names: Iterable[str], W: Array) -> Array:
        return sum(share * self.local(name, W) for name, share in self.shares(names).items())

    def path(self, names: Iterable[str], rounds: int = ROUNDS, start: Array | None = None) -> list:
        """The parameters before every round and at the end."""
        path = [np.zeros_like(self.b[LEAVER]) if start is None else start]
        for _ in range(rounds):
            path.append(self.round(names, path[-1]))
        return path


@dataclass(frozen=True)
class Problem:
    """Clients of unlike sizes and classes, trained by FedAvg, which kept its rounds."""

    maps: Maps
    asked: Federation
    state: State

    @property
    def start(self) -> Array:
        return self.state.params

    def after(self, method: str, **request: object) -> State:
        request = request or {"clients": {LEAVER}}
        return forget(self.state, self.asked, method, **request)


def make_problem(rounds: int = ROUNDS, *, keep: str = "history", **options: object) -> Problem:
    clients = some_clients()
    order = np.argsort(clients[LEAVER].labels)
    clients[LEAVER] = clients[LEAVER].take(order[: len(order) // 2])  # of the first classes only
    asked = federation(clients, intercept="penalized")
    plan = LocalPlan(RATE, steps=STEPS)
    trainer = FedAvg(rounds, plan, keep=frozenset({keep}), **options)
    return Problem(Maps(clients), asked, trained(asked, trainer, RIDGE))
