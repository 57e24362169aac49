"""The step that FedRemoval and its relatives share: the server's curvature against the retained gradient.

Forgetting is Newton's step on the retained loss, v = H^-1 g(w), with the curvature of the server's own rows,
H_p = G_p / n_p + ridge P, in place of H (the paper's algorithm 2). Its error is -H_p^-1 (G/n - G_p/n_p) (w - w*):
small only where the server's rows are many against the effective dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.client import penalty
from probekit.federated.trained import ServerSet, Trained, Watch, unwatched
from probekit.linear.design import ClientStats, Design
from probekit.linear.loss import RidgeLoss
from probekit.linear.solvers import Inverse, Operator
from probekit.linear.spectrum import rows_effective_dimension
from probekit.linear.squares import Squares, StatsSquares
from probekit.models.heads import NetworkHead
from probekit.unlearning.method import Cost, Material, Unlearner, require
from probekit.unlearning.remainder import remaining_rows, remaining_server, remaining_statistics
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.retained import (
    RetainedClients,
    RetainedLoss,
    answering,
    from_statistics,
    mean_ridge,
)
from probekit.values import EmbeddingSet

ENOUGH = 4.0
"""Server rows per effective dimension from which one step may be trusted to help (math: E3's rule)."""

Params = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """What is known before a step is taken."""

    server_rows: int
    effective_dimension: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ready:
    """All that a step needs: where it starts, the retained gradient there, the server's loss, who can be asked.

    `asked` tells whether the gradient took a round of its own. `statistics` are the retained clients', if kept. `watch`
    is told of rounds and steps.
    """

    start: Params
    gradient: Params
    counts: dict[str, int]
    ridge: float
    design: Design
    server: ServerSet
    squares: Squares
    plan: Plan
    loss: RetainedLoss | None = None
    statistics: dict[str, ClientStats] | None = None
    asked: bool = False
    watch: Watch = unwatched

    @property
    def rows(self) -> int:
        """How many rows are retained."""
        return sum(self.counts.values())

    @property
    def server_loss(self) -> RidgeLoss:
        """The ridge loss of the server's own rows, whose curvature stands in for the retained one."""
        return self.loss_with(self.ridge)

    def loss_with(self, ridge: float) -> RidgeLoss:
        """The same with another ridge."""
        return RidgeLoss(self.squares, ridge, free=int(self.design.intercept == "free"))

    @property
    def whole(self) -> bool:
        """Whether this is a whole network, whose curvature has no matrix."""
        return self.server.statistics is None

    def flops(self, products: int, *, factored: bool = True) -> int:
        """Of factoring the server's curvature, or its dual, and of so many products or solves with it."""
        d, k = self.design.columns, self.design.classes
        if not self.whole:
            return factored * d**3 // 3 + 2 * d * d * k * products
        from probekit.unlearning.network import factoring

        return factored * factoring(self.squares) + 8 * products * d * self.squares.count

    def inverse(self) -> Operator:
        """The server's curvature inverted, exactly or nearly: a preconditioner."""
        if self.whole:
            from probekit.unlearning.network import server_inverse

            return server_inverse(self.squares, self.ridge)
        matrix = self.server_loss.curvature().dense()
        assert matrix is not None
        return Inverse.of(matrix)

    @property
    def online(self) -> bool:
        """Whether asking the clients means sending: they do not answer from kept statistics."""
        return self.statistics is None

    def cost(self, rounds: int, *, scalars: int = 0) -> Cost:
        """The traffic of some gradient rounds, and of rounds with a direction down and one number up."""
        block, clients = self.design.columns * self.design.classes * 8, len(self.counts)
        if not self.online:
            return Cost()
        every = rounds + int(self.asked)
        return Cost(
            up=clients * (every * block + scalars * 8),
            down=clients * (every + scalars) * block,
            rounds=every + scalars,
        )


def ready(unlearner: Unlearner, trained: Trained, request: UnlearnRequest, material: Material) -> Ready:
    """The retained gradient at the head and what else is there, or a sentence that says what is missing."""
    require(unlearner, trained, material)
    ability = trained.can_unlearn()["fedremoval"]
    if not ability.possible and trained.server is not None and (trained.gradients or trained.statistics):
        raise InputError(f"Cannot unlearn by {unlearner.name}: {ability.why} Use exact or retrain.")
    clients, statistics, server, embeddings = _clients(trained, request, material)
    if server is None:
        raise InputError(
            f"Cannot unlearn by {unlearner.name}: no row of the server's own remains. Use exact or retrain."
        )
    squares = _squares(trained, server, embeddings)
    asked = statistics is None
    if clients is not None:
        counts = dict(clients.counts)
        ridge = mean_ridge(trained, sum(counts.values()))
        loss = RetainedLoss(clients, trained.design, ridge)
        kept = _kept(trained, request, ridge) if asked else None
        gradient = loss.gradient(trained.params) if kept is None else kept
        asked = asked and kept is None
    else:
        counts = {name: trained.counts[name] for name in request.remaining(trained)}
        ridge = mean_ridge(trained, sum(counts.values()))
        found, loss, asked = _kept(trained, request, ridge), None, False
        if found is None:
            raise InputError(
                f"Cannot unlearn single samples by {unlearner.name} from kept gradients: they are of whole "
                "clients. Give the cached rows, or the clients online."
            )
        gradient = found
    plan = plan_for(server.statistics, ridge) if server.statistics is not None else _network_plan(squares, ridge)
    return Ready(
        trained.params,
        gradient,
        counts,
        ridge,
        trained.design,
        server,
        squares,
        plan,
        loss,
        statistics,
        asked,
        material.watch,
    )


def _squares(trained: Trained, server: ServerSet, embeddings: EmbeddingSet | None) -> Squares:
    """The squares of the server's rows: from their statistics or, of a network, from the rows themselves."""
    if server.statistics is not None:
        return StatsSquares(server.statistics)
    if embeddings is None or not isinstance(trained.head, NetworkHead):
        raise InputError(
            "The curvature of a whole network needs the server's own rows. Give the embedding set and the partition."
        )
    from probekit.unlearning.network import server_squares

    return server_squares(trained.head, embeddings, server.rows)


def _network_plan(squares: Squares, ridge: float) -> Plan:
    """What a network's server set is worth: its effective dimension if it can be computed, else its rank."""
    from probekit.unlearning.network import effective_dimension as of_kernel
    from probekit.unlearning.network import rank_at_most

    dimension, rank, size = of_kernel(squares, ridge), rank_at_most(squares), squares.shape[0]
    warnings = []
    if dimension is not None and squares.count < ENOUGH * dimension:
        warnings.append(_too_few(squares.count, dimension, "fedremoval-pcg:ROUNDS comes as near as wanted"))
    elif rank < size:
        warnings.append(
            f"The server's {squares.count} rows see at most {rank} of the network's {size} directions; in all others "
            "the step takes the ridge for the curvature, and may leave the network further from retraining than it "
            "was. fedremoval-line never raises the retained loss, fedremoval-pcg:ROUNDS comes as near as wanted."
        )
    return Plan(squares.count, dimension, tuple(warnings))


def plan_for(server: ClientStats, ridge: float) -> Plan:
    """Whether the server's rows are enough for a step, told before it is taken; `ridge` in mean scaling."""
    dimension = rows_effective_dimension(server, ridge)
    few = server.count < ENOUGH * dimension
    return Plan(server.count, dimension, (_too_few(server.count, dimension),) if few else ())


def _too_few(rows: int, dimension: float, remedy: str = "exact has no such limit") -> str:
    return (
        f"The server's {rows} rows are fewer than {ENOUGH:g} times their effective dimension "
        f"{dimension:.1f}: a single step with their curvature may leave the head further from retraining "
        f"than it was. Use at least {round(ENOUGH * dimension)} rows or a larger ridge; fedremoval-line "
        f"never raises the retained loss, {remedy}."
    )


def _clients(
    trained: Trained, request: UnlearnRequest, material: Material
) -> tuple[RetainedClients | None, dict[str, ClientStats] | None, ServerSet | None, EmbeddingSet | None]:
    """Who answers for the retained rows (clients online, kept statistics, cached rows, or nobody), the server's rows,
    and the set that they are numbers in."""
    left = request.remaining(trained)
    if material.clients is not None:
        if set(material.clients.counts) != set(left):
            raise MismatchError(
                f"The clients that answer are {', '.join(sorted(material.clients.counts))}; those retained are "
                f"{', '.join(sorted(left))}. Ask the retained ones."
            )
        return material.clients, None, trained.server, material.embeddings
    if trained.statistics is not None:
        parts, server = remaining_statistics(trained, request, material)
        return from_statistics(parts), parts, server, None
    if material.embeddings is not None and material.partition is not None:
        rest = remaining_rows(trained, request, material)
        clients = answering(trained.head, rest.embeddings, rest.partition.clients, trained.design)
        return clients, None, remaining_server(trained, rest), rest.embeddings
    return None, None, trained.server, None


def _kept(trained: Trained, request: UnlearnRequest, ridge: float) -> Params | None:
    """The retained gradient from the kept ones of whole clients: their mean by rows, the ridge exactly once.

    Each kept gradient has the ridge of the run before; with a ridge in sum scaling the one after is larger.
    """
    if trained.gradients is None or request.by_row or request.added:
        return None
    left = request.remaining(trained)
    rows = sum(trained.counts[name] for name in left)
    before = mean_ridge(trained, sum(trained.counts.values()))
    result = penalty(trained.design, ridge - before) * trained.params
    for name in left:
        result = result + trained.counts[name] / rows * trained.gradients.aggregate[name]
    return result
