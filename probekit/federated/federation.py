"""Federation: the one door to clients.

A transport carries messages; order, checks, traffic and absences are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from probekit.arrays import Array
from probekit.errors import Failure, InputError, MissingClients, ProbekitError
from probekit.federated.client import Holding, Limits, LocalData, client_data
from probekit.federated.queries import Arrays, Copies, Query, Restricted, Shapes, Statistics
from probekit.linear.stats import SufficientStats, sum_stats
from probekit.objective import Model
from probekit.progress import Progress, Step, silent
from probekit.records import array_bytes
from probekit.registry import nearest

LARGEST = 1e100
"""Sums of rows stay far below: squares of the largest float32 are 1e77."""
ROUNDING = 1e-9

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Ask:
    """A query to a client, and the shapes that its answer must have."""

    client: str
    query: Query
    shapes: Shapes


Outcome = tuple[Ask, Arrays | Failure]


@contextmanager
def single_thread() -> Iterator[None]:
    """One BLAS thread: several would add in another order, and give other bits."""
    import scipy.linalg  # noqa: F401  # so that its library is limited too

    with threadpool_limits(1, user_api="blas"):
        yield


class Transport(Protocol):
    """Carries queries to clients and answers back, in the order asked.

    A client that is gone, late, refuses or sends garbage is a Failure, never an exception.
    """

    def describe(self) -> Mapping[str, Holding]: ...
    def carries(self, model: Model, ask: Ask) -> bool:
        """Whether the question leaves the server: its bytes count then."""

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]: ...


@dataclass
class Traffic:
    """Bytes of arrays that passed, and how often clients were asked."""

    sent: int = 0
    received: int = 0
    rounds: int = 0


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's checked answer about so many rows."""

    client: str
    rows: int
    arrays: Arrays


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that share a model, with their numbers of rows, in the order of their names.

    samples: ids that clients leave out of every answer (with `keep`, the only ones asked about).
    without_rows: clients of whom only statistics exist.
    """

    transport: Transport
    model: Model
    clients: Mapping[str, int]
    without_rows: frozenset[str] = frozenset()
    samples: Mapping[str, frozenset[str]] = field(default_factory=dict)
    keep: bool = False
    traffic: Traffic = field(default_factory=Traffic)

    @classmethod
    def of(cls, transport: Transport, model: Model) -> Self:
        """All clients of a transport."""
        holdings = transport.describe()
        empty = sorted(name for name, holding in holdings.items() if holding.count < 1)
        if empty:
            raise InputError(
                f"Clients need rows; {empty[0]!r} has none ({len(empty)} such clients). "
                "Leave them out, or merge them with others."
            )
        counts = {name: holdings[name].count for name in sorted(holdings)}
        without_rows = frozenset(name for name in holdings if not holdings[name].has_rows)
        return cls(transport, model, counts, without_rows)

    @property
    def rows(self) -> int:
        return sum(self.clients.values())

    @property
    def has_rows(self) -> bool:
        """Whether every client can train locally."""
        return self.without_rows.isdisjoint(self.clients)

    def only(self, names: Collection[str]) -> Self:
        self._check_known(names)
        clients = {name: rows for name, rows in self.clients.items() if name in names}
        return replace(self, clients=clients)

    def without(self, names: Collection[str]) -> Self:
        return self.only(self.clients.keys() - set(names))

    def without_samples(self, samples: Mapping[str, frozenset[str]]) -> Self:
        """The clients without these rows and those left out before; who has no others is gone.

        Asks the clients, in one round, how many rows that are.
        """
        absent = dict(self.samples)
        counts = dict(self.clients)
        for name, copies in self._copies(samples).items():
            absent[name] = self.samples.get(name, frozenset()) | samples[name]
            counts[name] -= copies
        clients = {name: rows for name, rows in counts.items() if rows > 0}
        return replace(self, clients=clients, samples=absent)

    def only_samples(self, samples: Mapping[str, frozenset[str]]) -> Self:
        """The clients with these rows alone."""
        return replace(self, clients=self._copies(samples), samples=samples, keep=True)

    def _copies(self, samples: Mapping[str, frozenset[str]]) -> dict[str, int]:
        """How many rows have these ids; copies have the same."""
        self._check_known(samples)
        asks = [self._ask(name, Copies(samples[name])) for name in self.clients if name in samples]
        answers = self._exchange(asks)
        return {answer.client: int(answer.arrays["rows"][0]) for answer in answers}

    def ask(self, query: Query, clients: Collection[str] | None = None) -> Iterator[Answer]:
        """The answers in the order of names; MissingClients after the last, if any failed."""
        members = self if clients is None else self.only(frozenset(clients))
        return self._exchange(self._ask(name, query) for name in members.clients)

    def _exchange(self, asks: Iterable[Ask]) -> Iterator[Answer]:
        pending: set[str] = set()
        failures: dict[str, Failure] = {}
        for ask, outcome in self.transport.exchange(self.model, self._counted(asks, pending)):
            pending.discard(ask.client)
            if not isinstance(outcome, Failure):
                if self.transport.carries(self.model, ask):
                    self.traffic.received += sum(array.nbytes for array in outcome.values())
                outcome = checked(ask, outcome)
            if isinstance(outcome, Failure):
                failures[ask.client] = outcome
            else:
                yield Answer(ask.client, self.clients[ask.client], outcome)
        failures |= {name: Failure("gone", "no answer") for name in sorted(pending)}
        if failures:
            raise MissingClients(failures)

    def _counted(self, asks: Iterable[Ask], pending: set[str]) -> Iterator[Ask]:
        """The questions as they leave."""
        size: int | None = None
        for ask in asks:  # about one query, with or without samples
            pending.add(ask.client)
            if self.transport.carries(self.model, ask):
                if size is None:
                    size = array_bytes(ask.query)
                    self.traffic.rounds += 1
                self.traffic.sent += size
            yield ask

    def _ask(self, name: str, query: Query) -> Ask:
        shapes = query.shapes(self.model, self.clients[name])
        ids = self.samples.get(name)
        if ids is not None:
            query = Restricted(query, ids, self.keep)
        return Ask(name, query, shapes)

    def _check_known(self, names: Iterable[str]) -> None:
        unknown = set(names) - self.clients.keys()
        if unknown:
            raise InputError(
                f"Clients must be in this federation; {min(unknown)!r} is not. "
                f"{nearest(min(unknown), list(self.clients))}"
            )


def checked(ask: Ask, arrays: Arrays) -> Arrays | Failure:
    """An answer in C order, which later bits depend on, unless it is garbage."""
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != ask.shapes:
        return Failure("garbage", f"shapes {ask.shapes} were expected; found {shapes}")
    for name, array in arrays.items():
        largest = max(array.max(initial=0.0), -array.min(initial=0.0))
        if not largest < LARGEST:  # nor is NaN
            return Failure("garbage", f"numbers below {LARGEST:g} were expected in {name}")
    if "weight" in arrays and arrays["weight"][0] <= 0:
        return Failure("garbage", f"a weight above 0 was expected; found {arrays['weight'][0]:g}")
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


@dataclass(frozen=True, eq=False)
class InProcess:
    """Clients in this process, with rows or with statistics only."""

    data: Mapping[str, LocalData]
    limits: Limits = field(default_factory=Limits)

    def describe(self) -> Mapping[str, Holding]:
        return {name: Holding.of(data) for name, data in self.data.items()}

    def carries(self, model: Model, ask: Ask) -> bool:
        return True

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        for ask in asks:
            yield ask, answered(ask.query, ask.client, model, self.data[ask.client], self.limits)


def answered(
    query: Query, name: str, model: Model, data: LocalData, limits: Limits
) -> Arrays | Failure:
    """What the client that holds these data answers."""
    try:
        return query.answer(client_data(name, model, data, limits))
    except ProbekitError as error:
        return Failure("refused", str(error))


@dataclass(frozen=True, eq=False)
class Total:
    """Sums of answers over all rows."""

    arrays: Arrays

    @property
    def weight(self) -> float:
        return float(self.arrays["weight"][0])

    def mean(self, name: str) -> Array:
        return np.asarray(self.arrays[name] / self.weight)


def total(answers: Iterable[Answer]) -> Total:
    """The sum of answers in their order: the same clients give the same bits, whoever left."""
    sums: Arrays = {}
    for answer in answers:
        for name, array in answer.arrays.items():
            if name in sums:
                sums[name] += array
            else:
                sums[name] = np.array(array)
    if not sums:
        raise InputError("A sum needs answers; found no client. Retain at least one.")
    return Total(sums)


def each_stats(
    federation: Federation, clients: Collection[str] | None = None, *, progress: Progress = silent
) -> Iterator[tuple[str, SufficientStats]]:
    """Statistics by client; MissingClients after the last names those that no rows can have."""

    def read(answer: Answer) -> tuple[str, SufficientStats]:
        stats = Statistics.read(federation.model, answer.rows, answer.arrays)
        check_possible(stats)
        return answer.client, stats

    count = len(federation.clients if clients is None else clients)
    pairs = read_each(federation.ask(Statistics(), clients), read)
    for done, pair in enumerate(pairs, start=1):
        progress(Step("statistics", done, count))
        yield pair


def read_each(answers: Iterable[Answer], read: Callable[[Answer], R]) -> Iterator[R]:
    """What is read from answers; one that cannot be read is its client's failure."""
    failures: dict[str, Failure] = {}
    try:
        for answer in answers:
            try:
                value = read(answer)
            except InputError as error:
                failures[answer.client] = Failure("garbage", str(error))
                continue
            yield value
    except MissingClients as missing:
        failures |= missing.reasons
    if failures:
        raise MissingClients(failures)


