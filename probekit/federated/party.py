"""Clients that are elsewhere, before a problem is known: who they are, how many rows each has, their keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.values import EmbeddingSet, EncodingSpec

SOURCE = "rows of a federation's clients"


@dataclass(frozen=True)
class Description:
    """What a server knows of rows that it never sees.

    spec, dimension, class_names: how all of them were encoded, and what labels mean.
    counts: each client's rows. keys: the 32 bytes of the public keys of clients that have one.
    targets: "labels" or "real" where the rows have such instead of classes.
    """

    spec: EncodingSpec
    dimension: int
    class_names: tuple[str, ...]
    counts: Mapping[str, int]
    keys: Mapping[str, bytes] = field(default_factory=dict)
    targets: str = ""

    def __post_init__(self) -> None:
        if not self.class_names or self.dimension < 1:
            found = f"{len(self.class_names)} classes, dimension {self.dimension}"
            raise InputError(f"A federation says the names of its classes and its dimension; found {found}.")
        object.__setattr__(self, "counts", dict(sorted(self.counts.items())))

    @property
    def hollow(self) -> EmbeddingSet:
        """A set without rows that says of its rows what is said here."""
        nothing, width = np.empty((0, self.dimension), self.spec.dtype), len(self.class_names)
        targets = np.empty((0, width)) if self.targets else None
        about: dict[str, Any] = {"class_names": self.class_names, "source": SOURCE, "targets": targets}
        return EmbeddingSet(self.spec, nothing, np.empty(0, np.int64), (), **about)


class Party(Protocol):
    """Clients elsewhere that answer for any problem.

    name: what a run remembers, and by which the same clients are found again.
    clients: those named (None: all), ready to be asked about a problem. The same `job` asks the same questions again.
    With `at_least`, clients that cannot take part may be left out: `missing` of what comes back, where it has that,
    says who and why. `close`, where a party or what it gives has that, is called when nobody will ask any more.
    finish: the job is done, and nothing of it will be asked again.
    """

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> Description: ...
    def clients(
        self,
        problem: Any,
        *,
        job: str,
        names: Collection[str] | None = None,
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Federation: ...
    def finish(self, job: str) -> None: ...
