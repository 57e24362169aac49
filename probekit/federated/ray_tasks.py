"""What a worker of a Ray cluster does: it answers for some clients, or adds up what they answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cache.ids import IdArray, hex_ids, pack
from probekit.errors import Cancelled, InputError, MismatchError, Pending
from probekit.federated.federation import Missing, Traffic, as_sum
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Arrays, Ask
from probekit.federated.summation import fold, least_rows, trie
from probekit.federated.sums import Sum
from probekit.linear.threads import libraries
from probekit.models.problem import backend_named
from probekit.values import Array, EmbeddingSet, EncodingSpec, Indices, Json


@dataclass(frozen=True, eq=False)
class LooseSet:
    """A set that is not in the cache as such, but its rows are: what is said of them."""

    spec: EncodingSpec
    ids: IdArray
    labels: Indices
    class_names: tuple[str, ...]
    masked: NDArray[np.bool_] | None
    targets: Array | None

    def open(self, store: DiskStore) -> EmbeddingSet:
        """The set."""
        ids = hex_ids(self.ids)
        rows = store.load(self.spec, ids, masked=self.masked)
        more: Any = {"masked": self.masked, "targets": self.targets}
        return EmbeddingSet(self.spec, rows, self.labels, ids, self.class_names, **more)


@dataclass(frozen=True)
class Setting:
    """What every task needs: the problem, and where the rows are. Known by the digests of both."""

    problem: str
    root: Path
    digest: str
    backend: str = field(compare=False)
    plain: Mapping[str, Json] = field(compare=False)
    arrays: Arrays = field(compare=False)
    described: LooseSet | None = field(compare=False)

    @classmethod
    def of(cls, problem: Any, embeddings: EmbeddingSet, store: DiskStore) -> Setting:
        """That of a problem and a set whose rows are in the store."""
        digest, described = embeddings.digest, None
        if digest not in store.sets.digests():
            said = (embeddings.labels, embeddings.class_names, embeddings.masked, embeddings.targets)
            described = LooseSet(embeddings.spec, pack(embeddings.ids), *said)
        made = (problem.backend, dict(problem.plain), dict(problem.arrays))
        return cls(problem.digest, store.root.absolute(), digest, *made, described)


@lru_cache(maxsize=2)
def prepared(setting: Setting) -> tuple[Any, EmbeddingSet]:
    """The problem and the set, made once in a worker."""
    problem = backend_named(setting.backend).from_plain(setting.plain, setting.arrays)
    if problem.digest != setting.problem:
        raise MismatchError("The problem is another one on this worker. Install the same probekit on all machines.")
    store = DiskStore(setting.root)
    described = setting.described
    return problem, store.open(setting.digest) if described is None else described.open(store)


@dataclass(frozen=True, eq=False)
class ClientBatch:
    """The clients of a task: their names, where the rows of each end, the rows, and how many all clients have.

    counts: for how many rows each is expected to answer, where that is known.
    """

    names: tuple[str, ...]
    ends: Indices
    rows: Indices
    total: int
    counts: tuple[int, ...] | None = None


@dataclass(eq=False)
class Outcome:
    """What became of a task: who answered for how many rows, who is missing, the bytes that passed."""

    counts: dict[str, int] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    error: Exception | None = None
    """A mistake of whoever asked."""


def answered(setting: Setting, ask: Ask, share: ClientBatch) -> tuple[list[Answer] | None, Outcome]:
    """The answers of some clients, in order."""
    outcome = Outcome()
    with _asked(setting, ask, share, outcome) as stream:
        return list(stream), outcome
    return None, outcome


def summed(setting: Setting, ask: Ask, share: ClientBatch) -> tuple[Sum | None, Outcome]:
    """The sum of the answers of some clients, which are a subtree; None where one is not as expected."""
    outcome, found = Outcome(), None
    with _asked(setting, ask, share, outcome) as stream:
        if share.counts is not None:
            expected = dict(zip(share.names, share.counts, strict=True))
            problem = prepared(setting)[0]
            stats = getattr(problem, "stats", None)

            def get(name: str) -> Sum:
                one = next(stream, None)
                if one is None or (one.client, one.count) != (name, expected[name]):
                    raise _Other
                return as_sum(one, stats)

            try:
                found = fold(trie(expected), least_rows(problem.shape[0]), get)
            except _Other:
                found = None
        for _ in stream:
            pass
    return found, outcome


def added(low: Sum | None, high: Sum | None) -> Sum | None:
    """The sum of two."""
    if low is None or high is None:
        return None
    found = low.copy()  # what came from elsewhere cannot be written
    found.add(high)
    return found


class _Other(Exception):  # noqa: N818
    """An answer that is not the one that was expected."""


@contextmanager
def _asked(setting: Setting, ask: Ask, share: ClientBatch, outcome: Outcome) -> Iterator[Iterator[Answer]]:
    """The answers of some clients; what became of them is put into the outcome."""
    try:
        with libraries().limit(limits=1, user_api="blas"):
            problem, embeddings = prepared(setting)
            held = {
                name: problem.hold(embeddings, own, share=len(own) / share.total, name=name)
                for name, own in zip(share.names, np.split(share.rows, share.ends[:-1]), strict=True)
            }
            clients = InProcess(problem, held)

            def each() -> Iterator[Answer]:
                for one in clients.stream(ask, share.names, outcome.missing):
                    outcome.counts[one.client] = one.count
                    yield one

            yield each()
            outcome.traffic = clients.traffic
    except (InputError, Cancelled, Pending) as error:
        outcome.error = error