def check_possible(stats: SufficientStats) -> None:
    """Refuse sums that no rows can have: by symmetry and the Cauchy-Schwarz inequality."""
    if stats.root is not None:  # a root is rows
        return
    diagonal = np.append(np.diagonal(stats.gram), stats.target_squares)
    scale = np.sqrt(np.maximum(diagonal, 0.0))
    bound = np.outer(scale[: stats.columns], scale)
    products = np.abs(np.hstack([stats.gram, stats.moment]))
    asymmetry = np.abs(stats.gram - stats.gram.T)
    if (
        (diagonal < 0).any()
        or (products > (1 + ROUNDING) * bound).any()
        or (asymmetry > ROUNDING * bound[:, : stats.columns]).any()
    ):
        raise InputError(
            "Sums of products of rows were expected; found some that no rows have. Compute them "
            "again."
        )


def collect_stats(
    federation: Federation, clients: Collection[str] | None = None, *, progress: Progress = silent
) -> dict[str, SufficientStats]:
    """Each client's statistics, to be kept."""
    return dict(each_stats(federation, clients, progress=progress))


def total_stats(federation: Federation, *, progress: Progress = silent) -> SufficientStats:
    """The sum of all clients' statistics, none of which is kept."""
    return sum_stats(stats for _, stats in each_stats(federation, progress=progress))
