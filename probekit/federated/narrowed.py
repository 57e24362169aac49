"""Clients elsewhere, some of which leave samples out of every answer: those that are to be forgotten, or were."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.federation import Answers, Federation, Missing, Traffic
from probekit.federated.message import OWN, Answer, Arrays, Selection
from probekit.federated.summation import key_of
from probekit.values import Json


@dataclass(eq=False)
class Narrowed:
    """The same clients; those in `without` answer for all their rows but these samples.

    How many rows that leaves only they know: a first question of this `kind` and these `arrays` tells, and its answers
    are given again where the same is asked.
    """

    inner: Federation
    without: Mapping[str, frozenset[str]]
    kind: str
    arrays: Arrays

    @cached_property
    def known(self) -> dict[str, Answer]:
        """What the clients in `without` said first."""
        return {one.client: one for one in self._asked(self.kind, self.arrays, {}, list(self.without), {}).each()}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The rows that each answers for."""
        own = dict(self.inner.counts)
        return own | {name: one.count for name, one in self.known.items() if name in own}

    @property
    def clients(self) -> tuple[str, ...]:
        """Who they are."""
        return self.inner.clients

    @property
    def traffic(self) -> Traffic:
        """What passed so far."""
        return self.inner.traffic

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether they can answer."""
        return self.inner.offers(kind, how)

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
        """The answers of these clients (None: all)."""
        if rows != OWN:
            raise InputError("These clients leave rows out already: ask them for all that they answer for.")
        names = list(self.clients if clients is None else clients)
        how: dict[str, Any] = {"precision": precision, "timeout": timeout}
        said: list[Answer] = []
        if precision == "float64" and not plan and self._first(kind, arrays or {}):
            said = [self.known[name] for name in sorted(names, key=key_of) if name in self.known]
            names = [name for name in names if name not in self.known]
        found = self._asked(kind, arrays, plan, names, {**how, "at_least": None if at_least is None else 0})
        stream = heapq.merge(said, found.each(), key=lambda one: key_of(one.client))
        return Answers(stream, found.columns, found.missing, None, at_least or 0, found.stats)

    def _first(self, kind: str, arrays: Arrays) -> bool:
        """Whether this is the question that was asked first."""
        same = kind == self.kind and arrays.keys() == self.arrays.keys() and bool(self.without)
        return same and all(np.array_equal(arrays[name], self.arrays[name]) for name in arrays)

    def _asked(self, kind: str, arrays: Any, plan: Any, names: list[str], how: Mapping[str, Any]) -> Answers:
        """One question for every selection of rows."""
        groups: dict[Selection, list[str]] = {}
        for name in names:
            left = self.without.get(name)
            groups.setdefault(OWN if left is None else Selection("all-but", left), []).append(name)
        parts = [self.inner.ask(kind, arrays, plan, clients=own, rows=rows, **how) for rows, own in groups.items()]
        if len(parts) == 1:
            return parts[0]
        missing: dict[str, Missing] = {}

        def merged() -> Iterator[Answer]:
            yield from heapq.merge(*(one.each() for one in parts), key=lambda one: key_of(one.client))
            for one in parts:
                missing.update(one.missing)

        problem = parts[0] if parts else self.inner.ask(kind, arrays, plan, clients=(), at_least=0)
        return Answers(merged(), problem.columns, missing, None, 0, problem.stats)
