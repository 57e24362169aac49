"""Sums of clients' answers, added in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import EXACT_STACK, STACK_ROWS, RootStats, product
from probekit.linear.target_client import arrays_of
from probekit.linear.targets import TargetStats

AHEAD = 2
"""So many sums are read before they are added: memory for that many is taken."""


class Sum:
    """Arrays that others are added to, in place; the first is copied when a second comes.

    Roots are put aside, and some thousand of their rows at a time become one product, which is added. Statistics of
    real targets, which differ in their patterns, add themselves.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, float], count: int) -> None:
        self.arrays, self.values, self.count, self._own = dict(arrays), dict(values), count, False
        self._roots: list[RootStats] = []
        self._rows = 0
        self._targets: TargetStats | None = None

    @classmethod
    def of(cls, stats: ClientStats) -> Sum:
        """The statistics of one client, or a sum of several."""
        stats = stats.loaded
        if isinstance(stats, TargetStats):
            found = cls({}, {}, stats.count)
            found._targets = stats
            return found
        if isinstance(stats, RootStats):
            found = cls({}, {}, stats.count)
            found._stack(stats)
            return found
        return cls({"gram": stats.gram, "moment": stats.moment, "class_counts": stats.class_counts}, {}, stats.count)

    def add(self, other: Sum) -> None:
        """Add another sum."""
        if other._targets is not None:
            self._targets = other._targets if self._targets is None else self._targets + other._targets
            self.count += other.count
            return
        self._include(other.arrays, own=other._own)
        for root in other._roots:
            self._stack(root)
        self.values = {name: value + other.values[name] for name, value in self.values.items()}
        self.count += other.count

    def copy(self) -> Sum:
        """The same as it is now, with nothing put aside."""
        self.settle()
        if self._targets is not None:
            return Sum.of(self._targets)
        return Sum({name: np.array(array) for name, array in self.arrays.items()}, self.values, self.count)

    def settle(self) -> Sum:
        """The same, with nothing put aside."""
        if self._targets is not None:
            self._targets = self._targets.dense
            self.arrays = arrays_of(self._targets)
        if self._roots:
            roots, self._roots, self._rows = self._roots, [], 0
            self._include(product(roots), own=True)
        return self

    def _stack(self, root: RootStats) -> None:
        exact = root.design.arithmetic == "exact"
        if self._rows + len(root.root) > STACK_ROWS or (exact and len(self._roots) >= EXACT_STACK):
            self.settle()
        self._roots.append(root)
        self._rows += len(root.root)

    def _include(self, arrays: Mapping[str, NDArray[Any]], *, own: bool) -> None:
        if not self.arrays:
            self.arrays, self._own = dict(arrays), own
            return
        if arrays and not self._own:
            self.arrays = {name: np.array(array) for name, array in self.arrays.items()}
            self._own = True
        for name, array in arrays.items():
            self.arrays[name] += array

    def stats(self, design: Design) -> ClientStats:
        """The sum as statistics."""
        if self._targets is not None:
            return self._targets.dense
        sums: Any = self.settle().arrays
        return ClientStats(design, **sums)


def add_up(statistics: Iterable[ClientStats], design: Design) -> ClientStats:
    """The sum of statistics, added one after the other."""
    found = Sum.of(ClientStats.zero(design))
    for one in statistics:
        found.add(Sum.of(one))
    return found.stats(design)


@contextmanager
def read_ahead(parts: Iterable[ClientStats]) -> Iterator[Iterator[Sum]]:
    """The parts as sums, in order, some of them read and checked in a thread before they are asked for."""
    todo = iter(parts)
    with ThreadPoolExecutor(1) as pool:
        reading: deque[Future[Sum]] = deque(pool.submit(Sum.of, part) for part in islice(todo, AHEAD))

        def each() -> Iterator[Sum]:
            while reading:
                found = reading.popleft().result()
                reading.extend(pool.submit(Sum.of, part) for part in islice(todo, 1))
                yield found

        yield each()
