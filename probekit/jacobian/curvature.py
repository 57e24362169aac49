"""Solving (J^T J / n + ridge) v = g for a linearized network, by the way that fits, and saying why that one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.errors import InputError, NotFoundError
from probekit.jacobian.inverse import MEASURED, DualInverse, SubspaceInverse
from probekit.jacobian.kernel import batch_factors, factor_bytes, rows_at_once
from probekit.jacobian.linearize import LinearizedRows
from probekit.jacobian.memory import Prediction, free_memory, size_text
from probekit.linear.design import Solution
from probekit.linear.solvers import ConjugateGradient, Operator, as_operator
from probekit.linear.squares import Curvature
from probekit.registry import nearest

WAYS = ("auto", "dual", "pcg", "cg")
DUAL_MOST = 12_000
"""The largest dual that is factored unasked: beyond it the iterations are faster."""
SPAN_MOST = 4_000
"""The most directions that a preconditioner's subspace has, unless given."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """How a system will be solved, why so, what it will take, and on how many landmarks it is preconditioned."""

    name: str
    why: str
    prediction: Prediction
    landmarks: int = 0


@dataclass(frozen=True)
class CurvatureSolver:
    """A solver for linearized networks: "dual" (exact), "pcg" (preconditioned), "cg" (plain), or "auto".

    Ends within `tolerance`, the true relative residual, in float64 whatever the network's numbers are. Iterations
    other than the dual's multiply in float32 as long as that brings the true residual down.
    """

    way: str = "auto"
    tolerance: float = 1e-6
    max_steps: int = 3000
    landmarks: int | None = None
    memory: int | None = None
    watch: Callable[[int, float, Array], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise NotFoundError(f"There is no way {self.way!r} to solve. {nearest(self.way, list(WAYS))}")

    def solve(self, operator: Operator | Array, rhs: Array) -> Solution:
        """The solution, or SolverError carrying the best one found."""
        curvature, rows = _network(as_operator(operator))
        way = self.choose(rows, curvature.ridge)
        exact = rows.cast(torch.float64)
        inverse = self._inverse(exact, curvature.ridge, way, low_precision=True)
        low_precision = None if way.name == "dual" else rows.cast(torch.float32).curvature(curvature.ridge)
        solver = ConjugateGradient(self.tolerance, self.max_steps, inverse, low_precision, self.watch)
        return replace(solver.solve(exact.curvature(curvature.ridge), rhs), method=way.name, note=way.why)

    def inverse(self, rows: LinearizedRows, ridge: float) -> Operator:
        """The inverse of J^T J / n + ridge, exact or close: a preconditioner."""
        way = self.choose(rows, ridge)
        if self.way == "cg" or not ridge:
            raise InputError('Plain conjugate gradients have no preconditioner. Take "dual", "pcg" or "auto".')
        return self._inverse(rows.cast(torch.float64), ridge, way) or Unchanged()

    def shared_inverse(self, rows: LinearizedRows, ridge: float) -> Operator:
        """A preconditioner for the loss of other people's rows, of which these are a sample of n.

        Curvature below tr(J^T J / n) / n cannot be told from chance in n rows; trusted there, the inverse would blow
        up what others' rows hold tight. It is inverted as if the ridge were that large.
        """
        energy = sum(float(torch.einsum("nkk->", one.blocks())) for one in batch_factors(rows))
        return self.inverse(rows, max(ridge, energy / rows.count**2))

    def choose(self, rows: LinearizedRows, ridge: float) -> Way:
        """The way for these rows; `ridge` in mean scaling. Refuses what cannot be solved, or too large a dual."""
        _refuse_singular(rows, ridge)
        free = self.memory if self.memory is not None else free_memory(rows.model.device)
        if self.way == "cg" or not ridge:
            return Way("cg", "Conjugate gradients without a preconditioner.", Prediction({}))
        dual, size = self._dual(rows), rows.count * rows.classes
        fits = dual.prediction.total <= free
        if self.way == "dual" or (self.way == "auto" and fits and size <= DUAL_MOST):
            dual.prediction.require(free, remedy='Take fewer rows, or "pcg", which takes what fits.')
            return dual
        found = self._preconditioned(rows, free)
        if self.way == "pcg":
            return found
        reason = (
            f"is larger than {DUAL_MOST}: iterations are faster" if fits else f"does not fit into {size_text(free)}"
        )
        return replace(found, why=f"The dual, a matrix of {size} ({dual.prediction}), {reason}. {found.why}")

    def _dual(self, rows: LinearizedRows) -> Way:
        size = rows.count * rows.classes
        parts = {"kernel and factor": 2 * 8 * size**2, "layers": factor_bytes(rows), "one block": 2**28}
        why = f"The dual of {rows.count} rows x {rows.classes} classes, a matrix of {size}, is factored once: exact."
        return Way("dual", why, Prediction(parts))

    def _preconditioned(self, rows: LinearizedRows, free: int) -> Way:
        """On as many landmarks as are wanted, or as fit; where not even one does, without a preconditioner."""
        wanted = self._landmarks(rows)
        few, each, batch = wanted, factor_bytes(rows) // rows.count, rows_at_once(rows, free)

        def predicted(few: int) -> Prediction:
            span, measured = few * rows.classes, min(batch, MEASURED * few)
            block = min(2**28, 4 * 8 * span * max(few, measured) * rows.classes)
            layers = each * (few + measured)
            return Prediction({"kernels and factors": 6 * 8 * span**2, "layers": layers, "one block": block})

        while few and predicted(few).total > free:
            few //= 2
        short = f" No more than {few} of {wanted} fit into {size_text(free)}." if few < wanted else ""
        if not few:
            why = "Conjugate gradients without a preconditioner: not even one row's Jacobian fits into"
            return Way("cg", f"{why} {size_text(free)}.", Prediction({}))
        why = "Conjugate gradients, preconditioned by the curvature on the span of"
        directions = few * rows.classes
        return Way("pcg", f"{why} {few} rows' Jacobians ({directions} directions).{short}", predicted(few), few)

    def _landmarks(self, rows: LinearizedRows) -> int:
        """As many as make building the preconditioner cost about what its hundred or so steps do."""
        span = min(SPAN_MOST, round((2 * MEASURED * rows.count * rows.model.size) ** (1 / 3)))
        return min(rows.count, self.landmarks or max(8, span // rows.classes))

    def _inverse(self, rows: LinearizedRows, ridge: float, way: Way, *, low_precision: bool = False) -> Operator | None:
        if way.name == "dual":
            return DualInverse.of(rows, ridge, low_precision=low_precision)
        return SubspaceInverse.of(rows, ridge, landmarks=way.landmarks) if way.landmarks else None


class Unchanged(Operator):
    """No preconditioner, in the place of one."""

    def matvec(self, v: Array) -> Array:
        """As it is."""
        return v


def _network(operator: Operator) -> tuple[Curvature, LinearizedRows]:
    """The curvature and the rows inside an operator."""
    if isinstance(operator, Curvature) and isinstance(rows := getattr(operator.squares, "model", None), LinearizedRows):
        return operator, rows
    found = type(operator).__name__
    raise InputError(f"This solver is for a linearized network's curvature; found {found}. Use ConjugateGradient.")


def _refuse_singular(rows: LinearizedRows, ridge: float) -> None:
    rank = rows.count * rows.classes
    if not 0 <= ridge < np.inf:
        raise InputError(f"A ridge must be a number of 0 or more; found {ridge}.")
    if ridge == 0 and rank < rows.model.size:
        raise InputError(
            f"Unpenalised, the curvature has rank {rank} at most, in {rows.model.size} parameters. Use a ridge above 0."
        )
