"""Training a network, linearized at w_p, across clients.

The loss of client c is (1 / 2 n_c) |offset_c + J_c params - Y_c|^2 + (ridge / 2) |params|^2, with the parameters
counted from w_p or from zero (`centre`). Either way training starts at w_p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, SolverError
from probekit.federated.fedavg import FedAvg, run_rounds
from probekit.federated.network_clients import Holders, NetworkClients
from probekit.federated.server import client_weights
from probekit.federated.trained import NUMBER_BYTES, Gradients, History, Progress, Reached, Traffic
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.linearize import Inputs, Linearized
from probekit.linear.design import Solution
from probekit.linear.solvers import ConjugateGradient, Operator
from probekit.values import frozen

Params = NDArray[np.float64]


@dataclass(frozen=True)
class FederatedCg:
    """Conjugate gradients across the clients: an iteration is a round, a direction down and a product up.

    The server's rows, where it has some, make the preconditioner. Ends at `tolerance` (the true relative residual)
    or with the rounds.
    """

    rounds: int = 200
    tolerance: float = 1e-6
    preconditioner: CurvatureSolver | None = field(default_factory=CurvatureSolver)


@dataclass(frozen=True, eq=False)
class NetworkTrained:
    """A trained linearized network with what the server kept. `params` and `gradients` are counted from `centre`.

    A gradient is that of a client's mean loss, the ridge's part included.
    """

    model: Linearized
    params: Params
    centre: str
    ridge: float
    classes: int
    method: str
    counts: Mapping[str, int]
    weights: Mapping[str, float]
    solution: Solution
    rounds: int
    gradients: Gradients
    learning_rate: float | None = None
    losses: tuple[float, ...] = ()
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    history: History | None = None

    def outputs(self, inputs: Inputs) -> Params:
        """The linearized network's scores, (n, k)."""
        return self.model.over(inputs, centre=self.centre, keep=False).outputs(self.params)


def train_holders(
    holders: Holders,
    *,
    ridge: float,
    method: FedAvg | FederatedCg | None = None,
    progress: Callable[[Progress], None] | None = None,
    start: Reached | None = None,
    save: Callable[[Reached], None] | None = None,
) -> NetworkTrained:
    """The linearized network of all clients' rows; the server's are not trained on.

    `save` is given where every round ended; `start` is such a place, to go on from.
    """
    if not 0 < ridge < np.inf:
        raise InputError(f"Training a linearized network needs a ridge above 0; found {ridge}.")
    chosen = FederatedCg() if method is None else method
    kept: dict[str, Any] = {}
    clients = NetworkClients(holders, ridge, chosen if isinstance(chosen, FedAvg) else FedAvg())
    if isinstance(chosen, FedAvg):
        if chosen.init != "zeros":
            raise InputError('A linearized network starts at w_p: init must be "zeros".')
        shape = (holders.model.size, 1)
        found = run_rounds(clients, chosen, shape=shape, progress=progress, start=start, save=save)
        moved, rounds, losses, name = found.params, found.done, found.losses, "fedavg"
        sent, weighting = found.uploaded, chosen.weights
        kept = {"learning_rate": found.learning_rate, "history": found.history}
    else:
        end = _conjugate(holders, clients, chosen, _Told(progress, save), start)
        moved, rounds = end.params, end.rounds
        losses, name, sent, weighting = (clients.loss(moved),), "federated-cg", rounds * len(clients.names), "size"
    trained = _trained(clients, moved, rounds=rounds, losses=losses, name=name, sent=sent, weighting=weighting)
    return replace(trained, **kept)


@dataclass(frozen=True, eq=False)
class CommonCurvature:
    """The curvature of all clients' loss together; a product is a round, and rounds are counted."""

    holders: Holders
    ridge: float
    rounds: list[int]

    def matvec(self, v: Params) -> Params:
        """Each client's product, weighted by its rows."""
        self.rounds[0] += 1
        total = sum(one.count for one in self.holders.clients.values())
        found = self.ridge * v
        for one in self.holders.clients.values():
            found = found + one.product(v) / total
        return np.asarray(found)

    def dense(self) -> Params | None:
        """Never formed."""
        return None


@dataclass(frozen=True)
class _Told:
    """Who is told of every round, and who keeps where it ended."""

    progress: Callable[[Progress], None] | None
    save: Callable[[Reached], None] | None


def _conjugate(
    holders: Holders, clients: NetworkClients, options: FederatedCg, told: _Told, start: Reached | None
) -> Reached:
    """The minimum, counted from w_p, and the rounds it took to know."""
    moved = np.zeros((holders.model.size, 1))
    gradient = clients.common_gradient(moved)
    rounds, scale, before = [1], float(np.linalg.norm(gradient)) or 1.0, 0
    if start is not None:
        moved, before = start.params, start.rounds
        gradient, rounds = clients.common_gradient(moved), [before + 2]
    left = float(np.linalg.norm(gradient))

    def watch(_: int, residual: float, away: Params) -> None:
        if told.progress is not None:
            total = max(options.rounds + 2, rounds[0])
            told.progress(Progress(rounds[0], total, residual=residual * left / scale))
        if told.save is not None:
            told.save(Reached(moved - away, rounds[0]))

    inverse: Operator | None = None
    if options.preconditioner is not None and holders.server is not None:
        inverse = options.preconditioner.shared_inverse(holders.server.rows, clients.ridge)
    curvature = CommonCurvature(holders, clients.ridge, rounds)
    wanted = options.tolerance * scale / left if left else 1.0
    solver = ConjugateGradient(wanted, max(options.rounds - before, 0), inverse, watch=watch)
    try:
        away = solver.solve(curvature, gradient)
    except SolverError as error:
        if not isinstance(error.best, Solution):
            raise
        away = error.best
    return Reached(moved - away.value, rounds[0])


def _trained(
    clients: NetworkClients,
    moved: Params,
    *,
    rounds: int,
    losses: tuple[float, ...],
    name: str,
    sent: int,
    weighting: str,
) -> NetworkTrained:
    """The outcome with every client's gradient there and how far it is from the minimum of the common loss."""
    holders = clients.holders
    at_end = clients.gradients(moved, np.arange(len(clients.names)))
    shares = client_weights(clients.counts, weighting)
    common = np.tensordot(client_weights(clients.counts), at_end, axes=1)
    first = float(np.linalg.norm(clients.common_gradient(np.zeros_like(moved))))
    residual = float(np.linalg.norm(common)) / first if first else 0.0
    params = moved + holders.start
    note = "The residual is the common loss's gradient over that at w_p."
    block = holders.model.size * NUMBER_BYTES
    number = len(clients.names)
    return NetworkTrained(
        model=holders.model,
        params=frozen(params),
        centre=holders.centre,
        ridge=clients.ridge,
        classes=holders.classes,
        method=name,
        counts=dict(zip(clients.names, clients.counts.tolist(), strict=True)),
        weights=dict(zip(clients.names, shares.tolist(), strict=True)),
        solution=Solution(params, residual, rounds, name, note),
        rounds=rounds,
        gradients=Gradients({one: frozen(each) for one, each in zip(clients.names, at_end, strict=True)}),
        losses=losses,
        traffic={
            "rounds": Traffic(up=sent * block, down=sent * block),
            "gradients at the end": Traffic(up=number * block, down=number * block),
        },
    )
