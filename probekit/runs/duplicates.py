"""Samples of one client that (nearly) stand in another's rows, or in a test set."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.errors import NotFoundError
from probekit.linear.neighbours import Pair
from probekit.linear.neighbours import duplicates as find_pairs
from probekit.registry import nearest
from probekit.runs.folder import OpenRun
from probekit.runs.result import Result
from probekit.runs.rows import usable
from probekit.values import EmbeddingSet

SERVER = "(server)"


@dataclass(frozen=True)
class Twins(Pair):
    """Two rows that are nearly the same, with the ids and names of their samples; a client of None is the server."""

    name: str | None
    other_name: str | None
    id: str
    other_id: str


@dataclass(frozen=True)
class StayKnown:
    """How many of a client's rows have a twin elsewhere, so that they stay known when it leaves."""

    client: str
    rows: int
    stay_known: int
    same_sample: int


@dataclass(frozen=True)
class SharedPairs:
    """How many pairs two holders share."""

    holders: tuple[str, ...]
    pairs: int


@dataclass(frozen=True)
class TwinsInTest:
    """Rows of a test set that nearly stand in the run's rows."""

    set: str
    rows: int
    rows_with_a_twin: int
    by_client: dict[str, int]
    pairs: tuple[Twins, ...]


@dataclass(frozen=True)
class DuplicatesResult(Result):
    """Pairs of rows across clients, closest first, and what they mean for each client and each two holders."""

    run: Path
    threshold: float
    clients: tuple[StayKnown, ...]
    across: tuple[Twins, ...]
    between: tuple[SharedPairs, ...]
    test: TwinsInTest | None = None


def duplicates(
    run: OpenRun, *, test: str | None = None, threshold: float = 0.999, client: str | None = None, limit: int = 100_000
) -> DuplicatesResult:
    """Samples of one client that (nearly) stand in another's rows, or in a test set.

    threshold: the cosine from which two rows are nearly the same.
    client: only what concerns this client.
    limit: give up beyond this many pairs.
    """
    partition, embeddings = run.folder.partition(), run.folder.embeddings(run.store)
    if client is not None and client not in partition.clients:
        raise NotFoundError(f"{run.path} has no client {client!r}. {nearest(client, list(partition.clients))}")
    options: dict[str, Any] = {"threshold": threshold, "limit": limit, "threads": os.cpu_count() or 1}
    found = find_pairs(embeddings, partition, **options)
    across = [pair for pair in found if client in (None, pair.client, pair.other_client)]
    twins = None
    if test is not None:
        tested, _ = usable(run.store.open(test))
        found = find_pairs(embeddings, partition, test=tested, **options)
        against = [pair for pair in found if client in (None, pair.client)]
        rows = {pair.other_row for pair in against}
        by_client = dict(Counter(holder(pair.client) for pair in against).most_common())
        twins = TwinsInTest(test, len(tested), len(rows), by_client, _twins(against, embeddings, tested))
    sizes = {name: len(rows) for name, rows in partition.clients.items()}
    shared = Counter(tuple(sorted((holder(pair.client), holder(pair.other_client)))) for pair in across)
    between = tuple(SharedPairs(two, count) for two, count in shared.most_common())
    known, pairs = _stay_known(across, sizes, client), _twins(across, embeddings, embeddings)
    return DuplicatesResult(run.path, threshold, known, pairs, between, twins)


def holder(client: str | None) -> str:
    """Who holds a row, in a word."""
    return SERVER if client is None else client


def _stay_known(pairs: Iterable[Pair], sizes: dict[str, int], only: str | None) -> tuple[StayKnown, ...]:
    twins, same = set(), set()
    for pair in pairs:
        both = {(pair.client, pair.row), (pair.other_client, pair.other_row)}
        twins |= both
        same |= both if pair.same_sample else set()
    known, known_same = (Counter(owner for owner, _ in one) for one in (twins, same))
    names = [name for name in sizes if only in (None, name)]
    return tuple(StayKnown(name, sizes[name], known[name], known_same[name]) for name in names)


def _twins(pairs: Iterable[Pair], one: EmbeddingSet, other: EmbeddingSet) -> tuple[Twins, ...]:
    """Pairs with the names and ids of their samples, closest first."""
    found = []
    for pair in sorted(pairs, key=lambda pair: -pair.similarity):
        name = None if one.names is None else one.names[pair.row]
        other_name = None if other.names is None else other.names[pair.other_row]
        here, there = one.ids[pair.row], other.ids[pair.other_row]
        found.append(Twins(**vars(pair), name=name, other_name=other_name, id=here, other_id=there))
    return tuple(found)
