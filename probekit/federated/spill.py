"""Statistics that lie in a file until somebody looks at them: those of many clients do not fit into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial

from probekit.federated.message import Answer, Arrays
from probekit.linear.design import ClientStats, Design
from probekit.values import Array, Indices

MANY = 4096
"""From so many clients on their statistics are put into a file as they arrive."""


class LazyStats(ClientStats):
    """Statistics that are read whenever somebody asks for them."""

    def __init__(self, design: Design, count: int, digest: str, load: Callable[[], ClientStats]) -> None:
        vars(self).update(design=design, _count=count, _digest=digest, _load=load)

    @property
    def loaded(self) -> ClientStats:
        """The statistics."""
        return self._load()

    @property
    def count(self) -> int:
        """How many rows."""
        return self._count

    @property
    def digest(self) -> str:
        """As it was when they were written."""
        return self._digest

    def __add__(self, other: ClientStats) -> ClientStats:
        return self.loaded + other.loaded

    def __sub__(self, other: ClientStats) -> ClientStats:
        return self.loaded - other.loaded

    @property
    def dense(self) -> ClientStats:
        """The same as sums."""
        return self.loaded.dense

    @property
    def gram(self) -> Array:
        """X^T X."""
        return self.loaded.gram

    @property
    def moment(self) -> Array:
        """X^T Y."""
        return self.loaded.moment

    @property
    def class_counts(self) -> Indices:
        """The rows of each class."""
        return self.loaded.class_counts

    _count: int
    _digest: str
    _load: Callable[[], ClientStats]


class Spill:
    """Clients' statistics in a temporary file. make: gives statistics for the arrays of an answer."""

    def __init__(self, make: Callable[[Arrays], ClientStats]) -> None:
        self._make = make
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 open as long as a client's statistics are

    def __del__(self) -> None:
        self._file.close()

    def add(self, answer: Answer, stats: ClientStats) -> LazyStats:
        """Put an answer aside; gives its statistics, to be read again."""
        start, size = self._file.tell(), self._file.write(answer.encode())
        return LazyStats(stats.design, stats.count, stats.digest, partial(self._read, start, size))

    def _read(self, start: int, size: int) -> ClientStats:
        self._file.flush()
        return self._make(Answer.decode(os.pread(self._file.fileno(), size, start))[0].arrays)
