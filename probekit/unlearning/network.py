"""Forgetting clients of a linearized network: FedRemoval, its best step length, gradient rounds, retraining.

The same loss, the same clients and the same steps as for heads; what differs is that the server's curvature
has no matrix: its rows' dual, or a subspace of them, is what inverts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.bounds import Convexity, Residual, gamma
from probekit.errors import InputError, SolverError
from probekit.federated.network import NetworkTrained
from probekit.federated.network_clients import Holders, Holding
from probekit.learning import Design, Solution
from probekit.linear.curvature import CurvatureSolver
from probekit.linear.kernel import batch_factors
from probekit.linear.network import Inputs, LinearizedRows
from probekit.linear.solvers import ConjugateGradient, Solver
from probekit.unlearning.retained import LocalClients, RetainedLoss

Params = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Retained:
    """The retained clients' holdings and loss, its gradient where the run stands, and the server's rows."""

    trained: NetworkTrained
    holdings: Mapping[str, Holding]
    loss: RetainedLoss
    gradient: Params
    server: LinearizedRows


@dataclass(frozen=True, eq=False)
class NetworkUnlearned:
    """The parameters without the forgotten, counted as the run counts them, and the retained gradient there.

    `rounds` with the retained clients; the gradient at the end is one of them, unless it is None.
    """

    params: Params
    method: str
    solution: Solution
    rounds: int
    gradient: Params | None = None
    loss_change: float | None = None
    note: str = ""


def retained(trained: NetworkTrained, forgotten: Sequence[str], holders: Holders) -> Retained:
    """What remains of a run; the kept gradients make the retained one: their mean by rows, the ridge included."""
    unknown = sorted(set(forgotten) - set(trained.counts))
    if unknown or not forgotten:
        known = ", ".join(trained.counts)
        raise InputError(f"Cannot forget {', '.join(unknown) or 'nobody'}: this run has clients {known}.")
    left = [name for name in trained.counts if name not in set(forgotten)]
    if not left:
        raise InputError("Cannot forget every client: nothing would remain to be trained on.")
    if holders.server is None:
        raise InputError("Forgetting needs rows of the server's own: partition with a server share, say 0.1.")
    if holders.centre != trained.centre:
        raise InputError(f"The run counts parameters from {trained.centre}, the rows given from {holders.centre}.")
    holdings = {name: holders.clients[name] for name in left}
    design = Design(trained.model.size, 1, intercept="none")
    loss = RetainedLoss(LocalClients(holdings, {}), design, trained.ridge)
    parts = [trained.counts[name] / loss.rows * trained.gradients.aggregate[name] for name in left]
    return Retained(trained, holdings, loss, np.asarray(sum(parts)), holders.server.rows)


@dataclass(frozen=True)
class NetworkRemoval:
    """The paper's step w - H_p^-1 g by a solver; `line` asks the clients for the best length of it."""

    solver: Solver = field(default_factory=CurvatureSolver)
    line: bool = False

    @property
    def name(self) -> str:
        """How it is asked for."""
        return "fedremoval-line" if self.line else "fedremoval"

    def unlearn(self, here: Retained) -> NetworkUnlearned:
        """The parameters after one step."""
        solution = self.solver.solve(here.server.curvature(here.trained.ridge), here.gradient)
        v, start = solution.value, here.trained.params
        if not self.line:
            return NetworkUnlearned(start - v, self.name, solution, 0)
        along, curvature = float((here.gradient * v).sum()), here.loss.curvature_form(v)
        length = along / curvature if curvature > 0 else 0.0
        note = f"The best step length along FedRemoval's direction is {length:.6g}; the paper takes 1."
        return NetworkUnlearned(start - length * v, self.name, solution, 1, loss_change=-length * along / 2, note=note)


