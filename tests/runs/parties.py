"""Clients elsewhere, played in this process: a party over a set and who holds which of its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import Pending
from probekit.federated.federation import Missing
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask
from probekit.federated.party import Description
from probekit.values import EmbeddingSet, target_kind

Faults = dict[tuple[str, int], Missing | Answer | Exception]
"""What a client does instead of answering a question, by its name and the question's number."""


@dataclass(eq=False)
class Faulty(InProcess):
    """Clients in this process that fail where they are told to."""

    faults: Faults = field(default_factory=dict)
    log: list[tuple[str, int, str, str]] = field(default_factory=list)

    def reply(self, ask: Ask, name: str) -> Any:
        """The answer, or the fault that is planned."""
        self.log.append((self.job, ask.number, ask.kind, name))
        found = self.faults.get((name, ask.number))
        if isinstance(found, Exception):
            raise found
        return super().reply(ask, name) if found is None else found


@dataclass(eq=False)
class PlayedParty:
    """A party whose clients hold rows of a set by its column of clients."""

    embeddings: EmbeddingSet
    name: str = "played"
    keys: Mapping[str, bytes] = field(default_factory=dict)
    faults: Faults = field(default_factory=dict)
    log: list[tuple[str, int, str, str]] = field(default_factory=list)
    absent: Mapping[str, Missing] = field(default_factory=dict)
    awaited: int | None = None
    """The number of the question that has no answers yet."""
    finished: list[str] = field(default_factory=list)

    @property
    def rows(self) -> dict[str, NDArray[np.int64]]:
        """Whose the rows are."""
        owners = np.asarray(self.embeddings.clients)
        return {str(name): np.flatnonzero(owners == name) for name in reversed(np.unique(owners))}

    @property
    def description(self) -> Description:
        """What a server may know."""
        found, counts = self.embeddings, {name: len(own) for name, own in self.rows.items()}
        targets = "" if found.targets is None else target_kind(found.targets)
        return Description(found.spec, found.dimension, found.class_names, counts, self.keys, targets)

    def clients(
        self,
        problem: Any,
        *,
        job: str,
        names: Collection[str] | None = None,
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Faulty:
        """Those named, in this process."""
        there = {name: own for name, own in self.rows.items() if names is None or name in names}
        made = Faulty.of(problem, self.embeddings, there)
        found = Faulty(problem, made.holdings, job=job, faults=dict(self.faults), log=self.log)
        if self.awaited is not None:
            late = Pending(f"Question {self.awaited} waits for b.", ("b",))
            found.faults |= {(name, self.awaited): late for name in there}
        if self.absent:
            found.missing = dict(self.absent)  # type: ignore[attr-defined]
        return found

    def finish(self, job: str) -> None:
        """Note that it is done."""
        self.finished.append(job)
