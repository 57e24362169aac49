"""The clients of a run, as its commands meet them: in this process from the cached rows, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cache import DiskStore
from probekit.errors import NotFoundError
from probekit.federated.federation import Federation
from probekit.federated.in_process import InProcess
from probekit.values import EmbeddingSet, Partition

if TYPE_CHECKING:
    from probekit.federated.party import Party

FOLDERS = "probekit.federated.parties"
"""What opens the folder of a federation: `party_at(path)`."""
ENGINES = {"ray": "probekit.federated.ray:ray_federation"}
"""What asks clients whose rows are in the cache, by the first word of its name."""


def on_engine(text: str | None) -> bool:
    """Whether a text names an engine that asks clients whose rows are in the cache: `ray`, `ray:ADDRESS`."""
    return text is not None and text.partition(":")[0] in ENGINES


def federation_of(
    problem: Any,
    embeddings: EmbeddingSet,
    partition: Partition,
    clients: Iterable[str] | None = None,
    *,
    engine: str | None = None,
    store: DiskStore | None = None,
) -> Federation:
    """The clients that hold these rows (all of the partition's, or those named), ready to be asked.

    engine: what runs their questions; none: this process. Its workers read the rows from the store.
    """
    names = partition.clients if clients is None else clients
    if engine is not None and store is not None:
        module, _, make = ENGINES[engine.partition(":")[0]].partition(":")
        found: Federation = getattr(import_module(module), make)(engine, problem, embeddings, partition, store, names)
        return found
    return InProcess.of(problem, embeddings, {name: partition.clients[name] for name in names})


def open_party(text: str) -> Party:
    """The clients elsewhere that a text names, as a run remembers it: a federation's folder."""
    path = Path(text)
    if not path.is_dir():
        raise NotFoundError(
            f"There is no federation {text}: that is no folder. `probekit federate init` makes one; one that was moved "
            "is named again with `federation`."
        )
    found: Party = import_module(FOLDERS).party_at(path.absolute())
    return found


def close(clients: Any) -> None:
    """Let go of whatever was opened to reach clients, or a party."""
    getattr(clients, "close", lambda: None)()
