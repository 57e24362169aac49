"""FedRemoval (the paper's algorithm 2): one step on the server, from its own rows and the retained gradient."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.federated.client import penalty
from probekit.federated.trained import Trained
from probekit.linear.design import Solution
from probekit.linear.solvers import Cholesky, ConjugateGradient, Solver
from probekit.registry import nearest
from probekit.unlearning.adam import F2L2, AdamSteps
from probekit.unlearning.method import NOTHING, Cost, Material, Unlearned
from probekit.unlearning.remainder import moved_head, trained_after
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.step import Plan, Ready, ready

SOLVERS: dict[str, Solver] = {
    "cholesky": Cholesky(tolerance=1e-4),
    "cg": ConjugateGradient(tolerance=1e-8, max_steps=10_000),
    "adam": AdamSteps(),
    "f2l2": F2L2,
}
OF_NETWORKS = ("dual", "pcg")
ONE_STEP = (
    "One step with the server's curvature; its distance to retraining is not known before the retained clients "
    "are asked. A further removal needs their gradients at this head, or one request for all, from the run before."
)
F2L2_NOTE = (
    "As the published code does it: a weight decay of 0.01 stands in for the run's ridge, the ridge is missing "
    "from the gradient, the start is random, and 400 Adam steps end wherever they are."
)

Params = NDArray[np.float64]


@dataclass(frozen=True)
class FedRemoval:
    """w - H_p^-1 g, by a solver: cholesky (closed form), cg, adam (the paper's iterative one), or f2l2.

    "f2l2" repeats the published code, its mistakes included: the ridge is replaced by Adam's weight decay of
    0.01 (so the curvature inverted is not that of the trained loss), the ridge's part of the gradient is
    left out, the start is random instead of 0, and what 400 steps reach is taken for the answer.
    """

    solver: str = "cholesky"
    needs: frozenset[str] = frozenset({"server set", "retained gradient"})

    def __post_init__(self) -> None:
        known = [*SOLVERS, *OF_NETWORKS]
        if self.solver not in known:
            raise NotFoundError(f"FedRemoval has no solver {self.solver!r}. {nearest(self.solver, known)}")

    @property
    def name(self) -> str:
        """How it is asked for."""
        return "fedremoval" if self.solver == "cholesky" else f"fedremoval:{self.solver}"

    def plan(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Plan:
        """What is known before the step: the server's effective dimension, and whether its rows suffice."""
        return ready(self, trained, request, material).plan

    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Unlearned:
        """The head after one step."""
        start = time.perf_counter()
        here = ready(self, trained, request, material)
        solution = self.direction(here)
        flops = here.flops(solution.steps, factored=solution.method in ("cholesky", "dual"))
        cost = replace(here.cost(0), flops=flops, seconds=time.perf_counter() - start)
        note = f"{ONE_STEP} {F2L2_NOTE}" if self.solver == "f2l2" else ONE_STEP
        return finished(
            self.name,
            trained,
            here,
            request=request,
            params=here.start - solution.value,
            solution=solution,
            cost=cost,
            note=note,
        )

    def direction(self, here: Ready) -> Solution:
        """v with H_p v = g."""
        gradient, loss = here.gradient, here.server_loss
        if self.solver == "f2l2":
            loss = here.loss_with(0.0)
            gradient = gradient - penalty(here.design, here.ridge) * here.start
        return _solver(self.solver, here).solve(loss.curvature(), gradient)


def load(argument: str) -> FedRemoval:
    """The method, for the registry: `fedremoval[:cholesky|cg|adam|f2l2]`."""
    return FedRemoval(argument or "cholesky")


def finished(
    name: str,
    trained: Trained,
    here: Ready,
    *,
    request: UnlearnRequest,
    params: Params,
    solution: Solution,
    cost: Cost,
    note: str,
) -> Unlearned:
    """The run at its new parameters, with what is still known there."""
    after = trained_after(
        trained,
        moved_head(trained, params, method=name, rows=here.rows),
        solution,
        counts=here.counts,
        method=name,
        cost=cost,
        statistics=here.statistics,
        server=here.server,
    )
    return Unlearned(after, request, name, solution, cost, note, here.plan.warnings)


def _solver(name: str, here: Ready) -> Solver:
    """The solver of this name for a matrix, or for a network's curvature."""
    if here.whole:
        from probekit.unlearning.network import solver_named

        return solver_named(name, watch=here.watch("solving"))
    if name in OF_NETWORKS:
        raise InputError(f"The solver {name} is for whole networks; a head has a matrix. Use {', '.join(SOLVERS)}.")
    return SOLVERS[name]
