"""Who holds which rows: iid, by label (dirichlet, shards, classes) or by a column; and the server's share.

Every purpose draws from a stream of its own, PCG64 seeded with [seed, purpose]: the server's rows do not
change when the clients' scheme does, and a partition is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.federated.grouped import deal_groups
from probekit.linear.medoids import representatives
from probekit.registry import nearest
from probekit.values import UNLABELLED, Indices, Partition, Rows

SERVER_STREAM, CLIENT_STREAM, RESERVE_STREAM = 0, 1, 2
SCHEMES = ("iid", "dirichlet:ALPHA", "shards:K", "column:client_id", "classes", "groups")
LARGEST_NUMBER = 1e9  # beyond it a dirichlet draw is equal parts to the last digit, and later overflows
SERVER_CHOICES = ("random", "representative")


@dataclass(frozen=True)
class Scheme:
    """A scheme's name taken apart: its kind and the number or column after the colon."""

    kind: str
    number: float = 0.0

    @property
    def counted(self) -> bool:
        """Whether the number of clients is asked for (else it follows from the data)."""
        return self.kind in ("iid", "dirichlet", "shards", "groups")


def partition(
    labels: Indices,
    scheme: str,
    *,
    clients: int | None = None,
    server_share: float = 0.0,
    server_choice: str = "random",
    seed: int = 0,
    client_ids: Sequence[str] | None = None,
    embeddings: Rows | None = None,
    masked: NDArray[np.bool_] | None = None,
    groups: Indices | None = None,
) -> Partition:
    """Divide all rows among clients and the server.

    The server's share is taken first, stratified by class, and never the last row of a class (by column also
    not of a client). A client that a dirichlet draw leaves empty is given the last row of the then largest
    client. `client_ids` is needed by `column:client_id`; `embeddings` by the representative choice (k-means
    medoids within each class). `groups` is needed by `groups`, which keeps what belongs together at one client.
    """
    parsed = parse_scheme(scheme)
    _check_rows(labels, masked, seed)
    owners, names = _owners(parsed, labels, client_ids)
    wanted = _client_count(parsed, clients, names)
    if parsed.kind == "groups":
        if server_choice != "random":
            raise InputError(f"By groups the server's rows are drawn at random; found {server_choice!r}.")
        streams = [np.random.Generator(np.random.PCG64([seed, stream])) for stream in (SERVER_STREAM, CLIENT_STREAM)]
        owner, server = deal_groups(labels, groups, wanted, share=server_share, server=streams[0], deal=streams[1])
        held = {str(number): np.flatnonzero(owner == number) for number in range(wanted)}
        return Partition(held, server, len(labels), scheme, seed)
    reserved = np.empty(0, np.int64)
    if owners is not None:  # one random row of every owner
        order = np.random.Generator(np.random.PCG64([seed, RESERVE_STREAM])).permutation(len(owners))
        reserved = order[np.unique(owners[order], return_index=True)[1]]
    server = _server_rows(labels, server_share, reserved=reserved, choice=server_choice, seed=seed, rows=embeddings)
    rest = np.setdiff1d(np.arange(len(labels)), server)
    if wanted > len(rest):
        raise InputError(
            f"Each client needs a row: {wanted} clients were asked for and {len(rest)} of {len(labels)} rows "
            f"are left after the server's {len(server)}. Ask for fewer clients or a smaller server share."
        )
    generator = np.random.Generator(np.random.PCG64([seed, CLIENT_STREAM]))
    owner = owners[rest] if owners is not None else _deal(parsed, labels[rest], wanted, generator)
    held = {name: rest[owner == number] for number, name in enumerate(names or map(str, range(wanted)))}
    return Partition(held, server, len(labels), scheme, seed)


def parse_scheme(text: str) -> Scheme:
    """Take `iid`, `dirichlet:ALPHA`, `shards:K`, `column:client_id`, `classes` or `groups` apart."""
    kind, colon, argument = text.partition(":")
    known = {name.partition(":")[0]: name for name in SCHEMES}
    if kind not in known:
        raise NotFoundError(f"There is no partition scheme {text!r}. {nearest(text, list(SCHEMES))}")
    if bool(colon) != (":" in known[kind]):
        raise InputError(f"The partition scheme {kind} is written {known[kind]}; found {text!r}.")
    if kind == "column" and argument != "client_id":
        raise InputError(
            f"An embedding set keeps one column of clients, client_id; {argument!r} was asked for. Extract "
            "again with that column as the client column, then use column:client_id."
        )
    if kind not in ("dirichlet", "shards"):
        return Scheme(kind)
    try:
        number = float(argument)
    except ValueError:
        number = math.nan
    if not 0 < number <= LARGEST_NUMBER or (kind == "shards" and number != int(number)):
        wanted = "a whole number above 0" if kind == "shards" else f"a number above 0, at most {LARGEST_NUMBER:.0e}"
        raise InputError(f"{known[kind]} needs {wanted}; found {argument!r}. Write dirichlet:0.5 or shards:2, say.")
    return Scheme(kind, number)


def _check_rows(labels: Indices, masked: NDArray[np.bool_] | None, seed: int) -> None:
    if seed < 0:
        raise InputError(f"A seed must be 0 or more; found {seed}.")
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"A partition needs one label per row and at least one row; found shape {labels.shape}.")
    unusable = (labels <= UNLABELLED) | (False if masked is None else masked)
    if unusable.any():
        raise InputError(
            f"Clients need rows with a label and an embedding: {int(unusable.sum())} of {len(labels)} have none, the "
            f"first is row {int(np.argmax(unusable))}. Keep the others with EmbeddingSet.select first."
        )


