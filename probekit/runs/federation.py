"""The clients of a run, as its commands meet them: today in this process, from the cached rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probekit.federated.federation import Federation
from probekit.federated.in_process import InProcess
from probekit.values import EmbeddingSet, Partition


def federation_of(
    problem: Any, embeddings: EmbeddingSet, partition: Partition, clients: Iterable[str] | None = None
) -> Federation:
    """The clients that hold these rows (all of the partition's, or those named), ready to be asked."""
    names = partition.clients if clients is None else clients
    return InProcess.of(problem, embeddings, {name: partition.clients[name] for name in names})
