"""The rows that a training is about, wherever they are, and the clients that hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.federated.attendance import Attendance
from probekit.federated.federation import Missing
from probekit.federated.party import Party
from probekit.runs.federation import federation_of
from probekit.runs.options import TrainOptions
from probekit.values import EmbeddingSet, Partition


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows of the cache and who holds them or, with a party, the server's own rows: those of its clients lie elsewhere.

    job: what the work with the party is called. engine: what asks clients whose rows are in the cache, or this process.
    """

    embeddings: EmbeddingSet
    partition: Partition
    store: DiskStore
    party: Party | None = None
    job: str = ""
    engine: str | None = None

    def settled(self, problem: Any) -> Any:
        """The problem as all rows have it."""
        if self.party is None or not (targets := self.party.description.targets):
            return problem
        return replace(problem, design=replace(problem.design, targets=targets))

    def clients(self, problem: Any, options: TrainOptions) -> Any:
        """The clients, ready to be asked."""
        if self.party is None:
            return federation_of(problem, self.embeddings, self.partition, engine=self.engine, store=self.store)
        counts = self.party.description.counts
        asked: Any = {"at_least": options.at_least, "timeout": options.timeout}
        empty = {name: Missing("cannot", "it has no rows.") for name, rows in counts.items() if not rows}
        if empty and options.at_least is None:
            raise InputError(f"Every client needs a row; client {min(empty)} has none. Leave it out, or `at_least`.")
        found = Attendance.of(self.party, problem, counts, job=self.job, **asked)
        found.leave(empty, quietly=True)
        return found

    def finish(self) -> None:
        """The run is written: what it took of the clients is not needed any more."""
        if self.party is not None:
            self.party.finish(self.job)
