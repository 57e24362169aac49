"""What is left of a run's rows when a request is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.server_share import server_rows, sources
from probekit.federated.trained import Trained
from probekit.linear.rows import Picked
from probekit.unlearning.request import Relabelled, SampleRef, UnlearnRequest
from probekit.values import EmbeddingSet, Partition

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Remainder:
    """The rows that stay, renumbered, and whose rows the request changed; `gone` are the forgotten ones' numbers."""

    embeddings: EmbeddingSet
    partition: Partition
    changed: frozenset[str]
    server_changed: bool
    gone: Mapping[str, Indices]


def remaining_rows(
    trained: Trained, request: UnlearnRequest | None, embeddings: EmbeddingSet, partition: Partition
) -> Remainder:
    """The rows of the clients that stay and of the server, without forgotten samples, labels put right.

    Rows that the server's share was given from a client's own leave it with that client.

    Without a request, of all clients of the run.
    """
    if partition.rows != len(embeddings):
        raise MismatchError(
            f"The partition divides {partition.rows} rows, the embedding set has {len(embeddings)}. Use the set that "
            "the partition was made from."
        )
    left = tuple(trained.counts) if request is None else request.remaining(trained)
    wanted: list[SampleRef | Relabelled] = [] if request is None else [*request.samples, *request.relabelled]
    whose, server = sources(embeddings, partition), server_rows(embeddings, partition, left)
    owner, found = _owners(partition, left, server), _found(embeddings, {one.sample for one in wanted})
    labels, gone, changed = embeddings.labels.copy(), np.zeros(len(owner), bool), set()
    for one in wanted:
        rows = _meant(one, found, owner=owner, left=left, whose=whose)
        if len(left) in owner[rows] and trained.problem.knows_server:
            raise InputError(
                f"Sample {one.sample} is the server's own, and the network was pretrained on it: its weights w_p would "
                "still know it. Train again without it, or name one client's copy (CLIENT/ID)."
            )
        if isinstance(one, Relabelled) and embeddings.targets is not None:
            raise InputError("Only a class can be put right; these rows have several labels or real targets.")
        if isinstance(one, Relabelled):
            labels[rows] = _label(one, len(trained.head.classes))
        else:
            gone[rows] = True
        changed |= set(owner[rows].tolist())
    kept = np.flatnonzero((owner >= 0) & ~gone)
    rest = replace(embeddings, labels=labels)
    if len(kept) < len(rest):
        rest = rest.select(kept, read=Picked(rest.embeddings, kept))
    forgotten = {name: partition.clients[name] for name in (() if request is None else request.clients)}
    for number, name in enumerate(left):
        own = np.flatnonzero((owner == number) & gone)
        if len(own):
            forgotten[name] = own
    return Remainder(
        rest,
        _renumbered(partition, owner[kept], left),
        frozenset(left[number] for number in changed if number < len(left)),
        len(left) in changed or len(server) < len(partition.server),
        forgotten,
    )


def _found(embeddings: EmbeddingSet, wanted: set[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {sample: [] for sample in wanted}
    for row, sample in enumerate(embeddings.ids if wanted else ()):
        if sample in wanted:
            found[sample].append(row)
    return found


def _owners(partition: Partition, left: tuple[str, ...], server: Indices) -> Indices:
    """The number of each row's client among those that stay, one more for the server, -1 for nobody."""
    owner = np.full(partition.rows, -1)
    for number, name in enumerate(left):
        if name not in partition.clients:
            raise MismatchError(
                f"Client {name} of this run holds no rows in the partition given. Use the run's own partition."
            )
        owner[partition.clients[name]] = number
    owner[server] = len(left)
    return owner


def _meant(
    asked: SampleRef | Relabelled,
    found: Mapping[str, list[int]],
    *,
    owner: Indices,
    left: tuple[str, ...],
    whose: Mapping[int, str],
) -> list[int]:
    """The rows of a sample that one client holds, or the server of it; or anybody."""
    names = (*left, None)  # the server comes last
    held = [row for row in found[asked.sample] if owner[row] >= 0]
    rows = [row for row in held if asked.client in (None, whose.get(row, names[owner[row]]))]
    if not rows:
        who = f"client {asked.client} does not hold it" if asked.client else "nobody in this run holds it"
        verb = "relabel" if isinstance(asked, Relabelled) else "forget"
        raise InputError(f"Cannot {verb} sample {asked.sample}: {who}. Look at the ids of the embedding set.")
    return rows


def _label(asked: Relabelled, classes: int) -> int:
    if not 0 <= asked.label < classes:
        raise InputError(f"Sample {asked.sample} cannot get label {asked.label}: the classes are 0 to {classes - 1}.")
    return asked.label


def _renumbered(partition: Partition, owner: Indices, left: tuple[str, ...]) -> Partition:
    """The partition of the rows that stay; a client without rows is gone."""
    held = {name: np.flatnonzero(owner == number) for number, name in enumerate(left)}
    return replace(
        partition,
        clients={name: rows for name, rows in held.items() if len(rows)},
        server=np.flatnonzero(owner == len(left)),
        rows=len(owner),
    )