def _owners(scheme: Scheme, labels: Indices, ids: Sequence[str] | None) -> tuple[Indices | None, list[str]]:
    """The client number of every row and the clients' names, where the data decide them."""
    if scheme.kind == "classes":
        present, owners = np.unique(labels, return_inverse=True)
        return owners, list(map(str, present))
    if scheme.kind != "column":
        return None, []
    if ids is None:
        raise InputError(
            "column:client_id needs a client for every row; this embedding set names none. Extract a data "
            "set that has a client column, or choose iid, dirichlet:ALPHA, shards:K or classes."
        )
    if len(ids) != len(labels):
        raise InputError(f"Each of the {len(labels)} rows needs one client id; found {len(ids)}.")
    if not all(ids):
        row = [bool(name) for name in ids].index(False)
        raise InputError(f"Every row needs a client; row {row} has none. Drop it with EmbeddingSet.select first.")
    names, owners = np.unique(np.asarray(ids, dtype=str), return_inverse=True)
    return owners, list(map(str, names))


def _client_count(scheme: Scheme, clients: int | None, names: list[str]) -> int:
    if scheme.counted:
        if clients is None or clients < 1:
            raise InputError(f"The scheme {scheme.kind} needs a number of clients, 1 or more; found {clients}.")
        return clients
    if clients not in (None, len(names)):
        raise InputError(f"By {scheme.kind} there are {len(names)} clients; found {clients}. Leave the number out.")
    return len(names)


def _server_rows(
    labels: Indices, share: float, *, reserved: Indices, choice: str, seed: int, rows: Rows | None
) -> Indices:
    """The server's rows: from each class its part of the share, drawn at random or as k-means medoids."""
    if choice not in SERVER_CHOICES:
        raise InputError(f"The server's rows are chosen at random or representative; found {choice!r}.")
    if not 0 <= share < 1:
        raise InputError(f"The server's share must lie in [0, 1) and leave the clients rows; found {share}.")
    generator = np.random.Generator(np.random.PCG64([seed, SERVER_STREAM]))
    eligible = generator.permutation(np.setdiff1d(np.arange(len(labels)), reserved))
    quotas = _quotas(labels, eligible, share)
    if choice == "representative" and share and rows is None:
        raise InputError("A representative server set is chosen by the embeddings: give embeddings, or choose random.")
    taken = [np.empty(0, np.int64)]
    for label in np.flatnonzero(quotas):
        candidates = eligible[labels[eligible] == label]
        if choice == "representative" and rows is not None:
            candidates = np.sort(candidates)
            candidates = candidates[representatives(np.asarray(rows[candidates]), int(quotas[label]), seed=seed)]
        taken.append(candidates[: quotas[label]])
    return np.sort(np.concatenate(taken))


def _quotas(labels: Indices, eligible: Indices, share: float) -> Indices:
    """How many rows of each class the server gets: largest remainders, never the last row of a class."""
    counts = np.bincount(labels)
    room = np.minimum(np.bincount(labels[eligible], minlength=len(counts)), np.maximum(counts - 1, 0))
    wanted = round(share * len(labels))
    if wanted > room.sum() or (share > 0 and not wanted):
        raise InputError(
            f"A server share of {share} of {len(labels)} rows is {wanted} rows; between 1 and {int(room.sum())} are "
            "possible, because every class and every named client keeps one. Change the share."
        )
    ideal = share * counts
    quotas: Indices = np.minimum(np.floor(ideal).astype(np.int64), room)
    order: Any = np.argsort(-(ideal - np.floor(ideal)), kind="stable")
    while (missing := wanted - int(quotas.sum())) > 0:
        quotas[order[quotas[order] < room[order]][:missing]] += 1
    return quotas


def _deal(scheme: Scheme, labels: Indices, clients: int, generator: np.random.Generator) -> Indices:
    """The client number of every row."""
    order = generator.permutation(len(labels))
    owner = np.empty(len(labels), np.int64)
    if scheme.kind == "iid":
        owner[order] = np.arange(len(labels)) % clients
        return owner
    by_label = order[np.argsort(labels[order], kind="stable")]
    if scheme.kind == "shards":
        shards = clients * int(scheme.number)
        if shards > len(labels):
            raise InputError(
                f"{clients} clients of {int(scheme.number)} shards need {shards} shards of at least one row; "
                f"only {len(labels)} rows are left for clients. Ask for fewer shards or clients."
            )
        dealt = generator.permutation(shards) % clients
        for shard, rows in enumerate(np.array_split(by_label, shards)):
            owner[rows] = dealt[shard]
        return owner
    for label in np.unique(labels):
        rows = by_label[labels[by_label] == label]
        proportions = generator.dirichlet(np.full(clients, scheme.number))
        cuts = np.round(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        for client, piece in enumerate(np.split(rows, cuts)):
            owner[piece] = client
    return _without_empty(owner, clients)


def _without_empty(owner: Indices, clients: int) -> Indices:
    """The same, each empty client given the last row of the then largest one (the first of equals)."""
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        donor = int(np.argmax(sizes))
        owner[np.flatnonzero(owner == donor)[-1]] = client
        sizes[donor] -= 1
        sizes[client] += 1
    return owner
