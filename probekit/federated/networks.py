"""Training a whole network across clients, in one call."""

from __future__ import annotations

from typing import Any

from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.models.jvp import WHOLE, WholeNetwork, network_problem
from probekit.protocols import Watch, unwatched
from probekit.values import EmbeddingSet, Partition


def train_network(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    ridge: float,
    options: WholeNetwork = WHOLE,
    method: Any = "cg",
    keep: str = "gradients",
    watch: Watch = unwatched,
) -> Trained:
    """A whole network of the clients' rows, linearized; the rows are pictures (`pixels`), or any numbers.

    `options`: which network; `method`: a trainer (default: conjugate gradients); `keep`: "gradients" or "nothing".
    """
    problem = network_problem(embeddings, partition, options, progress=watch("pretraining"))
    return train(embeddings, partition, problem=problem, ridge=ridge, method=method, keep=keep, watch=watch)
