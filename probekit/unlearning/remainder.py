"""What is left of a run's rows, statistics and head when a request is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.client import Picked, client_statistics
from probekit.federated.server import client_weights
from probekit.federated.trained import Gradients, ServerSet, Traffic, Trained
from probekit.linear.design import ClientStats, Solution
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head, LinearHead, NetworkHead
from probekit.unlearning.method import REMEDIES, Cost, Material
from probekit.unlearning.request import Held, Relabelled, UnlearnRequest
from probekit.unlearning.soundness import refuse_unsound
from probekit.values import EmbeddingSet, Json, Partition

ENCODING = ("backbone", "dataset", "spec", "ridge_chosen", SIGMA)
"""What a head's recipe says of its embeddings, its ridge and its linear term, which no removal changes."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Remainder:
    """The rows that stay, renumbered, and whose statistics the request changed."""

    embeddings: EmbeddingSet
    partition: Partition
    changed: frozenset[str]
    server_changed: bool


def remaining_rows(trained: Trained, request: UnlearnRequest | None, material: Material) -> Remainder:
    """The rows of the clients that stay and of the server, without forgotten samples, labels put right.

    Without a request, of all clients of the run.
    """
    embeddings, partition = _rows_of(material)
    left = tuple(trained.counts) if request is None else request.remaining(trained)
    samples, labelled = ((), ()) if request is None else (request.samples, request.relabelled)
    owner = _owners(partition, left)
    found = _found(embeddings, {one.sample for one in samples} | {one.sample for one in labelled})
    labels, gone, changed = embeddings.labels.copy(), np.zeros(len(owner), bool), set()
    for sample in samples:
        rows = _meant(sample, found, owner=owner, left=left)
        _refuse_pretrained(trained, sample, holders=owner[rows], server=len(left))
        gone[rows] = True
        changed |= set(owner[rows].tolist())
    for relabelled in labelled:
        rows = _meant(relabelled, found, owner=owner, left=left)
        _refuse_pretrained(trained, relabelled, holders=owner[rows], server=len(left))
        labels[rows] = _label(relabelled, len(trained.head.classes))
        changed |= set(owner[rows].tolist())
    kept = np.flatnonzero((owner >= 0) & ~gone)
    return Remainder(
        _picked(replace(embeddings, labels=labels), kept),
        _renumbered(partition, owner[kept], left),
        frozenset(left[number] for number in changed if number < len(left)),
        len(left) in changed,
    )


def remaining_statistics(
    trained: Trained, request: UnlearnRequest, material: Material
) -> tuple[dict[str, ClientStats], ServerSet | None]:
    """Every client's statistics, and the server's, after the request; those it touches are made anew."""
    if trained.statistics is None:
        raise InputError(f"Exact removal needs {REMEDIES['statistics']}.")
    left = request.remaining(trained)
    parts = {name: one for name, one in trained.statistics.items() if name in left}
    for name in request.added:
        if name in material.arriving:
            parts[name] = refuse_unsound(material.arriving[name], name, design=trained.design)
    absent = [name for name in request.added if name not in parts]
    if not (request.by_row or absent):
        return parts, trained.server
    rest = remaining_rows(trained, request, _with_arriving(material, parts, absent))
    for name in {*rest.changed, *absent}:
        rows = rest.partition.clients.get(name, np.empty(0, np.int64))
        if len(rows):
            parts[name] = client_statistics(rest.embeddings, rows, trained.design)
        else:
            del parts[name]
    if not parts:
        raise InputError("Cannot forget every sample of every client: nothing would remain to be trained on.")
    return parts, remaining_server(trained, rest)


def remaining_server(trained: Trained, rest: Remainder) -> ServerSet | None:
    """The server's rows, renumbered, with statistics made anew where a sample of it was forgotten."""
    if trained.server is None:
        return None
    rows = rest.partition.server
    if not rest.server_changed or trained.server.statistics is None:
        return replace(trained.server, rows=rows) if len(rows) else None
    return ServerSet(client_statistics(rest.embeddings, rows, trained.design), rows) if len(rows) else None


def trained_after(
    trained: Trained,
    head: Head,
    solution: Solution,
    *,
    counts: Mapping[str, int],
    method: str,
    cost: Cost,
    **kept: Any,
) -> Trained:
    """The run with another head and fewer clients; what knew of the forgotten (history, losses) is left out."""
    old = np.array([*trained.counts.values()])
    sized = np.allclose([*trained.weights.values()], client_weights(old))
    shares = client_weights(np.array([*counts.values()]), "size" if sized else "uniform")
    return replace(
        trained,
        head=head,
        solution=solution,
        method=method,
        counts=dict(counts),
        weights=dict(zip(counts, shares.tolist(), strict=True)),
        losses=(),
        history=None,
        traffic={method: Traffic(up=cost.up, down=cost.down)},
        **{"statistics": None, "gradients": None, "server": trained.server, **kept},
    )


def named_head(trained: Trained, head: LinearHead) -> LinearHead:
    """A fitted head with the run's classes and encoding, and what the run knew of them."""
    told = {name: value for name, value in trained.head.recipe.items() if name in ENCODING}
    return replace(
        head,
        classes=trained.head.classes,
        spec_digest=trained.head.spec_digest,
        recipe={**told, **head.recipe},
    )