@dataclass(frozen=True)
class NetworkRounds:
    """Conjugate gradients on the retained loss, one round per iteration, the server's inverse as preconditioner."""

    rounds: int = 10
    tolerance: float = 1e-8
    server: CurvatureSolver | None = field(default_factory=CurvatureSolver)
    name: str = "fedremoval-pcg"

    def unlearn(self, here: Retained) -> NetworkUnlearned:
        """The parameters after these rounds, and the true gradient there (one more round)."""
        asked = _Asked(here)
        inverse = None if self.server is None else self.server.inverse(here.server, here.trained.ridge)
        solver = ConjugateGradient(self.tolerance, self.rounds, inverse)
        try:
            solution = solver.solve(asked, here.gradient)
        except SolverError as error:
            if not isinstance(error.best, Solution):
                raise
            solution = error.best
        params = here.trained.params - solution.value
        gradient = here.loss.gradient(params)
        return NetworkUnlearned(params, self.name, solution, asked.rounds + 1, gradient)


def retrain(here: Retained, *, tolerance: float = 1e-8, rounds: int = 2000) -> NetworkUnlearned:
    """The minimum of the retained loss, found from w_p alone: what all others are measured by."""
    start = np.zeros_like(here.trained.params) if here.trained.centre == "wp" else here.trained.model.weights
    asked = _Asked(here)
    inverse = CurvatureSolver().inverse(here.server, here.trained.ridge)
    solution = ConjugateGradient(tolerance, rounds, inverse).solve(asked, here.loss.gradient(start))
    params = start - solution.value
    return NetworkUnlearned(params, "retrain", solution, asked.rounds + 2, here.loss.gradient(params))


class _Asked:
    """The retained curvature as the clients answer for it; a product is a round."""

    def __init__(self, here: Retained) -> None:
        self.holdings, self.loss, self.rounds = here.holdings, here.loss, 0

    def matvec(self, v: Params) -> Params:
        """The curvature applied."""
        self.rounds += 1
        found = self.loss.ridge * v
        for one in self.holdings.values():
            found = found + one.product(v) / self.loss.rows
        return np.asarray(found)

    def dense(self) -> Params | None:
        """Never formed."""
        return None


@dataclass(frozen=True)
class Distance:
    """How far parameters can be from the retained minimum: |gradient| / ridge, rounding included."""

    bound: float
    residual: Residual
    convexity: Convexity


def distance(here: Retained, params: Params) -> Distance:
    """The certificate's bound at these parameters: one gradient round. For the linearized network only.

    J^T (J w + offset - Y) / n rounds by at most gamma (|J|^2 |w| + |J| |offset - Y|) / n: J is taken as computed.
    """
    gradient, ridge, rows = here.loss.gradient(params), here.trained.ridge, here.loss.rows
    energy = aims = 0.0
    for one in here.holdings.values():
        energy += sum(float(np.trace(each, axis1=1, axis2=2).sum()) for each in row_blocks(one.rows))
        aims += float(np.square(one.rows.offset - one.targets).sum())
    unit = float(np.finfo(np.float32 if here.trained.model.dtype == torch.float32 else np.float64).eps) / 2
    factor = gamma(len(params) + max(here.loss.clients.counts.values()) + 64, unit)
    size, norm = float(np.linalg.norm(params)), float(np.linalg.norm(gradient))
    rounding = factor * (energy * size + math.sqrt(energy * aims)) / rows + gamma(8) * (norm + ridge * size)
    residual = Residual(norm, rounding, (norm,), (rounding,))
    return Distance(residual.bound / ridge, residual, Convexity(ridge, "ridge"))


def agreement(here: Retained, params: Params, inputs: Inputs, *, bound: float) -> NDArray[np.bool_]:
    """For which inputs retraining provably predicts the same class: |J_a - J_b| bound < margin for all others b."""
    rows = here.trained.model.over(inputs, centre=here.trained.centre)
    scores = rows.outputs(params)
    blocks = np.concatenate(list(row_blocks(rows)))
    first = scores.argmax(axis=1)
    place = np.arange(len(first))
    diagonal = np.einsum("nkk->nk", blocks)
    apart = diagonal + diagonal[place, first][:, None] - 2 * blocks[place, first]
    margins = scores[place, first][:, None] - scores
    sure = margins > np.sqrt(np.maximum(apart, 0)) * bound
    sure[place, first] = True
    return np.asarray(sure.all(axis=1))


def row_blocks(rows: LinearizedRows) -> list[Params]:
    """Each row's own k by k kernel J_x J_x^T, a batch at a time."""
    return [np.asarray(batch.blocks().double().cpu().numpy()) for batch in batch_factors(rows)]
