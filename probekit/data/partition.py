"""Who holds which rows: by a column, evenly, or skewed by label; and the server's own share.

Every purpose draws from a stream of its own, so the server's rows do not change when the clients'
scheme does, and a partition is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from probekit.arrays import TEXT, Indices, Texts
from probekit.embeddings import UNLABELED, EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.registry import nearest

SERVER = -1
"""Stands for the server among the numbers of clients."""
SERVER_STREAM = 0
CLIENT_STREAM = 1
RESERVE_STREAM = 2
MAX_ALPHA = 1e9
"""Beyond it a Dirichlet draw is equal parts to the last digit."""
FLOWER_MINIMUM = 10
FLOWER_DRAWS = 11


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of every client and of the server, by number, ascending; each row is held once.

    server_origin: the client that each of the server's rows was drawn from, "" where it was
        nobody's: where the data name the clients, a row follows its client when that is forgotten.
    """

    clients: Mapping[str, Indices]
    server: Indices
    server_origin: Texts

    def server_rows(self, clients: Collection[str]) -> Indices:
        """The server's rows that stay with these clients: theirs, and nobody's."""
        return self.server[np.isin(self.server_origin, ["", *clients])]


@dataclass(frozen=True)
class Scheme:
    """How rows are dealt to a number of clients."""

    kind: str = "iid"
    number: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """`iid`, `dirichlet:ALPHA` or `shards:N`."""
        if text == "iid":
            return cls()
        kind, _, argument = text.partition(":")
        try:
            number = float(argument)
        except ValueError:
            number = math.nan
        is_written = kind == "dirichlet" or (kind == "shards" and number.is_integer())
        if not is_written or not 0 < number <= MAX_ALPHA:
            raise InputError(
                "A partition is iid, dirichlet:ALPHA or shards:N with a number above 0; found "
                f"{text!r}. Write dirichlet:0.5 or shards:2, say."
            )
        return cls(kind, number)


def partition(
    rows: EmbeddingSet,
    clients: int | str,
    *,
    scheme: Scheme | None = None,
    groups: str | None = None,
    server_share: float = 0.0,
    seed: int = 0,
) -> Partition:
    """Divide all rows among clients and the server.

    clients: how many (they are called 0, 1, ...), or the column that names each row's client.
    scheme: how rows are dealt to a number of clients.
    groups: a column; rows that are equal in it stay together.
    server_share: stratified by class, and never the last row of a class or of a named client.
    """
    labels = _labels(rows)
    if seed < 0:
        raise InputError(f"A random seed must be 0 or more; found {seed}. Pass another --seed.")
    if not 0 <= server_share < 1:
        raise InputError(
            f"A server share must lie in [0, 1); found {server_share}. Pass another --server-share."
        )
    if isinstance(clients, str):
        if scheme is not None or groups is not None:
            raise InputError(
                f"The column {clients!r} says who holds which row; found a partition or groups "
                "too. Leave --partition and --group out, or pass a number of --clients."
            )
        origin = _column(rows, clients)
        unique, owner = np.unique(origin, return_inverse=True)
        names = unique.tolist()
        owner[_server_rows(labels, _unreserved(owner, seed), server_share, seed)] = SERVER
    else:
        if clients < 1:
            raise InputError(f"Expected 1 client or more; found {clients}. Pass another --clients.")
        origin = np.full(len(labels), "", TEXT)
        names = [str(number) for number in range(clients)]
        scheme = scheme or Scheme()
        if groups is None:
            owner = _deal(scheme, labels, clients, server_share, seed)
        elif scheme.kind == "iid":
            owner = _deal_groups(_column(rows, groups), labels, clients, server_share, seed)
        else:
            raise InputError(f"Groups are dealt evenly; found {scheme.kind}. Leave it out.")
    order = np.argsort(owner, kind="stable")
    server, *parts = np.split(order, np.searchsorted(owner[order], np.arange(len(names))))
    return Partition(dict(zip(names, parts, strict=True)), server, origin[server])


def _labels(rows: EmbeddingSet) -> Indices:
    """The class of every row; one class for all where there are targets."""
    if rows.labels is None:
        return np.zeros(len(rows), np.int64)
    missing = int((rows.labels == UNLABELED).sum())
    if missing or not len(rows):
        raise InputError(
            f"Clients hold rows with a label; found {missing} of {len(rows)} without one. "
            "Take the others (EmbeddingSet.labeled)."
        )
    return rows.labels


def _column(rows: EmbeddingSet, name: str) -> Texts:
    if name not in rows.columns:
        hint = nearest(name, sorted(rows.columns))
        raise NotFoundError(f"{rows.source} has no column {name!r}. {hint} (--keep-column)")
    column = rows.columns[name]
    empty = np.flatnonzero(column == "")
    if len(empty):
        raise InputError(
            f"Every row needs a value in {name!r}; found none in {len(empty)} of {len(rows)} rows, "
            f"first in row {empty[0]}. Drop these rows, or choose another column."
        )
    return column


def _check_room(clients: int, available: int, noun: str) -> None:
    if clients > available:
        raise InputError(
            f"Each client needs one of the {noun}; found {available} for {clients} clients after "
            "the server's share. Pass fewer --clients or a smaller --server-share."
        )


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, purpose]))


