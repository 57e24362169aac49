"""The clients of a run, as its commands meet them: in this process from the cached rows, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import NotFoundError
from probekit.federated.federation import Federation
from probekit.federated.in_process import InProcess
from probekit.values import EmbeddingSet, Partition

if TYPE_CHECKING:
    from probekit.federated.party import Party

FOLDERS = "probekit.federated.parties"
"""What opens the folder of a federation: `party_at(path)`."""


def federation_of(
    problem: Any, embeddings: EmbeddingSet, partition: Partition, clients: Iterable[str] | None = None
) -> Federation:
    """The clients that hold these rows (all of the partition's, or those named), ready to be asked."""
    names = partition.clients if clients is None else clients
    return InProcess.of(problem, embeddings, {name: partition.clients[name] for name in names})


def open_party(text: str) -> Party:
    """The clients elsewhere that a text names, as a run remembers it: a federation's folder."""
    path = Path(text)
    if not path.is_dir():
        raise NotFoundError(
            f"There is no federation {text}: that is no folder. `probekit federate` makes one; one that was moved is "
            "named again with `federation`."
        )
    found: Party = import_module(FOLDERS).party_at(path.absolute())
    return found
