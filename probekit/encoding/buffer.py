"""Rows on their way to a store, saved often enough that an interruption loses little."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.protocols import Store
from probekit.values import EncodingSpec


class Buffer:
    """Rows on their way to the store: a piece is saved when it is large or old enough."""

    def __init__(self, store: Store, spec: EncodingSpec, *, rows: int, seconds: float) -> None:
        self.store, self.spec, self.most_rows, self.most_seconds = store, spec, rows, seconds
        self.ids: list[str] = []
        self.rows: list[NDArray[Any]] = []
        self.since = time.monotonic()

    def add(self, ids: Sequence[str], rows: NDArray[Any]) -> None:
        """Take rows in, and save when it is time."""
        self.ids += ids
        self.rows.append(rows)
        if len(self.ids) >= self.most_rows or time.monotonic() - self.since >= self.most_seconds:
            self.flush()

    def flush(self) -> None:
        """Save what is here."""
        if self.ids:
            ids, rows = self.ids, np.concatenate(self.rows)
            self.ids, self.rows = [], []
            self.store.save(self.spec, ids, rows)
        self.since = time.monotonic()