def moved_head(trained: Trained, params: NDArray[np.float64], *, method: str, rows: int) -> Head:
    """The run's head at other parameters of its least-squares problem."""
    recipe: dict[str, Json] = {
        **trained.head.recipe,
        "solver": method,
        "rows": rows,
        "exact_unlearning": False,
    }
    if isinstance(trained.head, NetworkHead):
        return replace(trained.head, params=params, recipe=recipe)
    bias = np.zeros((trained.design.dimension + 1 - len(params), params.shape[1]))
    return replace(trained.head, params=np.vstack([params, bias]), recipe=recipe)


def penalised_gradients(gradients: Mapping[str, NDArray[np.float64]], extra: NDArray[np.float64]) -> Gradients:
    """Clients' gradients with the ridge's part, as training keeps them."""
    return Gradients({name: one + extra for name, one in gradients.items()})


def _rows_of(material: Material) -> tuple[EmbeddingSet, Partition]:
    if material.embeddings is None or material.partition is None:
        raise InputError(f"This request needs {REMEDIES['rows']}.")
    if material.partition.rows != len(material.embeddings):
        raise MismatchError(
            f"The partition divides {material.partition.rows} rows, the embedding set has "
            f"{len(material.embeddings)}. Use the set that the partition was made from."
        )
    return material.embeddings, material.partition


def _with_arriving(material: Material, parts: Mapping[str, ClientStats], absent: list[str]) -> Material:
    """The material with empty holdings for clients that joined by statistics alone; others must hold rows."""
    if material.embeddings is None or material.partition is None:
        what = f"client {absent[0]} needs its statistics (Material.arriving) or rows" if absent else "rows"
        raise InputError(f"This request needs cached rows: {what}. Give the embedding set and the partition.")
    known = material.partition.clients
    unknown = [name for name in absent if name not in known]
    if unknown:
        raise InputError(
            f"Cannot add client {unknown[0]}: it has neither statistics (Material.arriving) nor rows in the "
            "partition. Give one of them."
        )
    empty = {name: np.empty(0, np.int64) for name in parts if name not in known}
    return replace(material, partition=replace(material.partition, clients={**known, **empty}))


def _found(embeddings: EmbeddingSet, wanted: set[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {sample: [] for sample in wanted}
    if wanted:
        for row, sample in enumerate(embeddings.ids):
            if sample in wanted:
                found[sample].append(row)
    return found


def _owners(partition: Partition, left: tuple[str, ...]) -> Indices:
    """The number of each row's client among those that stay, one more for the server, -1 for nobody."""
    owner = np.full(partition.rows, -1)
    for number, name in enumerate(left):
        if name not in partition.clients:
            raise MismatchError(
                f"Client {name} of this run holds no rows in the partition given. Use the run's own partition."
            )
        owner[partition.clients[name]] = number
    owner[partition.server] = len(left)
    return owner


def _meant(
    asked: Held | Relabelled, found: Mapping[str, list[int]], *, owner: Indices, left: tuple[str, ...]
) -> list[int]:
    """The rows of a sample that one client holds, or anybody."""
    wanted = left.index(asked.client) if asked.client in left else -1
    rows = [
        row
        for row in found[asked.sample]
        if (owner[row] >= 0 if asked.client is None else wanted >= 0 and owner[row] == wanted)
    ]
    if not rows:
        who = f"client {asked.client} does not hold it" if asked.client else "nobody in this run holds it"
        verb = "relabel" if isinstance(asked, Relabelled) else "forget"
        raise InputError(f"Cannot {verb} sample {asked.sample}: {who}. Look at the ids of the embedding set.")
    return rows


def _refuse_pretrained(trained: Trained, asked: Held | Relabelled, *, holders: Indices, server: int) -> None:
    """Refuse to change a row that a network was pretrained on: w_p would still know it as it was."""
    if server in holders and trained.head.recipe.get("pretraining") is not None:
        raise InputError(
            f"Sample {asked.sample} is the server's own, and the network was pretrained on it: its weights w_p would "
            "still know it. Train again without it, or name one client's copy (CLIENT/ID)."
        )


def _label(asked: Relabelled, classes: int) -> int:
    if not 0 <= asked.label < classes:
        raise InputError(f"Sample {asked.sample} cannot get label {asked.label}: the classes are 0 to {classes - 1}.")
    return asked.label


def _picked(embeddings: EmbeddingSet, rows: Indices) -> EmbeddingSet:
    """The set of these rows, read only when asked for."""
    if len(rows) == len(embeddings):
        return embeddings
    pick = rows.tolist()
    return replace(
        embeddings,
        embeddings=Picked(embeddings.embeddings, rows),
        labels=embeddings.labels[rows],
        ids=[embeddings.ids[i] for i in pick],
        clients=None if embeddings.clients is None else tuple(embeddings.clients[i] for i in pick),
        names=None if embeddings.names is None else [embeddings.names[i] for i in pick],
        masked=None if embeddings.masked is None else embeddings.masked[rows],
        skipped=(),
    )


def _renumbered(partition: Partition, owner: Indices, left: tuple[str, ...]) -> Partition:
    """The partition of the rows that stay; a client without rows is gone."""
    held = {name: np.flatnonzero(owner == number) for number, name in enumerate(left)}
    return replace(
        partition,
        clients={name: rows for name, rows in held.items() if len(rows)},
        server=np.flatnonzero(owner == len(left)),
        rows=len(owner),
    )
