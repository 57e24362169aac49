"""Inverses of a linearized network's curvature J^T J / n + ridge: exact by the dual, or close on a subspace.

Exact: (J^T J / n + ridge)^-1 = (I - J^T (J J^T + n ridge)^-1 J) / ridge (Woodbury), one factor of size n k.
Close: on the span of the Jacobian rows of some landmark rows Z (Q an orthonormal basis, K = J_Z J_Z^T) the
curvature's own restriction is inverted; the rest of the space is scaled by one number t. With C = J J_Z^T,
t P^-1 = t Q (Q^T H Q + ridge)^-1 Q^T + (I - Q Q^T) = I + J_Z^T (t (C^T C / n + ridge K)^-1 - K^-1) J_Z,
which bounds the condition number by 4 (l + ridge) / ridge, l the largest curvature outside the span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import SolverError
from probekit.jacobian.kernel import batch_factors, factors
from probekit.jacobian.linearize import LinearizedRows, tensor_of
from probekit.linear.solvers import Operator

JITTER = 1e-11
"""Of the mean diagonal, added to a kernel before it is factored alone: rows may repeat."""

MEASURED = 10

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DualInverse(Operator):
    """The exact inverse, from the Cholesky factor of J J^T + n ridge."""

    rows: LinearizedRows
    ridge: float
    factor: Tensor

    @classmethod
    def of(cls, rows: LinearizedRows, ridge: float, *, low_precision: bool = False) -> DualInverse:
        """Of these rows; `ridge` in mean scaling.

        `low_precision`: factored in float32 where that can be done, in half the time; good enough for iterations that
        look at the true residual.
        """
        held = factors(rows)
        kernel = held.kernel(held).double()
        kernel.diagonal().add_(rows.count * ridge)
        if low_precision:
            factor, failed = torch.linalg.cholesky_ex(kernel.float())
            if not int(failed):
                return cls(rows, ridge, factor)
        return cls(rows, ridge, _cholesky(kernel))

    def matvec(self, v: Array) -> Array:
        """The inverse applied."""
        pushed = self.rows.jvp(v)
        given = tensor_of(pushed).to(self.factor).reshape(-1, 1)
        # two triangles: `cholesky_solve` copies the whole factor for each column, and takes 13 times as long (8,000)
        half = torch.linalg.solve_triangular(self.factor, given, upper=False)
        solved = torch.linalg.solve_triangular(self.factor.mT, half, upper=True)
        return np.asarray((v - self.rows.vjp(solved.double().cpu().numpy().reshape(pushed.shape))) / self.ridge)


@dataclass(frozen=True, eq=False)
class SubspaceInverse(Operator):
    """Close to the inverse: the curvature's restriction to a subspace inverted, one scale for the rest."""

    landmarks: LinearizedRows
    scale: float
    middle: Tensor

    @classmethod
    def of(cls, rows: LinearizedRows, ridge: float, *, landmarks: int, seed: int = 0) -> SubspaceInverse:
        """On the span of the Jacobian rows of so many rows, drawn at random; `ridge` in mean scaling.

        The restriction is measured on `MEASURED` times as many rows, where there are more: it need only be close.
        """
        order = np.random.default_rng(seed).permutation(rows.count)
        few = _some(rows, order[:landmarks])
        rows = _some(rows, order[: MEASURED * landmarks]) if rows.count > MEASURED * landmarks else rows
        held = factors(few)
        kernel = held.kernel(held).double()
        cross, trace = torch.zeros_like(kernel), 0.0
        for batch in batch_factors(rows):
            block = batch.kernel(held).double()
            cross.addmm_(block.T, block)
            trace += float(torch.einsum("nkk->", batch.blocks()))
        kernel.diagonal().add_(JITTER * float(kernel.diagonal().mean()))
        cross /= rows.count
        alone = _cholesky(kernel)
        caught = float(torch.cholesky_solve(cross, alone).diagonal().sum())
        # the mean curvature outside the span lies within that block's spectrum: any such scale will do
        scale = ridge + max(trace / rows.count - caught, 0.0) / max(rows.count * rows.classes - len(kernel), 1)
        middle = torch.cholesky_inverse(_cholesky(cross.add_(kernel, alpha=ridge))).mul_(scale)
        # a matrix, not two factors: it is applied in every step, and as a product that is fastest
        return cls(few, scale, middle.sub_(torch.cholesky_inverse(alone)))

    def matvec(self, v: Array) -> Array:
        """The approximate inverse applied."""
        pushed = self.landmarks.jvp(v)
        given = tensor_of(pushed).to(self.middle.device).reshape(-1)
        inner = (self.middle @ given).cpu().numpy().reshape(pushed.shape)
        return np.asarray((v + self.landmarks.vjp(inner)) / self.scale)


def _some(rows: LinearizedRows, numbers: NDArray[np.int64]) -> LinearizedRows:
    return rows.model.over(rows.inputs[tensor_of(np.sort(numbers))])


def _cholesky(matrix: Tensor) -> Tensor:
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        raise SolverError(
            f"The kernel of these rows is not positive definite (at {failed} of {len(matrix)}). Use a larger ridge."
        )
    return factor
