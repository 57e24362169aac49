"""FedRemoval (Jin et al., Algorithm 2): a Newton step with the curvature of the server's rows.

v solves H_p v = g, with g the retained gradient at the trained parameters w, penalty included, and
H_p = G_p / n_p + ridge P of the server's rows; the result is w - v. Its error is
-H_p^-1 (G/n - G_p/n_p) (w - w*): small only where the server's rows are many against their
effective dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import ClassVar, Protocol

import numpy as np

from probekit.arrays import Array, Indices
from probekit.errors import InputError, SolverError
from probekit.federated.client import ClientData
from probekit.federated.federation import Federation, total, total_stats
from probekit.federated.local import Adam, LocalPlan, check_positive
from probekit.federated.loss import MeanLoss, whitener
from probekit.federated.queries import WEIGHT, Arrays, Gradient, LocalFit, Product, Shapes
from probekit.federated.state import State
from probekit.federated.training.fedavg import largest_curvature
from probekit.linear.model import LinearModel
from probekit.linear.solvers import Map, conjugate_gradient
from probekit.objective import Model, Objective, Penalty
from probekit.progress import Step
from probekit.records import record
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions

NETWORK_STEPS = 2000
NETWORK_TOLERANCE = 1e-6
PRECONDITIONER_TOLERANCE = 1e-3
"""Of a network's: 1e-6 took four times the products, and was not reached on 6,000 rows of MNIST."""
ESTIMATE = 1e-2
"""How exactly the effective dimension of a network is estimated."""
ENOUGH = 4.0
"""Server rows for each effective dimension from which one step may be trusted to help."""


@dataclass(frozen=True)
class ServerRows:
    """The server's rows, and in how many directions they outweigh the ridge."""

    rows: int
    effective_dimension: float

    @classmethod
    def of(cls, server: Federation, *, ridge: float) -> ServerRows:
        """trace(G (G + n ridge P)^-1) of the sums G of the server's n rows.

        Of a network, a class's share of it, estimated by v^T (v - ridge H^-1 v) for random signs v.
        """
        if not isinstance(server.model, LinearModel):
            signs = np.random.Generator(np.random.PCG64(0)).choice([-1.0, 1.0], server.model.shape)
            product = partial(MeanLoss(server, ridge).product, server.model.start())
            steps = NETWORK_STEPS if ridge else 0
            solution = conjugate_gradient(product, signs, steps=steps, tolerance=ESTIMATE)
            trace = float(signs @ (signs - ridge * solution.value))
            return cls(server.rows, trace / server.model.classes)
        stats = total_stats(server)
        gram = stats.gram / stats.weight
        hessian = gram + ridge * np.diagflat(server.model.penalized)
        shrinkage = np.linalg.lstsq(hessian, gram, rcond=None)[0]
        return cls(stats.count, float(np.trace(shrinkage)))

    @property
    def enough(self) -> bool:
        return self.rows >= ENOUGH * self.effective_dimension

    @property
    def warning(self) -> str:
        """Why one step may do harm; nothing where the rows are enough."""
        if self.enough:
            return ""
        wanted = math.ceil(ENOUGH * self.effective_dimension)
        return (
            f"One step of fedremoval wants {wanted} server rows, {ENOUGH:g} times their effective "
            f"dimension of {self.effective_dimension:.1f}; found {self.rows}. It may end "
            "farther from retraining than doing nothing: use fedremoval-line, "
            "which never raises the retained loss, or fedremoval-pcg."
        )


class StepSolver(Protocol):
    """Solves H_p v = g for any g."""

    def inverse(self, removal: Removal) -> Map: ...


@record("solver/cholesky")
@dataclass(frozen=True)
class Cholesky:
    """By a factor of the server's Gram; of a network, which has none, by products."""

    def inverse(self, removal: Removal) -> Map:
        from scipy.linalg import LinAlgError

        model = removal.state.model
        if not isinstance(model, LinearModel):
            return ConjugateGradient(NETWORK_STEPS, NETWORK_TOLERANCE).inverse(removal)
        ridge = removal.ridge_choice.value
        try:
            return whitener(model, total_stats(_server(removal)), ridge)
        except LinAlgError as error:
            raise InputError(
                "The curvature of the server's rows must be positive; that of "
                f"{_server(removal).rows} rows is singular at ridge {ridge:g}. Raise the ridge "
                "(--ridge)."
            ) from error


