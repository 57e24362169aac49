"""Clients whose questions are tasks on a Ray cluster: rows are read by its workers, and sums are made there.

A task answers for some thousand small clients. The driver sends which rows of which set are whose; a worker opens the
set by its digest in the cache that all share. Sums are made along the trie of `summation`: what a task adds up is a
subtree, and further tasks add these, so that the bits are those of one process and the driver sees one sum. A worker
that dies is replaced by Ray, and its task done again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, Self

import numpy as np

from probekit.cache import DiskStore
from probekit.encoding.cluster import RETRIES, Cluster
from probekit.errors import MissingClientsError
from probekit.federated.federation import Answers, Missing, Traffic, absence, as_answer
from probekit.federated.in_process import Asked
from probekit.federated.message import Answer, Ask
from probekit.federated.ray_tasks import ClientBatch, Outcome, Setting, added, answered, summed
from probekit.federated.summation import Branch, Leaf, Node, is_bucket, least_rows, order, trie
from probekit.values import EmbeddingSet, Indices, Partition

MOST_CLIENTS = 2048
"""Clients of a task: subtrees that are cut at so many have at least 512."""
MOST_ROWS = 1 << 14
MOST_BYTES = 1 << 26
"""Rows of a task of more than one client, and bytes of the answers that it gives one by one."""
AHEAD = 2
"""Tasks beyond one per processor whose answers wait to be read."""


def ray_federation(
    spec: str,
    problem: Any,
    embeddings: EmbeddingSet,
    partition: Partition,
    store: DiskStore,
    clients: Iterable[str] | None = None,
) -> RayFederation:
    """The clients that hold these rows, on the cluster that `ray` or `ray:HOST:PORT` names, ready to be asked."""
    names = partition.clients if clients is None else clients
    rows = {name: partition.clients[name] for name in names}
    return RayFederation(problem, embeddings, rows, store, Cluster.named(spec))


@dataclass(eq=False)
class RayFederation(Asked):
    """Clients that hold these rows of a set of the store, asked on a cluster, which is joined at the first question."""

    problem: Any
    embeddings: EmbeddingSet
    rows: Mapping[str, Indices]
    store: DiskStore
    cluster: Cluster = field(default_factory=Cluster)
    job: str = ""
    _posted: tuple[Ask, Sequence[str], float | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, and end it if it was started for this."""
        vars(self).pop("_setting", None)
        self.cluster.__exit__()

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return {name: len(own) for name, own in self.rows.items()}

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether they can answer: all hold the same kind of thing."""
        return any(kind in self.problem.hold(self.embeddings, own).offers for own in [*self.rows.values()][:1])

    def post(self, ask: Ask, names: Sequence[str], *, timeout: float | None) -> None:
        """Nothing is sent before somebody reads: how they are read decides what the tasks are."""
        self._posted = ask, names, None if timeout is None else time.monotonic() + timeout

    def ask(self, *arguments: Any, **options: Any) -> Answers:
        """The answers to a question; their sum is made on the cluster."""
        found = super().ask(*arguments, **options)
        assert self._posted is not None
        return _ReducedAnswers(**vars(found), reduce=partial(self._reduce, *self._posted))

    def stream(self, ask: Ask, names: Sequence[str], missing: dict[str, Missing]) -> Iterator[Answer]:
        """The answers in order; those of a few tasks are there before they are read."""
        deadline = None if self._posted is None else self._posted[2]

        def each() -> Iterator[Answer]:
            with _Tasks(self, ask, answered, deadline) as tasks:
                todo = iter(self._batches(ask, order(dict.fromkeys(names))))
                waiting: deque[Any] = deque()
                for _ in range(self.cluster.cpus + AHEAD):
                    waiting.extend(tasks.start(batch) for batch in _some(todo))
                while waiting:
                    found, outcome = tasks.read(waiting.popleft())
                    waiting.extend(tasks.start(batch) for batch in _some(todo))
                    self.sent += outcome.traffic
                    missing.update(outcome.missing)
                    yield from found or ()

        return each()

    def _reduce(self, ask: Ask, names: Sequence[str], deadline: float | None, answers: Answers) -> Answer:
        """The sum of all answers. Who is missing changes the trie: then the others are asked once more."""
        counts, passes = answers.counts, 0
        with _Tasks(self, ask, summed, deadline) as tasks:
            while True:
                known = {name: self.counts[name] for name in names} if counts is None else counts
                if not known:
                    answers.require(0)
                    raise MissingClientsError("There is nothing to add up: no client answered. Ask one that does.")
                total, outcomes = self._pass(tasks, known, expected=counts is not None)
                if not passes:
                    self.sent += sum((one.traffic for one in outcomes), Traffic())
                for one in outcomes:
                    answers.missing.update(one.missing)
                present = {name: count for one in outcomes for name, count in one.counts.items()}
                answers.require(len(present))
                if present == counts:
                    return as_answer(tasks.get(total))
                counts, passes, tasks.deadline = present, passes + 1, None

    def _pass(self, tasks: _Tasks, counts: Mapping[str, int], *, expected: bool) -> tuple[Any, list[Outcome]]:
        """Start the tasks of a sum, with those that add up their results; gives it and what became of each."""
        started: list[Any] = []
        least = least_rows(self.problem.shape[0])
        add = tasks.remote(added)

        def reduced(node: Node) -> Any:
            large = sizes[id(node)] > MOST_CLIENTS or node.count > MOST_ROWS
            if large and isinstance(node, Branch) and not is_bucket(node, least):
                return add.remote(reduced(node.low), reduced(node.high))
            names = [node.name] if isinstance(node, Leaf) else [leaf.name for leaf in node.leaves]
            started.append(tasks.start(self._share(names, counts if expected else None)))
            return started[-1].result

        top, sizes = trie(counts), dict[int, int]()
        _count(top, sizes)
        total = reduced(top)
        return total, [tasks.read(one, result=False)[1] for one in started]

    def _batches(self, ask: Ask, names: Sequence[str]) -> Iterator[ClientBatch]:
        """Some clients after the other, in order: not too many, not too many rows, not too large answers."""
        columns, outputs = self.problem.shape
        some: list[str] = []
        rows = size = 0
        for name in names:
            own = self.counts[name]
            answer = 8 * columns * (outputs + (min(own, columns) if ask.kind == "statistics" else 0))
            full = len(some) >= MOST_CLIENTS or rows + own > MOST_ROWS or size + answer > MOST_BYTES
            if some and full:
                yield self._share(some, None)
                some, rows, size = [], 0, 0
            some.append(name)
            rows, size = rows + own, size + answer
        if some:
            yield self._share(some, None)

    def _share(self, names: Sequence[str], counts: Mapping[str, int] | None) -> ClientBatch:
        own = [self.rows[name] for name in names]
        ends = np.cumsum([len(one) for one in own])
        expected = None if counts is None else tuple(counts[name] for name in names)
        return ClientBatch(tuple(names), ends, np.concatenate(own), self._total, expected)

    @cached_property
    def _total(self) -> int:
        return max(1, sum(self.counts.values()))

    @cached_property
    def _setting(self) -> Any:
        """The problem and the set, put where all workers find them."""
        if self.cluster.ray is None or not self.cluster.ray.is_initialized():
            self.cluster.__enter__()
        return self.cluster.ray.put(Setting.of(self.problem, self.embeddings, self.store))


@dataclass(eq=False)
class _ReducedAnswers(Answers):
    """Answers that are added up where they are."""

    reduce: Callable[[Answers], Answer] | None = None

    def total(self) -> Answer:
        """The sum of all answers, in the one order that depends on the clients present alone."""
        assert self.reduce is not None
        return self.reduce(self)


@dataclass(frozen=True, eq=False)
class _Started:
    """A task of some clients, and where its two results will be."""

    share: ClientBatch
    result: Any
    outcome: Any


class _Tasks:
    """The tasks of one question. Those that nobody reads in the end are cancelled."""

    def __init__(self, federation: RayFederation, ask: Ask, work: Any, deadline: float | None) -> None:
        self._setting, self._ray = federation._setting, federation.cluster.ray
        self._ask, self._size, self.deadline = self._ray.put(ask), ask.size, deadline
        self._work = self.remote(work, num_returns=2)
        self._open: set[Any] = set()

    def remote(self, work: Any, **options: Any) -> Any:
        """A function that runs on the cluster, again if its worker dies."""
        return self._ray.remote(max_retries=RETRIES, num_cpus=1, **options)(work)

    def start(self, share: ClientBatch) -> _Started:
        """Begin a task."""
        started = _Started(share, *self._work.remote(self._setting, self._ask, share))
        self._open.add(started.outcome)
        return started

    def read(self, started: _Started, *, result: bool = True) -> tuple[Any, Outcome]:
        """The result of a task (None: not asked for, or there is none), and what became of it."""
        self._open.discard(started.outcome)
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        try:
            if not self._ray.wait([started.outcome], timeout=left)[0]:
                self._ray.cancel(started.outcome, force=True)
                return None, self._lost(started, Missing("late", "it did not answer in time."))
            outcome: Outcome = self.get(started.outcome)
            if outcome.error is None:
                return self.get(started.result) if result else None, outcome
        except self._ray.exceptions.RayTaskError as error:
            return None, self._lost(started, absence(error.cause))
        except self._ray.exceptions.RayError as error:
            why = f"its worker died, {RETRIES + 1} times: {str(error).splitlines()[0]}"
            return None, self._lost(started, Missing("gone", why))
        raise outcome.error

    def get(self, reference: Any) -> Any:
        """What lies on the cluster."""
        return self._ray.get(reference)

    def _lost(self, started: _Started, why: Missing) -> Outcome:
        names = started.share.names
        return Outcome({}, dict.fromkeys(names, why), Traffic(down=self._size * len(names)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            self._ray.cancel(one, force=True)


def _count(node: Node, sizes: dict[int, int]) -> int:
    """How many clients there are below each node."""
    below = 1 if isinstance(node, Leaf) else _count(node.low, sizes) + _count(node.high, sizes)
    sizes[id(node)] = below
    return below


def _some(todo: Iterator[ClientBatch]) -> Iterator[ClientBatch]:
    return islice(todo, 1)
