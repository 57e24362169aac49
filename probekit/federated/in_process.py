"""Clients that live in this process, and clients known by what a server kept of them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from probekit.errors import Cancelled, InputError, MissingClientsError, Pending
from probekit.federated.client import answer, unable
from probekit.federated.federation import Answers, Federation, Missing, Traffic, absence, checked
from probekit.federated.message import OWN, Answer, Arrays, Ask, Selection
from probekit.federated.summation import key_of, order
from probekit.values import Array, EmbeddingSet, Indices, Json


class Asked:
    """What every federation shares: a question is made, clients are gone through, bytes are counted."""

    problem: Any
    sizes: Mapping[str, int]
    local: bool = False
    job: str = ""
    number: int = 0
    sent: Traffic = Traffic()

    @property
    def traffic(self) -> Traffic:
        """What passed so far."""
        return self.sent

    @property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return self.sizes

    @property
    def clients(self) -> tuple[str, ...]:
        """Who they are."""
        return tuple(self.counts)

    def reply(self, ask: Ask, name: str) -> Answer | Missing:
        """One client's answer, or why there is none."""
        return Missing("cannot", "nobody answers for it.")

    def post(self, ask: Ask, names: Sequence[str], *, timeout: float | None) -> None:
        """Send a question to clients, where somebody has to."""

    def ask(
        self,
        kind: str,
        arrays: Arrays | None = None,
        plan: Mapping[str, Json] | None = None,
        *,
        clients: Collection[str] | None = None,
        rows: Selection = OWN,
        precision: str = "float64",
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Answers:
        """The answers of these clients (None: all) to a question.

        With `at_least` so many are enough; who has not answered after `timeout` seconds is late.
        """
        names = self.clients if clients is None else tuple(clients)
        missing = {name: Missing("gone", "there is no such client.") for name in names if name not in self.counts}
        asked = [name for name in names if name not in missing]
        self.number += 1
        digest = self.problem.digest
        ask = Ask(kind, arrays or {}, dict(plan or {}), self.job, self.number, digest, rows, precision=precision)
        self._record(rounds=1)
        self.post(ask, asked, timeout=timeout)
        counts = {name: self.counts[name] for name in asked} if rows == OWN else None
        stream, stats = self.stream(ask, asked, missing), getattr(self.problem, "stats", None)
        return Answers(stream, self.problem.shape[0], missing, counts, at_least, stats)

    def stream(self, ask: Ask, names: Sequence[str], missing: dict[str, Missing]) -> Iterator[Answer]:
        """The answers of these clients, one after the other, in the order of sums; who fails is missing with a reason.

        Comes through: a mistake of whoever asks (InputError), and what stops the work (Cancelled, Pending).
        """
        down = ask.size
        for name in order(dict.fromkeys(names)):
            self._record(down=down)
            try:
                found = self.reply(ask, name)
            except (InputError, Cancelled, Pending):
                raise
            except Exception as error:
                found = absence(error)
            fault = self._fault(found, ask) if isinstance(found, Answer) else ""
            if isinstance(found, Missing) or fault:
                missing[name] = found if isinstance(found, Missing) else Missing("garbage", fault)
                continue
            self._record(up=found.size)
            yield found

    def _fault(self, found: Answer, ask: Ask) -> str:
        return checked(found, ask, self.problem.shape, targets="targets" in self.problem.traits)

    def _record(self, **passed: int) -> None:
        if not self.local:
            self.sent += Traffic(**passed)


@dataclass(eq=False)
class InProcess(Asked):
    """Clients with holdings of their own; what each remembers is kept here between questions."""

    problem: Any
    holdings: Mapping[str, Any]
    memories: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    local: bool = False
    """Whether this is what a server has itself, so that asking sends nothing."""
    job: str = ""

    @classmethod
    def of(cls, problem: Any, embeddings: EmbeddingSet, rows: Mapping[str, Indices]) -> InProcess:
        """Clients that hold these rows of a set."""
        total = max(1, sum(map(len, rows.values())))
        held = {name: problem.hold(embeddings, own, share=len(own) / total, name=name) for name, own in rows.items()}
        return cls(problem, held)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return {name: one.count for name, one in self.holdings.items()}

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether all of them can answer."""
        return bool(self.holdings) and all(kind in one.offers for one in self.holdings.values())

    def lacks(self, ask: Ask, name: str) -> str:
        """Why one of them cannot answer; empty where it can."""
        return unable(ask, self.holdings[name])

    def reply(self, ask: Ask, name: str) -> Answer:
        """Ask a client in this process."""
        found, memory = answer(ask, self.holdings[name], self.memories.get(name, {}), name=name)
        self.memories[name] = memory
        return found


@dataclass(eq=False)
class KeptGradients(Asked):
    """Clients of whom gradients at one point were kept; they answer for that point, and for no other."""

    problem: Any
    params: Array
    gradients: Mapping[str, Array]
    sizes: Mapping[str, int]
    local: bool = True

    def offers(self, kind: str, how: str = "each") -> bool:
        """A gradient, at the point where it was kept."""
        return kind == "gradient" and bool(self.gradients)

    def lacks(self, ask: Ask, name: str) -> str:
        """Why it is not the gradient of all rows in float64, at that point and with nothing else."""
        plain = ask.kind == "gradient" and ask.precision == "float64" and ask.rows == OWN and not ask.plan
        same = plain and np.array_equal(ask.arrays["params"], self.params)
        return "" if same else "only its gradient at the head was kept."

    def reply(self, ask: Ask, name: str) -> Answer:
        """The kept gradient, as a sum over the client's rows."""
        why = self.lacks(ask, name)
        if why:
            raise MissingClientsError(why)
        return Answer(name, self.sizes[name], {"gradient": self.sizes[name] * self.gradients[name]})


@dataclass(eq=False)
class FirstOf(Asked):
    """Several sources for the same clients: each client answers from the first that can; a source is asked once."""

    problem: Any
    sources: Sequence[Federation]
    sizes: Mapping[str, int]
    local: bool = True
    posted: list[Answers] = field(default_factory=list)
    """What the sources answer to the present question."""
    unable: dict[str, str] = field(default_factory=dict)
    """Why no source can answer it for these clients."""

    @property
    def traffic(self) -> Traffic:
        """What the sources sent."""
        return sum((one.traffic for one in self.sources), Traffic())

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether every client has a source that can answer."""
        able = {name for one in self.sources if one.offers(kind, how) for name in one.clients}
        return bool(self.sizes) and able >= set(self.sizes)

    def post(self, ask: Ask, names: Sequence[str], *, timeout: float | None) -> None:
        """Ask every source for the clients that no earlier one can answer for."""
        options: Any = {"rows": ask.rows, "precision": ask.precision, "at_least": 0, "timeout": timeout}
        self.posted, self.unable = [], dict.fromkeys(names, "nobody answers for it.")
        for source in self.sources:
            usual = "" if source.offers(ask.kind) else f"it has nothing to answer {ask.kind!r} from."
            lacks = getattr(source, "lacks", lambda ask, name, usual=usual: usual)
            why = {name: lacks(ask, name) for name in source.clients if name in self.unable}
            own = [name for name in why if not why[name]]
            self.unable = {name: why.get(name, past) for name, past in self.unable.items() if name not in own}
            if own:
                self.posted.append(source.ask(ask.kind, ask.arrays, ask.plan, clients=own, **options))

    def stream(self, ask: Ask, names: Sequence[str], missing: dict[str, Missing]) -> Iterator[Answer]:
        """The sources' answers, in the order of sums."""
        missing |= {name: Missing("cannot", why) for name, why in self.unable.items()}
        posted = self.posted  # that of the next question is another

        def merged() -> Iterator[Answer]:
            yield from heapq.merge(*(one.each() for one in posted), key=lambda one: key_of(one.client))
            for one in posted:
                missing.update(one.missing)

        return merged()