def _unreserved(owner: Indices, seed: int) -> Indices:
    """All rows but a random one of every client, which is kept from the server."""
    order = _stream(seed, RESERVE_STREAM).permutation(len(owner))
    reserved = order[np.unique(owner[order], return_index=True)[1]]
    return np.setdiff1d(np.arange(len(owner)), reserved)


def _server_rows(labels: Indices, eligible: Indices, share: float, seed: int) -> Indices:
    """From each class its part of the share: largest remainders, never the last row of a class."""
    counts = np.bincount(labels)
    available = np.bincount(labels[eligible], minlength=len(counts))
    room = np.minimum(available, np.maximum(counts - 1, 0))
    size = round(share * len(labels))
    if size > room.sum() or (share > 0 and not size):
        raise InputError(
            f"A server share of {share} is {size} of {len(labels)} rows; expected 1 to "
            f"{room.sum()}: each class and named client keeps a row. Pass another --server-share."
        )
    ideal = share * counts
    quotas = np.minimum(np.floor(ideal).astype(np.int64), room)
    by_remainder = np.argsort(np.floor(ideal) - ideal, kind="stable")
    while (missing := size - int(quotas.sum())) > 0:
        open_classes = by_remainder[quotas[by_remainder] < room[by_remainder]]
        quotas[open_classes[:missing]] += 1
    shuffled = _stream(seed, SERVER_STREAM).permutation(eligible)
    taken = [shuffled[labels[shuffled] == label][:quota] for label, quota in enumerate(quotas)]
    return np.concatenate(taken)


def _deal(scheme: Scheme, labels: Indices, clients: int, share: float, seed: int) -> Indices:
    """The client of every row, -1 for the server's."""
    owner = np.full(len(labels), SERVER)
    everyone = np.arange(len(labels))
    client_rows = np.setdiff1d(everyone, _server_rows(labels, everyone, share, seed))
    _check_room(clients, len(client_rows), "rows")
    deal = _deal_dirichlet if scheme.kind == "dirichlet" else _deal_evenly
    owner[client_rows] = deal(scheme, labels[client_rows], clients, seed)
    return owner


def _deal_evenly(scheme: Scheme, labels: Indices, clients: int, seed: int) -> Indices:
    """The client of every row: rows in turn, or shards of rows that are sorted by label."""
    generator = _stream(seed, CLIENT_STREAM)
    order = generator.permutation(len(labels))
    owner = np.empty(len(labels), np.int64)
    if scheme.kind == "iid":
        owner[order] = np.arange(len(labels)) % clients
        return owner
    shards = clients * int(scheme.number)
    _check_room(shards, len(labels), f"rows in each of its {int(scheme.number)} shards")
    by_label = order[np.argsort(labels[order], kind="stable")]
    holders = generator.permutation(shards) % clients
    for holder, shard in zip(holders, np.array_split(by_label, shards), strict=True):
        owner[shard] = holder
    return owner


def _deal_dirichlet(scheme: Scheme, labels: Indices, clients: int, seed: int) -> Indices:
    """The draw of Flower's `DirichletPartitioner(self_balancing=False)` with the same seed.

    Shares of each class are drawn until every client has ten rows. Flower gives up after eleven
    draws; here the last one counts, and a client without a row is given the last row of the then
    largest.
    """
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    owner = np.empty(len(labels), np.int64)
    for _ in range(FLOWER_DRAWS):
        for rows in members:
            shares = generator.dirichlet(np.full(clients, scheme.number))
            cuts = (np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]
            owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
        sizes = np.bincount(owner, minlength=clients)
        if sizes.min() >= FLOWER_MINIMUM:
            break
    for client in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        owner[np.flatnonzero(owner == largest)[-1]] = client
        sizes[largest] -= 1
        sizes[client] += 1
    return owner


def _deal_groups(column: Texts, labels: Indices, clients: int, share: float, seed: int) -> Indices:
    """The client of every row, -1 for the server's; no group is in two places.

    The server takes groups in random order while they fit its share and leave every class a row.
    The others go, in random order, each to the client that has the fewest rows then.
    """
    _, first, group = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(group))[:-1])
    parts = [parts[number] for number in np.argsort(first)]  # what they are called draws nothing
    allowed = round(share * len(labels))
    remaining = np.bincount(labels)
    owner = np.full(len(labels), SERVER)
    dealt = []
    for number in _stream(seed, SERVER_STREAM).permutation(len(parts)):
        part = parts[number]
        counts = np.bincount(labels[part], minlength=len(remaining))
        spares_classes = (remaining[counts > 0] > counts[counts > 0]).all()
        if len(part) <= allowed and spares_classes:
            allowed -= len(part)
            remaining = remaining - counts
        else:
            dealt.append(number)
    if share and len(dealt) == len(parts):
        raise InputError(
            f"A server share of {share} is {allowed} rows; no group fits. Raise --server-share."
        )
    _check_room(clients, len(dealt), "groups")
    sizes = np.zeros(clients, np.int64)
    for number in _stream(seed, CLIENT_STREAM).permutation(np.sort(dealt)):
        smallest = int(np.argmin(sizes))
        owner[parts[number]] = smallest
        sizes[smallest] += len(parts[number])
    return owner
