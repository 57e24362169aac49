"""What a client holds: rows, or statistics in their place. Queries are pure functions of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.linear.model import StatsObjective
from probekit.linear.stats import SufficientStats, check_training_rows
from probekit.objective import Model, Objective, RowsObjective, Squares

LocalData = EmbeddingSet | SufficientStats


@dataclass(frozen=True)
class Limits:
    """What a client agrees to.

    allowed: the names of the records that it answers, wherever in a query they stand; None: all.
    min_rows: it says nothing about fewer rows.
    work: steps times rows a step times parameters, of the local training in one question.
    """

    allowed: frozenset[str] | None = None
    min_rows: int = 1
    work: float = 1e14


@dataclass(frozen=True, eq=False)
class RowClient:
    name: str
    model: Model
    rows: EmbeddingSet
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if len(self.rows) < self.limits.min_rows:
            raise InputError(
                f"Client {self.name} answers about {self.limits.min_rows} rows or more; these are "
                f"{len(self.rows)}. Ask about more of them."
            )
        self.model.check_rows(self.name, self.rows.width, self.rows.outputs)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> float:
        return self.rows.weight

    @cached_property
    def objective(self) -> Objective:
        check_training_rows(self.rows)
        return RowsObjective.of(self.model, self.rows)

    @property
    def statistics(self) -> SufficientStats:
        return SufficientStats.from_rows(self.rows)


@dataclass(frozen=True, eq=False)
class StatisticsClient:
    """A client without rows: its statistics were kept by the server, or are in a file."""

    name: str
    model: Model
    statistics: SufficientStats
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.model.check_rows(self.name, self.statistics.columns - 1, self.statistics.targets)

    @property
    def count(self) -> int:
        return self.statistics.count

    @property
    def weight(self) -> float:
        return self.statistics.weight

    @property
    def rows(self) -> EmbeddingSet:
        raise InputError(
            f"Local training and single samples need rows; client {self.name} has statistics only. "
            "Use a closed-form method, or ask for a new statistics file."
        )

    @cached_property
    def objective(self) -> Objective:
        if not isinstance(self.model.loss, Squares):
            raise InputError(
                f"Statistics give the gradients of squares; this model has "
                f"{type(self.model.loss).__name__}. Bring client {self.name} online."
            )
        return StatsObjective(self.statistics)


ClientData = RowClient | StatisticsClient
"""A client as queries see it."""


def client_data(
    name: str, model: Model, data: LocalData, limits: Limits | None = None
) -> ClientData:
    """The client that holds these rows or these statistics."""
    if isinstance(data, SufficientStats):
        return StatisticsClient(name, model, data, limits or Limits())
    return RowClient(name, model, data, limits or Limits())


@dataclass(frozen=True)
class Holding:
    """What a client says of its data at the start: how many rows, and whether it has them."""

    count: int
    has_rows: bool = True

    @classmethod
    def of(cls, data: LocalData) -> Self:
        if isinstance(data, SufficientStats):
            return cls(data.count, has_rows=False)
        return cls(len(data))
