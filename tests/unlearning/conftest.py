"""Small runs to unlearn from, and slow answers to compare with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.certificates.checks import Check
from probekit.federated.in_process import InProcess
from probekit.federated.partition import partition
from probekit.federated.rows import design_for
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.unlearning.method import Material
from probekit.values import EmbeddingSet, EncodingSpec, Partition
from tests.oracles import columns, least_squares, one_hot

Array = NDArray[np.float64]


def embedding_set(
    rows: int = 240, dimension: int = 7, classes: int = 3, *, seed: int = 0, spread: float = 1.0, shift: float = 0.4
) -> EmbeddingSet:
    """Rows around one centre per class; `spread` is the ratio of the columns' scales."""
    generator = np.random.default_rng(seed)
    labels: NDArray[np.int64] = generator.permutation(np.arange(rows) % classes)
    scales = np.geomspace(1.0, spread, dimension)
    centres = generator.normal(size=(classes, dimension))
    embeddings = (centres[labels] + generator.normal(size=(rows, dimension)) + shift) * scales
    ids = [hashlib.sha256(f"{seed} {row}".encode()).hexdigest() for row in range(rows)]
    spec = EncodingSpec("test", "0" * 64, {}, "proj", dtype="float64")
    names = tuple(f"class {number}" for number in range(classes))
    return EmbeddingSet(spec, embeddings, labels, ids, class_names=names)


@dataclass(frozen=True)
class Run:
    """A trained run with its rows."""

    embeddings: EmbeddingSet
    partition: Partition
    trained: Trained

    @property
    def material(self) -> Material:
        """The cached rows."""
        return Material(self.embeddings, self.partition)

    def oracle(self, rows: NDArray[np.int64], labels: NDArray[np.int64] | None = None) -> Array:
        """The parameters of these rows' head, by least squares on the explicit matrix (no Gram)."""
        design = self.trained.problem.design
        found = self.embeddings.labels[rows] if labels is None else labels
        matrix = columns(self.embeddings.to_numpy()[rows], intercept=design.intercept, view=design.view)
        penalty = self.trained.ridge * (len(rows) if self.trained.scaling == "mean" else 1.0)
        free = design.intercept == "free"
        return least_squares(matrix, one_hot(found, design.classes), penalty=penalty, free=free)

    def rows_without(self, *clients: str) -> NDArray[np.int64]:
        """The rows of all other clients."""
        return np.concatenate([*self.held(*clients).values()])

    def held(self, *gone: str) -> dict[str, NDArray[np.int64]]:
        """The rows of each other client."""
        return {name: rows for name, rows in self.partition.clients.items() if name not in gone}

    def online(self, *gone: str) -> InProcess:
        """The other clients, who answer."""
        return InProcess.of(self.trained.problem, self.embeddings, self.held(*gone))


def require_verified(checks: list[Check]) -> None:
    """At least one check, and none that failed."""
    assert checks
    assert not [one for one in checks if not one.passed]


def make_run(
    *,
    seed: int = 0,
    clients: int = 5,
    server: float = 0.2,
    scheme: str = "iid",
    design: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """A run on small random rows."""
    found = embedding_set(seed=seed, **(data or {}))
    divided = partition(found.labels, scheme, clients=clients, server_share=server, seed=seed)
    chosen = design_for(found, **(design or {}))
    return Run(found, divided, train(found, divided, design=chosen, **{"ridge": 0.1, **options}))


@pytest.fixture
def run() -> Run:
    """A run in closed form that kept its statistics."""
    return make_run()
