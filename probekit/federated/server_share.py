"""Whose rows the server's share was drawn from: where the data name each row's client, its rows follow that client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from probekit.values import EmbeddingSet, Indices, Partition


def drawn_from_clients(partition: Partition) -> bool:
    """Whether the server's rows were some client's before they were drawn; dealt rows were nobody's."""
    return bool(len(partition.server)) and partition.scheme.partition(":")[0] in ("column", "classes")


def sources(embeddings: EmbeddingSet, partition: Partition) -> dict[int, str]:
    """The client that each of the server's rows was drawn from, by the row's number; nobody's rows are left out."""
    if not drawn_from_clients(partition):
        return {}
    rows = partition.server.tolist()
    if partition.scheme == "classes":
        return {row: str(embeddings.labels[row]) for row in rows}
    return {} if embeddings.clients is None else {row: embeddings.clients[row] for row in rows}


def server_rows(embeddings: EmbeddingSet, partition: Partition, clients: Collection[str]) -> Indices:
    """The server's rows that stay with these clients: theirs, and nobody's."""
    whose, present = sources(embeddings, partition), set(clients)
    kept = [row for row in partition.server.tolist() if row not in whose or whose[row] in present]
    return np.array(kept, np.int64)


def returned(embeddings: EmbeddingSet, partition: Partition, clients: Collection[str]) -> Partition:
    """The partition in which the server has given the rows of all other clients back to them."""
    whose, stay = sources(embeddings, partition), server_rows(embeddings, partition, clients)
    given: dict[str, list[int]] = {}
    for row in np.setdiff1d(partition.server, stay).tolist():
        given.setdefault(whose[row], []).append(row)
    own = {name: [*partition.clients.get(name, ()), *rows] for name, rows in given.items()}
    clients_now = {**partition.clients, **{name: np.sort(np.array(rows, np.int64)) for name, rows in own.items()}}
    return replace(partition, server=stay, clients=clients_now)
