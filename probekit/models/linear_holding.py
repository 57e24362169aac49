"""What a client of a head holds: rows of an embedding set, or what a server kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats
from probekit.linear.rows import Picked
from probekit.linear.squares import CurvedSquares, RowSquares, StatsSquares
from probekit.linear.statistics import columns_of, statistics
from probekit.values import EmbeddingSet, Indices

ROWS = frozenset({"statistics", "gradient", "product", "form", "scales", "fit", "leave-out", "evaluate"})
SUMS = frozenset({"statistics", "gradient", "product", "form", "scales"})


@dataclass(frozen=True, eq=False)
class RowHolding:
    """Rows of an embedding set."""

    problem: Any
    embeddings: EmbeddingSet
    rows: Indices

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def offers(self) -> frozenset[str]:
        """Everything."""
        return ROWS

    @property
    def picked(self) -> Picked:
        """The embeddings, read when asked for."""
        return Picked(self.embeddings.embeddings, self.rows)

    @cached_property
    def labels(self) -> Indices:
        """The class of each row."""
        return self.embeddings.labels[self.rows]

    @cached_property
    def ids(self) -> list[str]:
        """The sample id of each row."""
        return [self.embeddings.ids[row] for row in self.rows.tolist()]

    @cached_property
    def statistics(self) -> ClientStats:
        """Their statistics; a row that cannot be used is named by its sample id."""
        try:
            return statistics(self.picked, self.labels, self.problem.design)
        except InputError as error:
            for start in range(0, len(self.rows), 4096):
                some = self.rows[start : start + 4096]
                bad = ~np.isfinite(self.embeddings.embeddings[some]).all(axis=1)
                if bad.any():
                    row = int(some[np.argmax(bad)])
                    raise InputError(
                        f"Training needs finite embeddings; sample {self.embeddings.ids[row]} (row {row}) holds NaN or "
                        "infinity. Encode it again, or leave it out with EmbeddingSet.select."
                    ) from error
            raise

    def squares(self, precision: str = "float64") -> RowSquares:
        """The squares, from the rows a block at a time."""
        return RowSquares(self.picked, self.labels, self.problem.design)

    @property
    def quick(self) -> CurvedSquares:
        """The squares for many products: from statistics, unless the rows are so few that they are cheaper."""
        return StatsSquares(self.statistics) if 2 * self.count > self.problem.design.columns else self.squares()

    @cached_property
    def table(self) -> NDArray[Any]:
        """The rows as the design sees them, column of ones included, in memory."""
        design, source = self.problem.design, self.embeddings.embeddings
        plain = design.view == "raw" and not design.grid and source.dtype != np.float64
        dtype = np.float32 if plain or design.arithmetic == "fast" else np.float64
        return columns_of(self.picked, design, dtype)


@dataclass(frozen=True, eq=False)
class StatisticsHolding:
    """What a server kept of a client."""

    problem: Any
    statistics: ClientStats

    @property
    def count(self) -> int:
        """How many rows they are of."""
        return self.statistics.count

    @property
    def offers(self) -> frozenset[str]:
        """What sums can answer."""
        return SUMS

    def squares(self, precision: str = "float64") -> StatsSquares:
        """The squares, from sums."""
        return StatsSquares(self.statistics)

    @property
    def quick(self) -> StatsSquares:
        """The same."""
        return self.squares()