@record("solver/cg")
@dataclass(frozen=True)
class ConjugateGradient:
    """By products with the server's curvature."""

    steps: int = 1000
    tolerance: float = 1e-10

    def inverse(self, removal: Removal) -> Map:
        if isinstance(removal.state.model, LinearModel):
            product: Map = partial(np.matmul, _curvature(removal))
        else:
            product = _network_product(removal)
        return partial(solve_system, product, steps=self.steps, tolerance=self.tolerance)


def _network_product(removal: Removal) -> Map:
    """v -> H v with the curvature of the server's rows."""
    loss = MeanLoss(_server(removal), removal.ridge_choice.value)
    if not loss.ridge > 0:
        raise InputError(
            "Steps of a network with the server's curvature need a ridge above 0; found 0. Train "
            "with one (--ridge)."
        )
    done = count(1)

    def product(vector: Array) -> Array:
        removal.progress(Step("products of the server's rows", next(done)))
        return loss.product(removal.state.params, vector)

    return product


def solve_system(product: Map, right: Array, *, steps: int, tolerance: float) -> Array:
    """By conjugate gradients; refused where they do not reach the tolerance."""
    solution = conjugate_gradient(product, right, steps=steps, tolerance=tolerance)
    residual = float(np.linalg.norm(solution.residual))
    size = float(np.linalg.norm(right))
    if residual > tolerance * size:
        raise SolverError(
            f"A relative residual of {tolerance:g} was expected after {steps} steps; found "
            f"{residual / size:.1g}. Raise steps (fedremoval:cg,steps={2 * steps}), or the ridge."
        )
    return solution.value


@record("recipe/newton-step")
@dataclass(frozen=True, eq=False)
class NewtonStep:
    """F(v) = 1/2 <v, H v> - <g, v>: the loss of which a Newton step is the minimum."""

    params: Array
    gradient: Array
    ridge: float

    def local_loss(self, client: ClientData, plan: LocalPlan) -> NewtonLoss:
        return NewtonLoss(self, client.objective, Penalty(client.model, self.ridge))


@dataclass(frozen=True, eq=False)
class NewtonLoss:
    """F with the curvature of an objective; its penalty is around 0, not around the center."""

    step: NewtonStep
    objective: Objective
    penalty: Penalty

    @property
    def count(self) -> int:
        return self.objective.count

    def gradient(self, params: Array) -> Array:
        """H v - g."""
        product = self.objective.product(self.step.params, params) / self.objective.weight
        return product + self.penalty.product(params) - self.step.gradient

    def batch(self, indices: Indices) -> NewtonLoss:
        return NewtonLoss(self.step, self.objective.batch(indices), self.penalty)


def iterated(removal: Removal, plan: LocalPlan) -> Map:
    """By steps from 0 over the server's batches; what they reach is taken, whatever is left."""
    plan = replace(plan, round=removal.state.rounds)

    def solve(right: Array) -> Array:
        recipe = NewtonStep(removal.state.params, right, removal.ridge_choice.value)
        (answer,) = _server(removal).ask(LocalFit(np.zeros_like(right), plan, recipe))
        return answer.arrays["params"]

    return solve


@record("solver/sgd")
@dataclass(frozen=True)
class SgdSteps:
    """Algorithm 2 as printed, the gradient a mean over a batch (or over all rows).

    Without a rate it is 1 / the largest curvature, of any row where there are batches.
    """

    steps: int = 400
    rate: float | None = None
    batch_size: int | None = None
    seed: int = 0

    def inverse(self, removal: Removal) -> Map:
        rate = self.rate
        if rate is None:
            of_rows = self.batch_size is not None
            bound = largest_curvature(_server(removal), of_rows=of_rows)
            rate = 1 / (bound + removal.ridge_choice.value)
        plan = LocalPlan(rate, steps=self.steps, batch_size=self.batch_size, seed=self.seed)
        return iterated(removal, plan)


