"""Kept statistics answer for their clients where they can; live clients answer everything else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from probekit.federated.client import Holding
from probekit.federated.federation import Ask, InProcess, Outcome, Transport
from probekit.federated.queries import Gradient, Product, Query, Statistics, Weight
from probekit.linear.stats import SufficientStats
from probekit.objective import Model, Squares


@dataclass(frozen=True, eq=False)
class KeptFirst:
    """Clients of a head, by kept statistics or `live`; who has the former need not be online."""

    parts: Mapping[str, SufficientStats]
    live: Transport

    @cached_property
    def kept(self) -> InProcess:
        return InProcess(self.parts)

    @cached_property
    def _online(self) -> Collection[str]:
        return self.live.describe().keys()

    def describe(self) -> Mapping[str, Holding]:
        return {**self.kept.describe(), **self.live.describe()}

    def carries(self, model: Model, ask: Ask) -> bool:
        if ask.client not in self._online:
            return False
        return ask.client not in self.parts or not follows_from_statistics(model, ask.query)

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        """Neighbors in the order asked go out together, so that the order stays."""
        for live, group in groupby(asks, key=lambda ask: self.carries(model, ask)):
            transport = self.live if live else self.kept
            yield from transport.exchange(model, group)


def follows_from_statistics(model: Model, query: Query) -> bool:
    """Whether sums answer a query; gradients do so for squares only."""
    if isinstance(query, Gradient | Product):
        return isinstance(model.loss, Squares)
    return isinstance(query, Statistics | Weight)
