"""What a client of a head holds: rows of an embedding set, or what a server kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats
from probekit.linear.roots import client_statistics
from probekit.linear.squares import CurvedSquares, RowSquares, StatsSquares
from probekit.linear.statistics import columns_of
from probekit.models.problem import SetHolding
from probekit.values import Array, Indices

SUMS = frozenset({"statistics", "gradient", "product", "form", "scales", "importance"})


@dataclass(frozen=True, eq=False)
class RowHolding(SetHolding):
    """Rows of an embedding set."""

    offers: ClassVar[frozenset[str]] = SUMS | {"fit", "leave-out", "evaluate"}

    @cached_property
    def statistics(self) -> ClientStats:
        """Their statistics; a row that cannot be used is named by its sample id."""
        try:
            return client_statistics(self.picked, self.labels, self.problem.design)
        except InputError as error:
            for some in np.array_split(self.rows, -(-self.count // 4096)):
                for row in some[~np.isfinite(self.embeddings.embeddings[some]).all(axis=1)].tolist():
                    raise InputError(
                        f"Training needs finite embeddings; sample {self.embeddings.ids[row]} (row {row}) holds NaN or "
                        "infinity. Encode it again, or leave it out with EmbeddingSet.select."
                    ) from error
            raise

    def importance(self, params: Array) -> Array:
        """The Gram's diagonal, for every class."""
        return _for_all_classes(np.square(self.table, dtype=np.float64).sum(axis=0), self.problem.shape)

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

    def batch_gradient(self, params: Array, some: Indices, wanted: Array | None = None) -> Array:
        """The gradient of the mean of some rows' losses; `wanted` stands in for their labels."""
        columns, labels = self.table[some].astype(np.float64, copy=False), self.labels[some]
        residual = columns @ params
        if wanted is None:
            residual[np.arange(len(some)), labels] -= 1
        else:
            residual -= wanted
        return np.asarray(columns.T @ residual / len(some))


@dataclass(frozen=True, eq=False)
class StatisticsHolding:
    """What a server kept of a client."""

    offers: ClassVar[frozenset[str]] = SUMS

    problem: Any
    statistics: ClientStats

    @property
    def count(self) -> int:
        """How many rows they are of."""
        return self.statistics.count

    def importance(self, params: Array) -> Array:
        """The Gram's diagonal, for every class."""
        return _for_all_classes(np.diag(self.quick.stats.total_gram), self.problem.shape)

    def squares(self, precision: str = "float64") -> StatsSquares:
        """The squares, from sums."""
        return StatsSquares(self.statistics)

    @property
    def quick(self) -> StatsSquares:
        """The same."""
        return self.squares()


def _for_all_classes(diagonal: Array, shape: tuple[int, int]) -> Array:
    return np.array(np.broadcast_to(diagonal[:, None], shape))
