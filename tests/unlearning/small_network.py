"""A network small enough for dense algebra, trained by three clients of whom one is spoiled."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.federated.methods.cg import FederatedCg
from probekit.federated.networks import train_network
from probekit.federated.trained import Trained
from probekit.models.heads import NetworkHead
from probekit.models.jvp import WholeNetwork
from probekit.models.networks import inputs_of, linearized
from probekit.models.pretraining import Pretraining
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, EncodingSpec, Partition

Array = NDArray[np.float64]
RIDGE = 0.02
PARTITION = Partition(
    {"a": np.arange(0, 30), "b": np.arange(30, 50), "c": np.arange(50, 90)}, np.arange(90, 120), 120, "test", 0
)
GONE = UnlearnRequest(("a",))


def factory(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 6), torch.nn.LeakyReLU(0.01), torch.nn.Linear(6, classes))


def embedded(*, seed: int = 0, spoiled: bool = True) -> EmbeddingSet:
    """Three classes of 8 numbers; the labels of client a are all 0."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, 120)
    centres = np.random.default_rng(0).standard_normal((3, 8)) * 2
    rows = (centres[labels] + random.standard_normal((120, 8))).astype(np.float32)
    if spoiled:
        labels[:30] = 0
    spec = EncodingSpec("made", "0" * 64, {}, "raw", "float32")
    ids = [f"{seed:02d}{row:062d}" for row in range(120)]
    return EmbeddingSet(spec, rows, labels, ids, ("x", "y", "z"), source=f"made {seed}")


def whole(centre: str = "wp", *, precision: str = "float64") -> tuple[Trained, Material]:
    data = embedded()
    how = WholeNetwork(
        "py:tests.unlearning.small_network:factory",
        centre=centre,
        precision=precision,
        pretraining=Pretraining(epochs=5),
    )
    close = FederatedCg(tolerance=1e-10 if precision == "float64" else 1e-5)
    trained = train_network(data, PARTITION, ridge=RIDGE, options=how, method=close)
    return trained, Material(data, PARTITION)


def network_of(trained: Trained) -> NetworkHead:
    assert isinstance(trained.head, NetworkHead)
    return trained.head


def jacobian(head: NetworkHead, rows: Array) -> Array:
    model = linearized(head.network)
    inputs = inputs_of(head.network, rows).double()
    parts = torch.func.jacrev(lambda p: model.forward(p, inputs))(model.base)
    return torch.cat([one.reshape(len(rows) * 3, -1) for one in parts], dim=1).numpy()


def minimum(head: NetworkHead, data: EmbeddingSet, rows: NDArray[np.int64]) -> Array:
    """The minimum of the loss of these rows, by a dense solve."""
    own = np.asarray(data.embeddings)[rows]
    matrix = jacobian(head, own)
    model = linearized(head.network).over(inputs_of(head.network, own), centre=head.centre)
    target = (np.eye(3)[data.labels[rows]] - model.offset).reshape(-1, 1)
    system = matrix.T @ matrix / len(rows) + RIDGE * np.eye(matrix.shape[1])
    return np.asarray(np.linalg.solve(system, matrix.T @ target / len(rows)))
