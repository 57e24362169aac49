"""The squares of any affine model of its parameters, a linearized network for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.linear.squares import Squares

Array = NDArray[np.float64]


class Linearization(Protocol):
    """An affine model of its parameters: outputs = offset + jvp(params); `vjp` is the adjoint of `jvp`."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def offset(self) -> Array: ...
    def jvp(self, params: Array) -> Array: ...
    def vjp(self, outputs: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class ModelSquares(Squares):
    """The squares of any affine model, a linearized network for one."""

    model: Linearization
    targets: Array

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters."""
        return self.model.shape

    def value(self, params: Array) -> float:
        """The sum of squares."""
        return float(np.square(self._residual(params)).sum())

    def gradient(self, params: Array) -> Array:
        """Half its gradient."""
        return self.model.vjp(self._residual(params))

    def product(self, v: Array) -> Array:
        """J^T J v."""
        return self.model.vjp(self.model.jvp(v))

    def target_energy(self) -> float:
        """What the offset lacks to the targets."""
        return float(np.square(self.targets - self.model.offset).sum())

    def _residual(self, params: Array) -> Array:
        return self.model.offset + self.model.jvp(params) - self.targets
