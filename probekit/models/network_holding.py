"""What a client of a network holds: rows as inputs, and the squares of the linearized network over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.kernel import Factors, batch_factors, factors, jacobian_diagonal
from probekit.jacobian.linearize import LinearizedRows, column, tensor_of
from probekit.jacobian.memory import free_memory
from probekit.jacobian.tape import Fresh
from probekit.linear.affine import ModelSquares
from probekit.linear.solvers import Operator
from probekit.linear.spectrum import effective_dimension, largest_eigenvalue
from probekit.linear.statistics import checked_labels
from probekit.models.networks import inputs_of, linearized
from probekit.models.problem import SetHolding
from probekit.values import Array, Indices

DUAL_VALUES = 6000
"""The largest dual whose eigenvalues are computed to tell the effective dimension."""
ROOM = 1.01
"""What float32 may be off by in a sum of squares, and more."""


@dataclass(frozen=True, eq=False)
class NetworkHolding(SetHolding):
    """Rows of an embedding set, as inputs of a network; made for each precision when first asked for."""

    offers: ClassVar[frozenset[str]] = frozenset(
        {"gradient", "product", "form", "scales", "importance", "fit", "evaluate"}
    )

    share: float
    made: dict[str, NetworkSquares] = field(default_factory=dict, init=False, repr=False)

    @property
    def quick(self) -> NetworkSquares:
        """The squares in the numbers that are trained in."""
        return self.squares(self.problem.precision)

    def squares(self, precision: str = "float64") -> NetworkSquares:
        """The squares of the linearized network against one-hot targets."""
        if precision not in self.made:
            network = self.problem.network
            model = linearized(network, precision=precision)
            free = free_memory(model.device)
            memory = max(int(free * self.share), free // 64)
            inputs = inputs_of(network, np.asarray(self.embeddings.embeddings[self.rows]))
            over = model.over(inputs, centre=self.problem.centre, memory=memory)
            targets = np.eye(over.classes)[checked_labels(self.labels, self.count, over.classes)]
            self.made[precision] = NetworkSquares(over, targets)
        return self.made[precision]

    def importance(self, params: Array) -> Array:
        """The diagonal of J^T J."""
        return column(jacobian_diagonal(self.quick.rows))

    def batch_gradient(self, params: Array, some: Indices, wanted: Array | None = None) -> Array:
        """The gradient of the mean of some rows' losses, in one pass forward and one back."""
        squares = self.quick
        model = squares.rows.model
        batch = Fresh(model.forward, model.base, squares.rows.inputs[tensor_of(some)].to(model.device))
        outputs, pushed = batch.both(model.split(params - self.problem.start))
        targets = tensor_of(squares.targets[some] if wanted is None else wanted).to(outputs)
        pulled = batch.vjp((outputs + pushed - targets) / len(some))
        return column(torch.cat([one.reshape(-1) for one in pulled]))


@dataclass(frozen=True, eq=False)
class NetworkSquares(ModelSquares):
    """The squares of a linearized network, whose curvature has a dual in place of a matrix."""

    @property
    def rows(self) -> LinearizedRows:
        """The linearized network over the inputs."""
        assert isinstance(self.model, LinearizedRows)
        return self.model

    @property
    def rank(self) -> int:
        """No more than outputs and parameters."""
        return min(self.rows.count * self.rows.classes, self.rows.model.size)

    def energy(self) -> float:
        """|J|^2, at most: as found in float32, and its own rounding."""
        rows = self.rows.cast(torch.float32)
        return ROOM * float(sum(np.einsum("nkk->", row_kernels(batch)) for batch in batch_factors(rows)))

    def largest_curvature(self, ridge: float) -> float:
        """By products."""
        size = self.shape[0]
        found = largest_eigenvalue(lambda v: self.product(v) / self.count, size=size, tolerance=1e-4)
        return found + ridge

    def largest_row_curvature(self) -> float:
        """The largest of any single row's."""
        return max(float(torch.linalg.eigvalsh(one.blocks().double()).max()) for one in batch_factors(self.rows))

    def effective_dimension(self, ridge: float) -> float | None:
        """From the eigenvalues of the rows' kernel; None where that is too large."""
        size = self.rows.count * self.rows.classes
        if size > DUAL_VALUES or 3 * 8 * size**2 > free_memory(self.rows.model.device):
            return None
        made = factors(self.rows)
        kernel = np.asarray(made.kernel(made).double().cpu().numpy()) / self.count
        return effective_dimension(np.linalg.eigvalsh(kernel), ridge)

    def inverse(self, ridge: float) -> Operator:
        """By the dual, or a subspace. Not damped as in training: a removal starts near its end."""
        return CurvatureSolver().inverse(self.rows, ridge)

    def work(self, products: int, *, factored: bool) -> int:
        """Of factoring the dual, and of forward and backward passes."""
        dual = (self.rows.count * self.rows.classes) ** 3 // 3
        return factored * dual + 8 * products * self.shape[0] * self.count


def row_kernels(batch: Factors) -> Array:
    """Each row's own k by k kernel J_x J_x^T."""
    return np.asarray(batch.blocks().double().cpu().numpy())
