"""The rows of a run: those that can be used, those of a state, and the samples that a request means."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cache.ids import meant
from probekit.custody.petitions import Petition
from probekit.custody.seals import opened
from probekit.errors import InputError
from probekit.federated.server_share import drawn_from_clients, returned
from probekit.runs.folder import RunFolder
from probekit.runs.ledger import PURGE as PURGE
from probekit.runs.ledger import UNLEARN as UNLEARN
from probekit.runs.ledger import LedgerEntry
from probekit.unlearning.request import Relabelled, SampleRef, UnlearnRequest
from probekit.unlearning.rows import remaining_rows
from probekit.values import UNLABELLED, EmbeddingSet, Partition


class RunRows(NamedTuple):
    """Rows of a cached set, and who holds them."""

    embeddings: EmbeddingSet
    partition: Partition


def usable(embeddings: EmbeddingSet) -> tuple[EmbeddingSet, NDArray[np.int64] | None]:
    """The rows with a label and an embedding, and their numbers (None: all rows are so)."""
    good = embeddings.labels != UNLABELLED
    if embeddings.masked is not None:
        good &= ~embeddings.masked
    if good.all() and len(good):
        return embeddings, None
    if not good.any():
        raise InputError(
            f"No row can be used: of {len(embeddings)} rows none has both a label and an embedding. Extract a data set "
            "that has labels (`label_column`)."
        )
    rows = np.flatnonzero(good).astype(np.int64)
    return embeddings.select(rows), rows


def request_of(entry: LedgerEntry) -> UnlearnRequest:
    """What a ledger entry says was asked for."""
    plain: Any = entry.details["request"]
    if not opened(plain):
        raise InputError(f"What was asked for in entry {entry.number} of the ledger was erased by a purge of its rows.")
    return UnlearnRequest.from_plain(plain)


def requests(run: RunFolder, state: int | None = None) -> list[UnlearnRequest]:
    """Everything that was ever asked for (up to a state) and not erased since, in order."""
    last = run.state if state is None else state
    asked = [entry for entry in run.entries() if entry.action == UNLEARN and entry.state <= last]
    return [request_of(entry) for entry in asked if opened(entry.details["request"])]


def rows_at(run: RunFolder, store: DiskStore, state: int | None = None, *, joining: Collection[str] = ()) -> RunRows:
    """The run's rows as they stood in a state: the cached set without the samples that were taken out until then.

    A client that was forgotten still holds its rows there: a state's `counts` say whose it was trained on. Rows of it
    that the server's share was drawn from are its own again, unless it is `joining`.
    """
    number = run.state if state is None else state
    embeddings, partition, entries = run.embeddings(store), run.partition(), run.entries()
    rebased = max((n for n, one in enumerate(entries) if one.action == PURGE and one.details["cache"]), default=-1)
    for entry in entries[rebased + 1 :]:
        if entry.action != UNLEARN or entry.state > number:
            continue
        request = request_of(entry)
        if request.by_row:
            counts = {name: len(held) for name, held in partition.clients.items()}
            everyone, rows_only = replace(run.trained(number), counts=counts), replace(request, clients=(), added=())
            rest = remaining_rows(everyone, rows_only, embeddings, partition)
            embeddings, partition = rest.embeddings, rest.partition
    if drawn_from_clients(partition):
        partition = returned(embeddings, partition, {*run.trained(number).counts, *joining})
    return RunRows(embeddings, partition)


def read_request(
    client: str | None = None,
    *,
    clients: Sequence[str] = (),
    samples: Sequence[str] = (),
    relabel: Mapping[str, int] | Sequence[str] = (),
    add: Sequence[str] = (),
    asked: Sequence[Petition] = (),
) -> UnlearnRequest:
    """The request in these texts: a sample is ID or CLIENT/ID, a relabelled one ID=LABEL or CLIENT/ID=LABEL."""
    changed, names = [], (*clients, *([client] if client is not None else []))
    if isinstance(relabel, Mapping):
        relabel = [f"{name}={label}" for name, label in relabel.items()]
    for text in relabel:
        name, equals, label = text.rpartition("=")
        if not equals or not label.isdecimal():
            raise InputError(f"A relabelled sample is written ID=NUMBER; found {text!r}.")
        changed.append(Relabelled(_held(name)[0], int(label), _held(name)[1]))
    refs, by = tuple(SampleRef(*_held(text)) for text in samples), tuple(asked) or (Petition(),)
    return UnlearnRequest(names, refs, tuple(changed), tuple(add), by)


def _held(text: str) -> tuple[str, str | None]:
    client, slash, sample = text.rpartition("/")
    return sample, client if slash else None


def full_ids(request: UnlearnRequest, embeddings: EmbeddingSet) -> UnlearnRequest:
    """The request with beginnings of ids and names of rows made into ids."""
    known, named = set(embeddings.ids), dict(zip(embeddings.names or (), embeddings.ids, strict=False))

    def full(text: str) -> str:
        matches = meant(text, known, named)
        if len(matches) != 1:
            hint = "give a full id (`probekit cache info SET --rows`)"
            raise InputError(f"{text!r} means {len(matches)} samples of this run; {hint}.")
        return matches.pop()

    samples = tuple(replace(one, sample=full(one.sample)) for one in request.samples)
    changed = tuple(replace(one, sample=full(one.sample)) for one in request.relabelled)
    return replace(request, samples=samples, relabelled=changed)
