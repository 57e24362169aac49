"""What training leaves: the head, what the server kept of its clients, and what it cost."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.federated.federation import Traffic
from probekit.federated.summation import StatisticsTree
from probekit.linear.design import ClientStats, Solution
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head
from probekit.values import Array, Indices, Json

ENCODING = (
    *("backbone", "dataset", "spec", "ridge_chosen", SIGMA),
    *("head", "scaling", "intercept", "arithmetic", "grid", "fit_view", "class_weight", "normalise_classes"),
)
"""What a head's recipe says of its embeddings and of the loss that it minimises, which no removal changes."""
MEASURED = ("squared_error", "wrong_share")
"""What it says of its ridge by numbers that depend on every row: these do not outlive a removal."""


@dataclass(frozen=True, eq=False)
class RoundState:
    """Where rounds have come to: the parameters, how many it took, and what was sent meanwhile."""

    params: Array
    rounds: int
    sent: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, eq=False)
class Round:
    """One round: the parameters it started from, who took part, with what weight, and the uploads."""

    start: Array
    participants: tuple[str, ...]
    weights: tuple[float, ...]
    uploads: Array

    def update(self, client: str) -> Array:
        """What a participant changed: its upload minus the start."""
        return np.asarray(self.uploads[self.participants.index(client)] - self.start)


@dataclass(frozen=True, eq=False)
class History:
    """Every round's start and uploads, in order; `end` are the parameters after the last one."""

    rounds: tuple[Round, ...]
    end: Array

    @property
    def size(self) -> int:
        """The bytes that the parameters take."""
        return self.end.nbytes + sum(one.start.nbytes + one.uploads.nbytes for one in self.rounds)

    @property
    def about(self) -> frozenset[str]:
        """Everybody who took part."""
        return frozenset(name for one in self.rounds for name in one.participants)

    def last_upload(self, client: str) -> Array | None:
        """What a client sent when it last took part; None: never."""
        last = next((one for one in reversed(self.rounds) if client in one.participants), None)
        return None if last is None else np.asarray(last.uploads[last.participants.index(client)])


class HistoryRecorder:
    """Rounds as they come, in a temporary file instead of memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 open from round to round
        self._rounds: list[tuple[int, tuple[str, ...], tuple[float, ...], tuple[int, ...]]] = []

    def __del__(self) -> None:
        self._file.close()

    def add(self, start: Array, participants: tuple[str, ...], weights: tuple[float, ...], uploads: Array) -> None:
        """Keep a round."""
        self._rounds.append((self._file.tell() // 8, participants, weights, uploads.shape))
        for array in (start, uploads):
            self._file.write(np.ascontiguousarray(array, "<f8").tobytes())

    def history(self, end: Array) -> History:
        """All rounds, from one map of the file: every map takes a file descriptor."""
        self._file.flush()
        flat = np.memmap(self._file, "<f8", "r").view(np.ndarray)
        rounds = []
        for place, participants, weights, shape in self._rounds:
            both = flat[place : place + math.prod(shape[1:]) * (1 + shape[0])].reshape(-1, *shape[1:])
            rounds.append(Round(both[0], participants, weights, both[1:]))
        return History(tuple(rounds), end)


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradient of each client's mean ridge loss, penalty included.

    `aggregate`: at the final global parameters, for every client; FedRemoval's theorem needs these. `local`:
    at the client's own last local parameters, for the participants of the last round; algorithm 1 as printed
    sends these.
    """

    aggregate: Mapping[str, Array]
    local: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ServerSet:
    """The server's own rows (numbers in the embedding set) and their statistics, where the problem has such."""

    statistics: ClientStats | None
    rows: Indices


@dataclass(frozen=True, eq=False)
class Kept:
    """Anything else that a trainer or a method keeps: arrays common to all, arrays of single clients, plain values.

    `about` are the clients whose rows it knows something of.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    plain: Json = None
    about: frozenset[str] = frozenset()

    def without(self, clients: Collection[str]) -> Kept | None:
        """What does not know these clients; None: nothing."""
        common = bool(self.arrays) or self.plain is not None
        parts = {name: own for name, own in self.parts.items() if name not in clients}
        if (self.about & set(clients)) if common else not parts:
            return None
        return replace(self, parts=parts, about=self.about - set(clients))


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained head with all that the server kept.

    `ridge` is in the given scaling; `weights` are the clients' shares in an average; `traffic` is by purpose.
    `objective` is the secret linear term that was added to the loss, if one was. `kept` holds what else there is, by
    name.
    """

    head: Head
    problem: Any
    method: str
    ridge: float
    scaling: str
    counts: Mapping[str, int]
    weights: Mapping[str, float]
    solution: Solution
    rounds: int = 1
    losses: tuple[float, ...] = ()
    learning_rate: float | None = None
    statistics: Mapping[str, ClientStats] | None = None
    server: ServerSet | None = None
    gradients: Gradients | None = None
    history: History | None = None
    objective: Array | None = None
    kept: Mapping[str, Kept] = field(default_factory=dict)
    traffic: Mapping[str, Traffic] = field(default_factory=dict)

    @property
    def params(self) -> Array:
        """The parameters of the problem."""
        return np.asarray(self.problem.params(self.head))

    @property
    def rows(self) -> int:
        """How many rows it was trained on."""
        return sum(self.counts.values())

    @property
    def total_traffic(self) -> Traffic:
        """All bytes, whatever for."""
        return sum(self.traffic.values(), Traffic())

    def mean_ridge(self, rows: int) -> float:
        """The ridge in mean scaling, for that many rows: one in sum scaling weighs more on fewer."""
        return self.ridge if self.scaling == "mean" else self.ridge / rows

    @property
    def lasting(self) -> dict[str, Any]:
        """What the head's recipe says that holds after a removal, too, and tells nothing of a row."""
        kept: dict[str, Any] = {name: value for name, value in self.head.recipe.items() if name in ENCODING}
        if chosen := kept.get("ridge_chosen"):
            kept["ridge_chosen"] = {name: value for name, value in chosen.items() if name not in MEASURED}
        return kept

    def named(self, head: Any) -> Any:
        """A head that was fitted anew, with what is known of the encoding, the ridge and the linear term."""
        recipe = {**self.lasting, **head.recipe}
        return replace(head, classes=self.head.classes, spec_digest=self.head.spec_digest, recipe=recipe)

    def minimum(self, total: ClientStats) -> tuple[Head, Solution]:
        """The head of summed statistics, fitted as this one was (with its own linear term) and named as it is."""
        head, solution = self.problem.minimum(total, self.ridge, scaling=self.scaling, term=self.objective)
        return self.named(head), solution

    def has(self, name: str) -> bool:
        """Whether something of this name was kept."""
        known = ("statistics", "server", "gradients", "history", "objective")
        return getattr(self, name) is not None if name in known else name in self.kept

    def without(self, clients: Collection[str]) -> Self:
        """The same without anything that knows these clients, the head aside."""
        gone = set(clients)

        def left(parts: Mapping[str, Any]) -> dict[str, Any]:
            return {name: parts[name] for name in parts if name not in gone}

        old, sums = self.gradients, self.statistics
        history = self.history if self.history is not None and not self.history.about & gone else None
        gradients = None if old is None else Gradients(left(old.aggregate), left(old.local))
        kept = {name: rest for name, one in self.kept.items() if (rest := one.without(gone)) is not None}
        statistics = None if sums is None else StatisticsTree.of(sums).without(*gone & sums.keys())
        return replace(self, history=history, gradients=gradients, statistics=statistics, kept=kept)
