"""The mean loss of a federation's rows, penalty included: each value is one round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.arrays import Array
from probekit.federated.federation import Federation, total
from probekit.federated.queries import Gradient, Product
from probekit.linear.solvers import Map
from probekit.linear.stats import SufficientStats
from probekit.objective import Model, Penalty


@dataclass(frozen=True, eq=False)
class MeanLoss:
    """1/n sum over all clients' rows + ridge/2 |penalized * (w - center)|^2, n their weight."""

    federation: Federation
    ridge: float

    @property
    def penalty(self) -> Penalty:
        return Penalty(self.federation.model, self.ridge)

    def value_and_gradient(self, params: Array) -> tuple[float, Array]:
        sums = total(self.federation.ask(Gradient(params)))
        value = float(sums.mean("value")[0]) + self.penalty.value(params)
        return value, sums.mean("gradient") + self.penalty.gradient(params)

    def gradient(self, params: Array) -> Array:
        return self.value_and_gradient(params)[1]

    def product(self, params: Array, vector: Array) -> Array:
        """The curvature times a vector."""
        sums = total(self.federation.ask(Product(params, vector)))
        return sums.mean("product") + self.penalty.product(vector)


def whitener(model: Model, stats: SufficientStats, ridge: float) -> Map:
    """(curvature G / n + ridge P)^-1: the largest curvature that the loss can have, inverted."""
    from scipy.linalg import cho_factor, cho_solve

    curvature = model.loss.largest_curvature * stats.gram / stats.weight
    curvature += ridge * np.diagflat(np.square(model.penalized))
    factor = cho_factor(curvature, lower=True)
    return lambda vector: np.ascontiguousarray(cho_solve(factor, vector))


def identity(vector: Array) -> Array:
    return vector
