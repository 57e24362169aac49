"""Clients that live in this process, and clients known by what a server kept of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MissingClientsError
from probekit.federated.client import answer
from probekit.federated.federation import Answers, Federation, Missing, Traffic, collect
from probekit.federated.message import OWN, Answer, Ask, Selection
from probekit.values import EmbeddingSet, Json

Array = NDArray[np.float64]


class Asked:
    """What every federation shares: a question is made, clients are gone through, bytes are counted."""

    problem: Any
    local: bool = False
    sent: Traffic = Traffic()

    @property
    def traffic(self) -> Traffic:
        """What passed so far."""
        return self.sent

    @property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        raise NotImplementedError

    @property
    def clients(self) -> tuple[str, ...]:
        """Who they are."""
        return tuple(self.counts)

    def reply(self, ask: Ask, name: str) -> Answer:
        """One client's answer."""
        raise NotImplementedError

    def ask(
        self,
        kind: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        plan: Mapping[str, Json] | None = None,
        *,
        clients: Collection[str] | None = None,
        rows: Selection = OWN,
        precision: str = "float64",
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Answers:
        """The answers of these clients (None: all) to a question."""
        names = self.clients if clients is None else tuple(clients)
        unknown = [name for name in names if name not in self.counts]
        missing = {name: Missing("gone", "there is no such client.") for name in unknown}
        ask = Ask(kind, dict(arrays or {}), dict(plan or {}), rows=rows, precision=precision)
        asked = [name for name in names if name not in missing]
        self.sent += Traffic(rounds=not self.local)

        def record(up: int, down: int) -> None:
            if not self.local:
                self.sent += Traffic(up, down)

        return Answers(
            collect(ask, asked, self.reply, missing, record=record),
            columns=self.problem.shape[0],
            missing=missing,
            counts={name: self.counts[name] for name in asked} if rows == OWN else None,
            at_least=at_least,
        )


@dataclass(eq=False)
class InProcess(Asked):
    """Clients with holdings of their own; what each remembers is kept here between questions."""

    problem: Any
    holdings: Mapping[str, Any]
    memories: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    local: bool = False
    """Whether this is what a server has itself, so that asking sends nothing."""

    @classmethod
    def of(cls, problem: Any, embeddings: EmbeddingSet, rows: Mapping[str, NDArray[np.int64]]) -> InProcess:
        """Clients that hold these rows of a set."""
        total = max(1, sum(len(own) for own in rows.values()))
        return cls(
            problem,
            {name: problem.hold(embeddings, own, share=len(own) / total, name=name) for name, own in rows.items()},
        )

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return {name: one.count for name, one in self.holdings.items()}

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether all of them can answer."""
        return bool(self.holdings) and all(kind in one.offers for one in self.holdings.values())

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

    @property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return self.sizes

    def offers(self, kind: str, how: str = "each") -> bool:
        """A gradient, at the point where it was kept."""
        return kind == "gradient" and bool(self.gradients)

    def reply(self, ask: Ask, name: str) -> Answer:
        """The kept gradient, as a sum over the client's rows."""
        same = ask.precision == "float64" and ask.rows == OWN and not ask.plan
        if ask.kind != "gradient" or not same or not np.array_equal(ask.arrays["params"], self.params):
            raise MissingClientsError("only its gradient at the head was kept.")
        return Answer(name, self.sizes[name], {"gradient": self.sizes[name] * self.gradients[name]})


@dataclass(eq=False)
class FirstOf(Asked):
    """Several sources for the same clients: each client answers from the first that can."""

    problem: Any
    sources: Sequence[Federation]
    sizes: Mapping[str, int]
    remote: set[int] = field(default_factory=set)
    relayed: int = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """Each client's rows."""
        return self.sizes

    @property
    def traffic(self) -> Traffic:
        """What the sources sent; a round is a question that somebody had to be sent."""
        found = sum((one.traffic for one in self.sources), Traffic())
        return found + Traffic(rounds=len(self.remote) - self.relayed)

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether every client has a source that can answer."""
        able = {name for one in self.sources if one.offers(kind, how) for name in one.clients}
        return bool(self.sizes) and able >= set(self.sizes)

    def reply(self, ask: Ask, name: str) -> Answer:
        """From the first source that has an answer."""
        why = "nobody answers for it."
        for one in self.sources:
            if name not in one.clients or not one.offers(ask.kind):
                continue
            before = one.traffic
            found = one.ask(
                ask.kind, ask.arrays, ask.plan, clients=(name,), rows=ask.rows, precision=ask.precision, at_least=0
            )
            answers, sent = list(found.each()), one.traffic - before
            self.relayed += sent.rounds
            if answers:
                if sent.up:
                    self.remote.add(self.sent.rounds)
                return answers[0]
            why = found.missing[name].why
        raise MissingClientsError(why)


def only(federation: InProcess, names: Collection[str]) -> InProcess:
    """The same with these clients alone."""
    unknown = [name for name in names if name not in federation.holdings]
    if unknown:
        raise InputError(f"There is no client {unknown[0]} in this federation.")
    return InProcess(federation.problem, {name: federation.holdings[name] for name in names}, federation.memories)
