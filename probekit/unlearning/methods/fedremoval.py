"""FedRemoval (the paper's algorithm 2): one step on the server, from its own rows and the retained gradient.

Forgetting is Newton's step on the retained loss, v = H^-1 g(w), with the curvature of the server's own rows,
H_p = G_p / n_p + ridge P, in place of H. Its error is -H_p^-1 (G/n - G_p/n_p) (w - w*): small only where the server's
rows are many against the effective dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import Solution
from probekit.linear.squares import Curvature
from probekit.protocols import Progress
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal

ENOUGH = 4.0
"""Server rows per effective dimension from which one step may be trusted to help (math: E3's rule)."""
ONE_STEP = (
    "One step with the server's curvature; its distance to retraining is not known before the retained clients "
    "are asked. A further removal needs their gradients at this head, or one request for all, from the run before."
)
F2L2_NOTE = (
    "As the published code does it: a weight decay of 0.01 stands in for the run's ridge, the ridge is missing "
    "from the gradient, the start is random, and {} Adam steps end wherever they are."
)
FACTORED = ("cholesky", "dual")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ServerPlan:
    """What is known of the server's rows before a step is taken."""

    server_rows: int
    effective_dimension: float | None
    warnings: tuple[str, ...]


def server_plan(removal: Removal) -> ServerPlan:
    """Whether the server's rows are enough for a step with their curvature."""
    squares = removal.server.squares()
    dimension, size = squares.effective_dimension(removal.ridge), squares.shape[0]
    warnings = []
    if dimension is not None and squares.count < ENOUGH * dimension:
        exact = "statistics" in removal.problem.traits
        remedy = "exact has no such limit" if exact else "fedremoval-pcg:ROUNDS comes as near as wanted"
        warnings.append(
            f"The server's {squares.count} rows are fewer than {ENOUGH:g} times their effective dimension "
            f"{dimension:.1f}: a single step with their curvature may leave the head further from retraining "
            f"than it was. Use at least {round(ENOUGH * dimension)} rows or a larger ridge; fedremoval-line "
            f"never raises the retained loss, {remedy}."
        )
    elif dimension is None and squares.rank < size:
        warnings.append(
            f"The server's {squares.count} rows see at most {squares.rank} of the network's {size} directions; in all "
            "others the step takes the ridge for the curvature, and may leave the network further from retraining than "
            "it was. fedremoval-line never raises the retained loss, fedremoval-pcg:ROUNDS comes as near as wanted."
        )
    return ServerPlan(squares.count, dimension, tuple(warnings))


@dataclass(frozen=True)
class FedRemoval:
    """w - H_p^-1 g, by a solver: cholesky (closed form), cg, adam (the paper's iterative one), f2l2 or f2l2-mnist.

    "f2l2" repeats the published code, its mistakes included: the ridge is replaced by Adam's weight decay of
    0.01 (so the curvature inverted is not that of the trained loss), the ridge's part of the gradient is
    left out, the start is random instead of 0 (a network's as it is made), and what 400 steps reach (3,200 with
    "f2l2-mnist") is taken for the answer.
    """

    name: ClassVar[str] = "fedremoval"
    source: ClassVar[str] = "Jin et al., 2023"
    needs: ClassVar[tuple[Any, ...]] = (
        ("problem", "quadratic"),
        ("problem", "plain"),
        ("server", "rows"),
        ("retained", "gradient"),
    )
    keeps: ClassVar[tuple[str, ...]] = ("statistics",)
    traits: ClassVar[frozenset[str]] = frozenset()

    solver: str = "cholesky"

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after one step."""
        found = direction(removal, self.solver)
        published = getattr(removal.problem.solver(self.solver), "weight_decay", 0.0)
        note = f"{ONE_STEP} {F2L2_NOTE.format(found.steps)}" if published else ONE_STEP
        return after_step(self, removal, found, note=note, one_step=True)


def after_step(
    method: Any, removal: Removal, solution: Solution, *, length: float = 1.0, products: int = 0, **more: Any
) -> Unlearned:
    """The run after a step of this length against the direction; `products` more were asked of the clients."""
    work = removal.server.squares().work(solution.steps + products, factored=solution.method in FACTORED)
    params, warnings = removal.params - length * solution.value, server_plan(removal).warnings
    return removal.finish(method, solution, params=params, flops=work, warnings=warnings, **more)


def direction(removal: Removal, solver: str) -> Solution:
    """v with H_p v = g, by a solver of the problem's own."""
    watch = removal.watch("solving")
    found: Any = removal.problem.solver(
        solver, lambda done, left, _: watch(Progress(done, getattr(found, "steps", None), residual=left))
    )
    gradient, ridge, squares = removal.gradient, removal.ridge, removal.server.squares()
    if getattr(found, "random_start", False) and hasattr(removal.problem, "random_start"):
        found = replace(found, start=removal.problem.random_start(found.seed) + removal.problem.origin)
    if getattr(found, "weight_decay", 0.0):
        gradient, ridge = gradient - removal.problem.penalty(ridge) * removal.params, 0.0
    solution: Solution = found.solve(Curvature(squares, ridge), gradient)
    return solution
