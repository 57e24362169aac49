"""FedAvg on a head as affine maps, in NumPy from the rows alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.federated.methods.fedavg import FedAvg
from probekit.unlearning.method import Material
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.oracles import columns, one_hot
from tests.unlearning.conftest import Array, Run, make_run

RATE, STEPS, ROUNDS, RIDGE = 0.05, 3, 8, 0.1
OPTIONS = FedAvg(rounds=ROUNDS, local_steps=STEPS, learning_rate=RATE, keep_history=True)
FORGET = UnlearnRequest.of(["1"])


@dataclass(frozen=True)
class Maps:
    """The curvature and the pull of every client's mean ridge loss."""

    H: dict[str, Array]
    b: dict[str, Array]
    rows: dict[str, int]

    @classmethod
    def of(cls, run: Run, ridge: float = RIDGE) -> Maps:
        H, b, rows = {}, {}, {}
        for name, held in run.partition.clients.items():
            X = columns(run.embeddings.to_numpy()[held])
            Y = one_hot(run.embeddings.labels[held], 3)
            H[name], b[name], rows[name] = X.T @ X / len(X) + ridge * np.eye(X.shape[1]), X.T @ Y / len(X), len(X)
        return cls(H, b, rows)

    def local(self, name: str, params: Array, *, steps: int = STEPS, rate: float = RATE) -> Array:
        """W* + (I - rate H)^steps (W - W*)."""
        best = np.linalg.solve(self.H[name], self.b[name])
        shrink = np.linalg.matrix_power(np.eye(len(best)) - rate * self.H[name], steps)
        return np.asarray(best + shrink @ (params - best))

    def shares(self, names: Iterable[str]) -> dict[str, float]:
        own = {name: self.rows[name] for name in names}
        return {name: count / sum(own.values()) for name, count in own.items()}

    def trained(self, names: Iterable[str], rounds: int = ROUNDS, start: Any = 0.0, **how: Any) -> list[Array]:
        """The parameters before every round and at the end."""
        shares = self.shares(names)
        found = [np.zeros_like(self.b[next(iter(shares))]) + start]
        for _ in range(rounds):
            now = found[-1]
            found.append(np.asarray(sum(share * self.local(name, now, **how) for name, share in shares.items())))
        return found


def fedavg_run(**options: Any) -> Run:
    """A run by FedAvg that kept its history."""
    return make_run(scheme="dirichlet:1", method=options.pop("method", OPTIONS), **options)


def removal(run: Run, options: Any = OPTIONS, *, request: UnlearnRequest = FORGET, before: Any = None) -> Removal:
    """The request against a run, with its rows."""
    return Removal(before or run.trained, request, Material(run.embeddings, run.partition, options=options))
