"""Clients in this process, every message as bytes: what a wire does, without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from probekit.federated.client import Holding, Limits, LocalData
from probekit.federated.federation import Ask, Outcome
from probekit.federated.transports.messages import Question, read_reply, respond
from probekit.objective import Model
from probekit.records import dump


@dataclass(frozen=True, eq=False)
class Loopback:
    """Clients that read and write bytes, with rows or with statistics only."""

    data: Mapping[str, LocalData]
    limits: Limits = field(default_factory=Limits)

    def describe(self) -> Mapping[str, Holding]:
        return {name: Holding.of(data) for name, data in self.data.items()}

    def carries(self, model: Model, ask: Ask) -> bool:
        return True

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        for ask in asks:
            question = dump(Question(model, ask.query))
            reply = respond(question, ask.client, self.data[ask.client], self.limits)
            yield ask, read_reply(reply, ask.shapes)
