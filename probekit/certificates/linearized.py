"""How far parameters of a linearized network are from the minimum over its rows.

With a ridge on every parameter |w - w*| <= |g| / ridge and L(w) - L(w*) <= |g|^2 / (2 ridge), where
g is the gradient of the mean loss at w, penalty included, in float64. What rounding does to g is
assumed, not bounded: it moves g by at most ROUNDING of the size of what g is a sum of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices
from probekit.certificates.bounds import SLACK, gamma
from probekit.certificates.verify import ROUND_UP, ROWS, DoubledSum, Enclosure, Interval
from probekit.embeddings import EmbeddingSet
from probekit.federated.client import ClientData
from probekit.federated.federation import Federation, total
from probekit.federated.loss import MeanLoss
from probekit.federated.queries import WEIGHT, Arrays, Shapes
from probekit.objective import Model, Outputs, Penalty, RowsObjective
from probekit.records import record

ROUNDING = 1e-14
"""The share of its terms' size that rounding is assumed to move a gradient in float64 by."""
FLOAT32 = 1 - 1e-3
"""Products are in float32; what they bound from below is lowered by more than that loses."""


@record("query/gradient-terms")
@dataclass(frozen=True)
class GradientTerms:
    """What a network's gradient is a sum of: squares of Jacobians and of targets, over all rows.

    |J|^2 is estimated by |J v|^2 for random signs v. classes: the targets' squares by class.
    """

    def answer(self, client: ClientData) -> Arrays:
        model = client.model
        signs = np.random.Generator(np.random.PCG64(0)).choice([-1.0, 1.0], model.shape)
        jacobians = 0.0
        classes = np.zeros(model.classes)
        for block in client.rows.blocks(model.outputs(client.rows).block):
            moved = model.outputs(block).push(model.start(), signs)
            jacobians += float(block.row_weights @ np.square(moved).sum(axis=1))
            classes += block.row_weights @ np.square(block.target_matrix)
        squares = np.array([jacobians, classes.sum()])
        return {"squares": squares, "classes": classes, "weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"squares": (2,), "classes": (model.classes,), **WEIGHT}


@dataclass(frozen=True, eq=False)
class LinearizedBounds:
    """How far the minimum is, seen from the gradient at some parameters.

    residual: at least the gradient's norm, of which `allowance` is for rounding.
    lacks_classes: the model has classes that no row has.
    """

    model: Model
    params: Array
    ridge: float
    residual: float
    allowance: float
    lacks_classes: bool

    @classmethod
    def of(cls, retained: Federation, params: Array, ridge: float) -> Self:
        """By two rounds: the gradient in float64, and the size of its terms."""
        loss = MeanLoss(replace(retained, model=retained.model.exact), ridge)
        value, gradient = loss.value_and_gradient(params)
        return cls.from_gradient(retained, params, ridge, value, gradient)

    @classmethod
    def from_gradient(
        cls, retained: Federation, params: Array, ridge: float, value: float, gradient: Array
    ) -> Self:
        """From the mean loss and its gradient, penalty included."""
        model = retained.model
        sums = total(retained.ask(GradientTerms()))
        jacobian, target = np.sqrt(sums.mean("squares")).tolist()
        penalty = Penalty(model, ridge)
        slope = math.sqrt(2 * max(value - penalty.value(params), 0.0))
        moved = jacobian * float(np.linalg.norm(params - model.start()))
        norm = float(np.linalg.norm(gradient))
        terms = jacobian * (moved + 2 * slope + 2 * target)
        terms += float(np.linalg.norm(penalty.gradient(params))) + norm
        allowance = ROUNDING * terms
        lacking = bool((sums.arrays["classes"] == 0).any())
        return cls(model, params, ridge, norm + allowance, allowance, lacking)

    @property
    def stated(self) -> Self:
        """The same with a margin, within which a verifier's other sums stay."""
        return replace(self, residual=SLACK * self.residual)

    @property
    def curvature(self) -> float:
        return self.ridge * (1 - gamma(4))

    @property
    def distance(self) -> float:
        return self.residual / self.curvature

    @property
    def excess_loss(self) -> float:
        return self.residual * self.distance / 2

    def certified_rows(self, rows: EmbeddingSet) -> int:
        return certified_rows(self.model, self.params, self.distance, rows)


def certified_rows(model: Model, params: Array, distance: float, rows: EmbeddingSet) -> int:
    """How many rows keep their class wherever the parameters move by at most this distance.

    The lead of the top class over class j moves by at most |J_top - J_j| times the distance.
    """
    exact = model.exact
    count = 0
    for block in rows.blocks(model.outputs(rows).block):
        outputs = model.outputs(block)
        top = outputs.at(params)[0].argmax(axis=1)
        scores = exact.outputs(block).at(params)[0]
        count += int(_keeps_class(outputs, scores, top, params, distance).sum())
    return count


def _keeps_class(
    outputs: Outputs, scores: Array, top: Indices, params: Array, distance: float
) -> NDArray[np.bool_]:
    units = np.eye(scores.shape[1])
    leads = np.take_along_axis(scores, top[:, None], axis=1) - scores
    rounding = 2 * ROUNDING * np.abs(scores).max(axis=1)
    safe = np.ones(len(scores), bool)
    for rivals in leads.argsort(axis=1).T:  # the nearest first: who fails, fails there
        rows = np.flatnonzero(safe & (rivals != top))
        lengths = outputs.take(rows).lengths(params, units[top[rows]] - units[rivals[rows]])
        needed = rounding[rows] + SLACK * distance * lengths
        safe[rows] = leads[rows, rivals[rows]] > needed
    return safe


class RowGradients:
    """The gradient of the rows' mean loss, added up a few rows at a time without loss."""

    def __init__(self, federation: Federation, params: Array, ridge: float) -> None:
        self.federation = federation
        self.params = params
        self.ridge = ridge
        self._exact = federation.model.exact
        self._value = DoubledSum()
        self._gradient = DoubledSum(*params.shape)

    def add(self, rows: EmbeddingSet) -> Array:
        """The gradient of a client's data term."""
        total = DoubledSum(*self.params.shape)
        for block in rows.blocks(ROWS):
            terms = RowsObjective.of(self._exact, block).value_and_gradient(self.params)
            self._value.add(np.asarray(terms[0]))
            total.add(terms[1])
        self._gradient.add(total.total)
        return total.total

    def enclose(self) -> tuple[Enclosure, float]:
        """What is true of the parameters, and how far off the sum of all rows may be.

        For squares |w - w*| >= |g|^2 / |H g| and L(w) - L(w*) >= |g|^4 / (2 <g, H g>).
        """
        model = self.federation.model
        count = self.federation.rows
        penalty = Penalty(model, self.ridge)
        value = float(self._value.total) / count + penalty.value(self.params)
        gradient = self._gradient.total / count + penalty.gradient(self.params)
        bounds = LinearizedBounds.from_gradient(
            self.federation, self.params, self.ridge, value, gradient
        )
        norm = float(np.linalg.norm(gradient))
        least = max(0.0, norm - bounds.allowance)
        nearest = lowest = 0.0
        if model.loss.is_quadratic and least > 0:
            product = MeanLoss(self.federation, self.ridge).product(self.params, gradient)
            nearest = FLOAT32 * norm * least / float(np.linalg.norm(product))
            lowest = FLOAT32 * (norm * least) ** 2 / (2 * float((gradient * product).sum()))
        is_flat = self.params.size > count * model.classes
        enclosure = Enclosure(
            self.params,
            np.zeros_like(self.params),
            drift=ROUND_UP * bounds.distance,
            residual=Interval(least, ROUND_UP * bounds.residual),
            curvature=Interval(bounds.curvature, ROUND_UP * self.ridge if is_flat else math.inf),
            distance=Interval(nearest, ROUND_UP * bounds.distance),
            excess_loss=Interval(lowest, ROUND_UP * bounds.excess_loss),
        )
        return enclosure, count * bounds.allowance
