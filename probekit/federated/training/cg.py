"""Conjugate gradients on the federation's loss: one product of the clients a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from probekit.arrays import Array
from probekit.errors import InputError, SolverError
from probekit.federated.federation import Federation
from probekit.federated.local import check_positive
from probekit.federated.loss import MeanLoss
from probekit.federated.state import Ridge, State, check_keep, choose_ridge, kept_by
from probekit.linear.solvers import conjugate_gradient
from probekit.progress import Progress, Step, silent
from probekit.records import record

NEWTON_STEPS = 30
NEWTON_TOLERANCE = 1e-3
SHORTEST_STEP = 2.0**-20


@record("trainer/cg")
@dataclass(frozen=True)
class ConjugateGradients:
    """The minimum of a convex loss, by Newton steps that conjugate gradients solve.

    Gradients are in float64 and products in the model's precision, so that each Newton step
    corrects what rounding left of the one before. It ends where |gradient| is at most
    ridge * tolerance * |w - center|: `tolerance` bounds the relative distance from the minimum.
    """

    products: int = 2000
    tolerance: float = 1e-7
    keep: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_keep(self.keep, ("gradients",), "cg")
        check_positive(self, "products", "tolerance")

    def train(self, federation: Federation, *, ridge: Ridge, progress: Progress = silent) -> State:
        model = federation.model
        if not model.is_linear or not (model.penalized == 1).all():
            raise InputError(
                "Conjugate gradients need a convex loss with a ridge on every parameter; this is "
                f"a {type(model).__name__}. Train by fedavg, or linearize (--linearize)."
            )
        choice = choose_ridge(ridge, federation)
        if not choice.value:
            raise InputError("Conjugate gradients need a ridge above 0; found 0. Pass --ridge.")
        params = self.minimize(federation, model.start(), ridge=choice.value, progress=progress)
        kept = kept_by(self.keep, federation, params, None)
        return State(params, model, choice, dict(federation.clients), self, kept=kept)

    def minimize(
        self,
        federation: Federation,
        start: Array,
        *,
        ridge: float,
        distance: float | None = None,
        progress: Progress = silent,
    ) -> Array:
        """The minimum, from any start; `distance` bounds that from it in place of `tolerance`."""
        exact = MeanLoss(replace(federation, model=federation.model.exact), ridge)
        products = _Products(MeanLoss(federation, ridge), progress)
        params = start
        value, gradient = exact.value_and_gradient(params)
        for _ in range(NEWTON_STEPS):
            size = float(np.linalg.norm(params - federation.model.center))
            goal = ridge * (self.tolerance * size if distance is None else distance)
            residual = float(np.linalg.norm(gradient))
            if residual <= goal:
                return params
            if products.done >= self.products:
                break
            products.params = params
            products.note = f"gradient {residual:.2g}" + (f", until {goal:.2g}" if goal else "")
            solution = conjugate_gradient(
                products.product,
                gradient.reshape(-1, 1),  # softmax couples the classes: one column for all
                steps=self.products - products.done,
                tolerance=max(NEWTON_TOLERANCE, goal / (2 * residual)),
            )
            step = solution.value.reshape(params.shape)
            length = 1.0
            while length > SHORTEST_STEP:
                trial, slope = exact.value_and_gradient(params - length * step)
                if trial < value or np.linalg.norm(slope) < residual:
                    break
                length /= 2
            params = params - length * step
            value = trial
            gradient = slope
        raise SolverError(
            f"A gradient of norm {goal:.2g} was expected after {products.done} products; found "
            f"{residual:.2g}. Raise the ridge (--ridge), the tolerance (--tolerance), or the "
            f"products (--method cg:products={2 * self.products})."
        )


@dataclass
class _Products:
    """Products with the curvature at `params`, counted and reported."""

    loss: MeanLoss
    progress: Progress
    params: Array | None = None
    note: str = ""
    done: int = 0

    def product(self, vector: Array) -> Array:
        assert self.params is not None
        self.done += 1
        product = self.loss.product(self.params, vector.reshape(self.params.shape))
        self.progress(Step("products", self.done, note=self.note))
        return product.reshape(-1, 1)
