"""The clients that stay: what they are asked, and the retained loss that their answers make.

L(W) = sum over retained c of (n_c / n) (1 / 2 n_c) |X_c W - Y_c|^2 + (ridge / 2) |P W|^2: a client answers for
its rows, the ridge is added once, by whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.federated.client import Picked, penalty
from probekit.federated.trained import NUMBER_BYTES, Trained
from probekit.linear.design import ClientStats, Design
from probekit.linear.ridge import penalty_of
from probekit.linear.squares import RowSquares, Squares, StatsSquares
from probekit.linear.statistics import row_blocks
from probekit.models.heads import Head, NetworkHead
from probekit.values import EmbeddingSet

Params = NDArray[np.float64]


class RetainedClients(Protocol):
    """Clients that can be asked. Every answer is about a client's own rows and leaves the ridge out.

    `gradients`: of (1 / 2 n_c) |X_c W - Y_c|^2, one block of parameters each. `curvature_forms`: |X_c v|^2, one
    number each. `energies`: |X_c|^2, one number each, once; rounding errors are bounded by it, and by `aims`,
    |Y_c|^2 (a network's: what its offset lacks to the targets).
    """

    @property
    def counts(self) -> Mapping[str, int]: ...
    def gradients(self, params: Params) -> Mapping[str, Params]: ...
    def curvature_forms(self, v: Params) -> Mapping[str, float]: ...
    def energies(self) -> Mapping[str, float]: ...
    def aims(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, eq=False)
class LocalClients:
    """Clients in this process, each with its squares.

    `rough`: the same clients in the coarser numbers that they trained in, for rounds that are checked later.
    """

    squares: Mapping[str, Squares]
    sizes: Mapping[str, float]
    rough: LocalClients | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows each has."""
        return {name: one.count for name, one in self.squares.items()}

    def gradients(self, params: Params) -> Mapping[str, Params]:
        """Each client's gradient."""
        return {name: one.gradient(params) / one.count for name, one in self.squares.items()}

    def curvature_forms(self, v: Params) -> Mapping[str, float]:
        """Each client's |X v|^2."""
        return {name: float((v * one.product(v)).sum()) for name, one in self.squares.items()}

    def energies(self) -> Mapping[str, float]:
        """Each client's |X|^2."""
        return self.sizes

    def aims(self) -> Mapping[str, float]:
        """Each client's |Y|^2: one-hot rows have norm 1."""
        return {name: float(count) for name, count in self.counts.items()}


def from_statistics(statistics: Mapping[str, ClientStats]) -> LocalClients:
    """Clients that answer from their statistics."""
    return LocalClients(
        {name: StatsSquares(one) for name, one in statistics.items()},
        {name: float(np.trace(one.total_gram)) for name, one in statistics.items()},
    )


def from_rows(embeddings: EmbeddingSet, rows: Mapping[str, NDArray[np.int64]], design: Design) -> LocalClients:
    """Clients that answer from their rows, read a block at a time."""
    squares: dict[str, Squares] = {}
    sizes: dict[str, float] = {}
    for name, held in rows.items():
        picked = Picked(embeddings.embeddings, held)
        squares[name] = RowSquares(picked, embeddings.labels[held], design)
        ones = len(held) * (design.columns - design.dimension)
        found = (np.square(block, dtype=np.float64).sum() for _, block in row_blocks(picked, design))
        sizes[name] = float(sum(found)) + ones
    return LocalClients(squares, sizes)


def answering(
    head: Head, embeddings: EmbeddingSet, rows: Mapping[str, NDArray[np.int64]], design: Design
) -> LocalClients:
    """Clients that answer from their rows for the loss of a head, be it linear or a whole network."""
    if isinstance(head, NetworkHead):
        from probekit.unlearning.network import network_clients

        return network_clients(head, embeddings, rows)
    return from_rows(embeddings, rows, design)


def mean_ridge(trained: Trained, rows: int) -> float:
    """The run's ridge in mean scaling, for that many rows: a ridge in sum scaling weighs more on fewer."""
    return penalty_of(trained.ridge, trained.scaling, rows) / rows


@dataclass(frozen=True, eq=False)
class RetainedLoss:
    """The loss of the retained clients as the server can ask for it; `ridge` in mean scaling."""

    clients: RetainedClients
    design: Design
    ridge: float

    @property
    def rows(self) -> int:
        """How many rows all of them have."""
        return sum(self.clients.counts.values())

    @property
    def rough(self) -> RetainedLoss | None:
        """The same in coarser numbers, where the clients trained in such."""
        rough = self.clients.rough if isinstance(self.clients, LocalClients) else None
        return None if rough is None else replace(self, clients=rough)

    @property
    def block(self) -> int:
        """The bytes of one set of parameters, or of one gradient."""
        return self.design.columns * self.design.classes * NUMBER_BYTES

    def combined(self, gradients: Mapping[str, Params], params: Params) -> Params:
        """The gradient of the loss from the clients' own: weighted by rows, the ridge once."""
        counts, total = self.clients.counts, self.rows
        result = penalty(self.design, self.ridge) * params
        for name, gradient in gradients.items():
            result = result + counts[name] / total * gradient
        return result

    def gradient(self, params: Params) -> Params:
        """The gradient of the loss: one round."""
        return self.combined(self.clients.gradients(params), params)

    def curvature_form(self, v: Params) -> float:
        """<v, H v>: one number from each client."""
        squares = sum(self.clients.curvature_forms(v).values())
        return squares / self.rows + float((penalty(self.design, self.ridge) * v * v).sum())
