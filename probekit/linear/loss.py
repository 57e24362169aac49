"""The ridge loss, its gradient and its curvature, once for every affine model: outputs = offset + J(params).

"mean": 1/(2n) |offset + J(params) - targets|^2 + ridge/2 |params - anchor|^2; "sum": without the 1/n. A free
intercept (the last row of a head's parameters) is not penalised. The gradient includes the ridge's part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import SCALINGS, ClientStats, Design
from probekit.linear.solvers import Operator
from probekit.linear.squares import RowSquares, Squares, StatsSquares
from probekit.values import Rows

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RidgeLoss:
    """The ridge loss of some squares. `free` rows of params (from the end) are not penalised."""

    squares: Squares
    ridge: float
    scaling: str = "mean"
    free: int = 0
    anchor: Array | None = None

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise InputError(f"The ridge's scaling must be one of {', '.join(SCALINGS)}; found {self.scaling!r}.")
        if self.squares.count == 0:
            raise InputError("The loss of no rows is not defined. Give at least one row.")

    def value(self, params: Array) -> float:
        """The loss."""
        return self._share * self.squares.value(params) / 2 + self.ridge / 2 * float(
            np.square(self._penalised(params)).sum()
        )

    def gradient(self, params: Array) -> Array:
        """Its gradient, the ridge's part included."""
        return self._share * self.squares.gradient(params) + self.ridge * self._penalised(params)

    def excess(self, params: Array, optimum: Array) -> float:
        """How far the loss lies above its minimum, exactly: half the curvature along params - optimum."""
        away = params - optimum
        return float((away * self.curvature().matvec(away)).sum()) / 2

    def curvature(self) -> Operator:
        """Its second derivative, the same for every class."""
        return Curvature(self.squares, self._share, self.ridge, self.free)

    @property
    def _share(self) -> float:
        return 1 / self.squares.count if self.scaling == "mean" else 1.0

    def _penalised(self, params: Array) -> Array:
        away = params - self.anchor if self.anchor is not None else params.copy()
        away[len(away) - self.free :] = 0
        return away


@dataclass(frozen=True, eq=False)
class Curvature:
    """share J^T J + ridge (on penalised rows)."""

    squares: Squares
    share: float
    ridge: float
    free: int = 0

    def matvec(self, v: Array) -> Array:
        """The curvature applied to each column."""
        product = self.share * self.squares.product(v)
        kept = len(v) - self.free
        product[:kept] += self.ridge * v[:kept]
        return product

    def dense(self) -> Array | None:
        """Its matrix, where the squares have one."""
        gram = self.squares.dense()
        if gram is None:
            return None
        matrix = self.share * gram
        kept = len(matrix) - self.free
        matrix[np.arange(kept), np.arange(kept)] += self.ridge
        return matrix


def ridge_loss(
    data: ClientStats | tuple[Rows, NDArray[Any], Design], ridge: float, *, scaling: str = "mean"
) -> RidgeLoss:
    """The loss of a head over statistics, or over rows, labels and a design."""
    squares = StatsSquares(data) if isinstance(data, ClientStats) else RowSquares(*data)
    design = data.design if isinstance(data, ClientStats) else data[2]
    return RidgeLoss(squares, ridge, scaling, free=int(design.intercept == "free"))