@record("solver/adam")
@dataclass(frozen=True)
class AdamSteps:
    """As in the released code, whose weight decay of 0.01 stands in for a ridge of 0."""

    steps: int = 400
    rate: float = 0.01
    weight_decay: float = 0.0
    batch_size: int | None = None
    seed: int = 0

    def inverse(self, removal: Removal) -> Map:
        plan = LocalPlan(
            self.rate,
            steps=self.steps,
            batch_size=self.batch_size,
            optimizer=Adam(weight_decay=self.weight_decay),
            seed=self.seed,
        )
        return iterated(removal, plan)


@record("method/fedremoval")
@dataclass(frozen=True)
class FedRemoval:
    """w - v: one step, by `solver`."""

    promise: ClassVar[Promise] = "nothing"
    solver: StepSolver = field(default_factory=Cholesky)

    def needs(self, removal: Removal) -> frozenset[Need]:
        retained = frozenset() if removal.keeps_gradients else frozenset({Need.RETAINED})
        return retained | {Need.QUADRATIC, Need.SERVER_ROWS}

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return _gradient_questions(removal)

    def unlearn(self, removal: Removal) -> State:
        step = self.solver.inverse(removal)(removal.gradient())
        return removal.finish(removal.state.params - step, rounds=1)


@record("query/quadratic-form")
@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """<v, H v> of the data term: one number."""

    params: Array
    vector: Array

    def answer(self, client: ClientData) -> Arrays:
        product = client.objective.product(self.params, self.vector)
        form = float((self.vector * product).sum())
        return {"form": np.array([form]), "weight": np.array([client.weight])}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"form": (1,), **WEIGHT}


@record("method/fedremoval-line")
@dataclass(frozen=True)
class FedRemovalLine:
    """w - a v with a = <g, v> / <v, H v>: the lowest point along the step.

    Each retained client adds one number, and their loss never rises.
    """

    promise: ClassVar[Promise] = "nothing"
    solver: StepSolver = field(default_factory=Cholesky)

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.QUADRATIC, Need.SERVER_ROWS, Need.RETAINED})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        params = removal.state.params
        return [*_gradient_questions(removal), Questions(QuadraticForm(params, params))]

    def unlearn(self, removal: Removal) -> State:
        params = removal.state.params
        gradient = removal.gradient()
        step = self.solver.inverse(removal)(gradient)
        sums = total(removal.retained.ask(QuadraticForm(params, step)))
        curvature = float(sums.mean("form")[0])
        curvature += float((step * removal.loss.penalty.product(step)).sum())
        length = float((gradient * step).sum()) / curvature if curvature > 0 else 0.0
        return removal.finish(params - length * step, rounds=1)


@record("method/fedremoval-pcg")
@dataclass(frozen=True)
class FedRemovalPcg:
    """Conjugate gradients on the retained loss, preconditioned by the server's curvature.

    Each round is one product: the first ends near the paper's step, the last at the minimum.
    """

    promise: ClassVar[Promise] = "minimum"
    rounds: int = 10
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        check_positive(self, "rounds", "tolerance")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.QUADRATIC, Need.SERVER_ROWS, Need.RETAINED})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        params = removal.state.params
        product = Questions(Product(params, params), times=self.rounds)
        return [*_gradient_questions(removal), product]

    def unlearn(self, removal: Removal) -> State:
        params = removal.state.params
        loss = removal.loss
        solver: StepSolver = Cholesky()
        if not isinstance(removal.state.model, LinearModel):
            solver = ConjugateGradient(NETWORK_STEPS, PRECONDITIONER_TOLERANCE)
        solution = conjugate_gradient(
            lambda vector: loss.product(params, vector),
            removal.gradient(),
            steps=self.rounds,
            tolerance=self.tolerance,
            precondition=solver.inverse(removal),
        )
        return removal.finish(params - solution.value, rounds=1)


def _gradient_questions(removal: Removal) -> list[Questions]:
    choosing = choosing_questions(removal)
    if removal.keeps_gradients:
        return choosing
    return [*choosing, Questions(Gradient(removal.state.params))]


def _server(removal: Removal) -> Federation:
    if removal.server is None:
        raise InputError(f"This method needs {Need.SERVER_ROWS.value}; found none.")
    return removal.server


def _curvature(removal: Removal) -> Array:
    """G_p / n_p + ridge P."""
    stats = total_stats(_server(removal))
    penalty = removal.ridge_choice.value * np.diagflat(removal.state.model.penalized)
    return np.asarray(stats.gram / stats.weight + penalty)
