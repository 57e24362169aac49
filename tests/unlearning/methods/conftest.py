"""A small run by FedAvg and its algebra, from the explicit rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.federated.methods.fedavg import FedAvg
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.oracles import columns, one_hot
from tests.unlearning.conftest import Run, make_run

Array = NDArray[np.float64]
RATE, STEPS, LEAVER = 0.05, 3, "1"


@dataclass(frozen=True)
class Algebra:
    """A run of which client 1 leaves; H_c, b_c and the maps of full-batch gradient steps, from rows."""

    run: Run
    options: FedAvg

    def removal(self, **material: Any) -> Removal:
        given = {"embeddings": self.run.embeddings, "partition": self.run.partition, "options": self.options}
        return Removal(self.run.trained, UnlearnRequest.of([LEAVER]), Material(**{**given, **material}))

    def after(self, method: Any) -> Array:
        return carried_out(self.removal(), method).trained_after.params

    @property
    def start(self) -> Array:
        return self.run.trained.params

    @property
    def stay(self) -> tuple[str, ...]:
        return tuple(name for name in self.run.partition.clients if name != LEAVER)

    def rows(self, name: str) -> tuple[Array, Array]:
        """X with its column of ones, and one-hot Y."""
        own = self.run.partition.clients[name]
        design = self.run.trained.problem.design
        matrix = columns(self.run.embeddings.to_numpy()[own], intercept=design.intercept, view=design.view)
        return matrix, one_hot(self.run.embeddings.labels[own], design.classes)

    def curvature(self, name: str) -> Array:
        matrix, _ = self.rows(name)
        penalty = np.diagflat(self.run.trained.problem.penalty(self.run.trained.ridge))
        return np.asarray(matrix.T @ matrix / len(matrix) + penalty)

    def moment(self, name: str, targets: Array | None = None) -> Array:
        matrix, own = self.rows(name)
        return matrix.T @ (own if targets is None else targets) / len(matrix)

    def shares(self, names: tuple[str, ...]) -> dict[str, float]:
        sizes = {name: len(self.run.partition.clients[name]) for name in names}
        return {name: size / sum(sizes.values()) for name, size in sizes.items()}

    def local(self, name: str, params: Array, *, moment: Array | None = None, steps: int = STEPS) -> Array:
        """W_c + (I - rate H_c)^steps (W - W_c)."""
        curvature = self.curvature(name)
        best = np.linalg.solve(curvature, self.moment(name) if moment is None else moment)
        power = np.linalg.matrix_power(np.eye(len(curvature)) - RATE * curvature, steps)
        return np.asarray(best + power @ (params - best))

    def round(self, params: Array) -> Array:
        """FedAvg of those who stay."""
        return np.asarray(sum(share * self.local(name, params) for name, share in self.shares(self.stay).items()))


@pytest.fixture(scope="session")
def algebra() -> Algebra:
    """FedAvg with plain full-batch steps, clients of different sizes and distributions."""
    options = FedAvg(rounds=12, local_steps=STEPS, learning_rate=RATE, keep_history=True)
    return Algebra(make_run(scheme="dirichlet:1.0", method=options, keep="gradients"), options)
