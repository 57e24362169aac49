"""Certificates: what is proven about a head and the minimum over the rows that it retains."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Literal

import numpy as np

from probekit.arrays import Array, Json
from probekit.certificates.bounds import (
    SLACK,
    Bounds,
    bounds_from_statistics,
    gamma,
    quadratic,
    self_concordant,
    strongly_convex,
    summing_error,
)
from probekit.certificates.linearized import ROUNDING, LinearizedBounds
from probekit.embeddings import BLOCK, EmbeddingSet
from probekit.errors import InputError
from probekit.federated.client import ClientData
from probekit.federated.federation import Federation, collect_stats
from probekit.federated.loss import MeanLoss, identity, whitener
from probekit.federated.queries import WEIGHT, Arrays, Shapes
from probekit.federated.state import KeptStatistics, State
from probekit.linear.model import LinearModel
from probekit.linear.solvers import Map, conjugate_gradient
from probekit.objective import Model, Squares
from probekit.records import record

Evidence = Literal["statistics", "gradients", "linearized"]
Proof = tuple[Bounds | LinearizedBounds, Evidence, bool]
"""Bounds, what they are from, and whether the model has classes that no row has."""
PRODUCTS = 10
"""Rounds of products that may be asked for to sharpen a bound."""
NEAR = 1e-6
"""No product is asked for where the plain bound is this share of the parameters' norm."""
SOLVED = 1e-3
STALE_RIDGE = "The ridge was chosen with rows that have been forgotten since."
STALE_CLASSES = "The head has classes that no retained row has."
TRUSTED: dict[Evidence, str] = {
    "statistics": "Assumed: the clients' statistics are those of their rows.",
    "gradients": "Assumed: the clients' gradients and products are those of their rows.",
    "linearized": (
        "Assumed: the clients' gradients are those of their rows, and rounding moves them by at "
        f"most {ROUNDING:g} of the size of their terms."
    ),
}
LINEARIZED = (
    "The minimum is that of the network linearized around its first weights, of which nothing is "
    "said."
)


@record("certificate")
@dataclass(frozen=True)
class Certificate:
    """The head is within `distance` of the minimum over `rows` retained rows.

    excess_loss: its mean loss there, penalty included, is at most this much above the minimum's.
    certified_rows: of `test_rows`, those that both provably give the same class.
    residual: at least the gradient's norm; `allowance` of it is for rounding.
    curvature: at most the least curvature of the loss.
    stale_ridge, stale_classes: chosen with rows that have been forgotten since.
    """

    rows: int
    clients: int
    ridge: float
    distance: float
    excess_loss: float
    test_rows: int
    certified_rows: int
    residual: float
    allowance: float
    curvature: float
    evidence: Evidence
    stale_ridge: bool
    stale_classes: bool

    def __post_init__(self) -> None:
        numbers = [value for value in asdict(self).values() if isinstance(value, int | float)]
        if not all(0 <= number < math.inf for number in numbers):
            raise InputError(
                f"A certificate's numbers are finite and 0 or more; found {min(numbers)} to "
                f"{max(numbers)}. Certify the head again."
            )
        if self.certified_rows > self.test_rows:
            raise InputError(
                f"Of {self.test_rows} test rows no more can be certified; found "
                f"{self.certified_rows}. Certify the head again."
            )

    @property
    def statements(self) -> tuple[str, ...]:
        """What the numbers say, and what nothing is said about."""
        kept = f"{self.certified_rows:,} of {self.test_rows:,} test rows provably keep their class."
        optional = {
            kept: self.test_rows > 0,
            LINEARIZED: self.evidence == "linearized",
            TRUSTED[self.evidence]: True,
            STALE_RIDGE: self.stale_ridge,
            STALE_CLASSES: self.stale_classes,
        }
        return (
            f"The head is within {rounded_up(self.distance)} of the minimum over {self.rows:,} "
            f"retained rows, its loss at most {rounded_up(self.excess_loss)} above.",
            *(sentence for sentence, applies in optional.items() if applies),
            f"Computed from {self.rows:,} retained rows (clients: {self.clients:,}).",
            "This is a deterministic bound, not (epsilon, delta) removal.",
            "Nothing is said about the encoder, earlier heads, copies, or whether these were all "
            "the rows.",
        )

    def to_dict(self) -> dict[str, Json]:
        return {**asdict(self), "statements": list(self.statements)}

    def noise_for(self, epsilon: float, delta: float) -> float:
        """The deviation of Gaussian noise that would hide `distance` (Balle and Wang, 2018).

        For comparison: the least s with
        Phi(D/2s - epsilon s/D) - e^epsilon Phi(-D/2s - epsilon s/D) <= delta. No noise is added.
        """
        if not (0 < epsilon < math.inf and 0 < delta < 1):
            raise InputError(
                f"epsilon must be above 0 and delta between 0 and 1; found {epsilon:g} and "
                f"{delta:g}. Choose for example 1 and 1e-5."
            )
        low = high = 1.0
        while _leak(high, epsilon) > delta:
            high *= 2
        while _leak(low, epsilon) <= delta:
            low /= 2
        while high > low * (1 + 1e-9):
            middle = math.sqrt(low * high)
            if _leak(middle, epsilon) > delta:
                low = middle
            else:
                high = middle
        return high * self.distance


def _leak(noise: float, epsilon: float) -> float:
    """The least delta of Gaussian noise of this deviation on a distance of 1."""
    from scipy.special import log_ndtr, ndtr

    inside = float(log_ndtr(-0.5 / noise - epsilon * noise))
    return float(ndtr(0.5 / noise - epsilon * noise)) - math.exp(epsilon + inside)


def rounded_up(value: float, digits: int = 2) -> str:
    """An upper bound in a few digits, never below it."""
    return f"{Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(value)):.{digits}g}"


def rounded_down(value: float, digits: int = 2) -> str:
    """A lower bound in a few digits, never above it."""
    return f"{Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(value)):.{digits}g}"


@record("query/row-scale")
@dataclass(frozen=True)
class RowScale:
    """Sums of squares of rows and of targets, the longest row, and which classes have rows."""

    def answer(self, client: ClientData) -> Arrays:
        squares = np.zeros(2)
        classes = np.zeros(client.model.classes)
        longest = 0.0
        for block in client.rows.blocks():
            X = np.asarray(block.rows, np.float64)
            lengths = np.einsum("nd,nd->n", X, X) + 1
            by_class = block.row_weights @ np.square(block.target_matrix)
            squares += np.array([block.row_weights @ lengths, by_class.sum()])
            classes += by_class
            longest = max(longest, float(lengths.max()))
        return {
            "squares": squares,
            "longest": np.array([longest]),
            "classes": classes,
            "weight": np.array([client.weight]),
        }

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"squares": (2,), "longest": (1,), "classes": (model.classes,), **WEIGHT}


def certify(
    state: State,
    retained: Federation,
    *,
    test: EmbeddingSet | None = None,
    class_labels: bool = True,
) -> Certificate:
    """What is proven about a state and the rows of these clients.

    By kept statistics, which ask nobody; else by a gradient round, where every parameter is
    penalized; else by the clients' statistics, which squares with a free intercept need.
    class_labels: outputs are classes, of which each should have a row.
    """
    if not state.model.is_linear:
        raise InputError(
            "A certificate needs a convex loss; a conventional network has none. Compare it with a "
            "retrained one (evaluate), or linearize it (--linearize)."
        )
    bounds, evidence, lacks_classes = _prove(state, retained)
    return Certificate(
        rows=sum(state.clients.values()),
        clients=len(state.clients),
        ridge=state.ridge,
        distance=bounds.distance,
        excess_loss=bounds.excess_loss,
        test_rows=0 if test is None else len(test),
        certified_rows=0 if test is None else bounds.certified_rows(test),
        residual=bounds.residual,
        allowance=bounds.allowance,
        curvature=bounds.curvature,
        evidence=evidence,
        stale_ridge=state.ridge_choice.stale,
        stale_classes=class_labels and lacks_classes,
    )


def _prove(state: State, retained: Federation) -> Proof:
    model = state.model
    kept = state.get(KeptStatistics)
    squares = isinstance(model.loss, Squares)
    if squares and kept is not None:
        return _prove_by_statistics(state, kept)
    if dict(retained.clients) != dict(state.clients) or retained.model != model:
        raise InputError(
            f"A certificate asks the state's {len(state.clients)} clients about their "
            f"{sum(state.clients.values())} rows of {model.classes} classes; found "
            f"{len(retained.clients)} clients with {retained.rows} rows of "
            f"{retained.model.classes}. Pass the federation of the retained rows."
        )
    if not isinstance(model, LinearModel):
        return _prove_linearized(state, retained)
    penalized = bool((model.penalized == 1).all()) and state.ridge > 0
    if not squares or (penalized and retained.has_rows):
        return _prove_by_gradients(state, retained)
    return _prove_by_statistics(state, KeptStatistics(collect_stats(retained)))


def _prove_by_statistics(state: State, kept: KeptStatistics) -> Proof:
    """For squares, from the sums of the retained clients."""
    model = state.model
    counts = {name: part.count for name, part in kept.parts.items()}
    if not isinstance(model, LinearModel) or counts != dict(state.clients):
        raise InputError(
            f"Statistics of a linear model's {len(state.clients)} retained clients and "
            f"{sum(state.clients.values())} rows are needed; found those of {len(counts)} and "
            f"{sum(counts.values())}. Unlearn by a method that renews them."
        )
    bounds = bounds_from_statistics(
        kept.total,
        state.params,
        model=model,
        ridge=state.ridge,
        summing=summing_error(kept.parts.values()),
    )
    return bounds, "statistics", bool((kept.total.target_squares == 0).any())


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is refused
def _prove_by_gradients(state: State, retained: Federation) -> Proof:
    """For a loss with a ridge on every parameter: a gradient round, a few products if need be."""
    if not (state.model.penalized == 1).all():
        raise InputError(
            "Gradients certify where every parameter is penalized; the intercept is free. "
            "Train with --intercept penalized."
        )
    rounds = _Rounds.of(state, retained)
    gradient = rounds.loss.gradient(state.params)
    bounds = strongly_convex(
        state.params,
        gradient,
        allowance=rounds.gradient_error(gradient),
        curvature=state.ridge * (1 - gamma(4)),
    )
    if bounds.distance > NEAR * float(np.linalg.norm(state.params)):
        bounds = rounds.sharpened(bounds, gradient)
    return bounds, "gradients", rounds.lacks_classes


def _prove_linearized(state: State, retained: Federation) -> Proof:
    """By a gradient round in float64 over the network's linearization."""
    if not state.ridge > 0:
        raise InputError(
            "A certificate of a linearized network needs a ridge above 0; found 0. Pass --ridge."
        )
    bounds = LinearizedBounds.of(retained, state.params, state.ridge).stated
    return bounds, "linearized", bounds.lacks_classes


@dataclass(frozen=True, eq=False)
class _Rounds:
    """What the retained clients answer about a state, and how far rounding may put it off.

    row_square, target_square: means over the rows. operations: those of the longest sum.
    """

    state: State
    loss: MeanLoss
    row_square: float
    target_square: float
    longest_row: float
    operations: float
    lacks_classes: bool

    @classmethod
    def of(cls, state: State, retained: Federation) -> _Rounds:
        answers = [answer.arrays for answer in retained.ask(RowScale())]
        weight = sum(float(arrays["weight"][0]) for arrays in answers)
        squares = np.sum([arrays["squares"] for arrays in answers], axis=0) / weight
        longest = max(float(arrays["longest"][0]) for arrays in answers)
        classes = np.sum([arrays["classes"] for arrays in answers], axis=0)
        rows = max(retained.clients.values())
        operations = sum(state.params.shape) + min(rows, BLOCK) + rows / BLOCK + len(answers) + 32
        return cls(
            state,
            MeanLoss(retained, state.ridge),
            float(squares[0]),
            float(squares[1]),
            math.sqrt(longest),
            operations,
            bool((classes == 0).any()),
        )

    def gradient_error(self, gradient: Array) -> float:
        """Z^T (f'(Z W) - Y) / n: scores are off by gamma |z| |W|, a softmax by twice that."""
        size = float(np.linalg.norm(self.state.params))
        row = math.sqrt(self.row_square)
        sums = row * (2 * row * size + 4 * math.sqrt(self.target_square))
        penalty = self.state.ridge * size + float(np.linalg.norm(gradient))
        return SLACK * (gamma(self.operations) * sums + gamma(8) * penalty)

    def product_error(self, vector: Array) -> float:
        """The same of H v: a softmax's curvature is off by gamma (5 + 6 |z| |W|)."""
        size = float(np.linalg.norm(vector))
        growth = 8 * (1 + self.longest_row * float(np.linalg.norm(self.state.params)))
        data = gamma(self.operations) * self.row_square * growth
        return SLACK * size * (data + gamma(8) * (self.row_square + self.state.ridge))

    def sharpened(self, bounds: Bounds, gradient: Array) -> Bounds:
        """The same with a few rounds of conjugate gradients towards the minimum."""
        step = self._newton_step(gradient)
        product = self.loss.product(self.state.params, step)
        step_size = float(np.linalg.norm(step))
        error = self.product_error(step)
        remainder = float(np.linalg.norm(gradient - product)) + error + bounds.allowance
        rounding = gamma(2 * step.size + 8) * step_size
        energy = float((step * product).sum()) + error * step_size
        energy += rounding * float(np.linalg.norm(product))
        if isinstance(self.state.model.loss, Squares):
            return quadratic(bounds, step, remainder=remainder, energy=math.sqrt(max(energy, 0.0)))
        slope = float((step * (2 * gradient - product)).sum())
        slope += (error + 2 * bounds.allowance) * step_size
        slope += rounding * (2 * float(np.linalg.norm(gradient)) + float(np.linalg.norm(product)))
        square = slope + remainder * remainder / bounds.curvature
        decrement = SLACK * math.sqrt(max(square, 0.0))
        return self_concordant(bounds, decrement=decrement, longest_row=self.longest_row)

    def _newton_step(self, gradient: Array) -> Array:
        """Softmax couples the classes, so that all parameters are one column."""
        params = self.state.params
        shape = params.shape if isinstance(self.state.model.loss, Squares) else (params.size, 1)
        kept = self.state.get(KeptStatistics)
        inverse: Map = identity
        if kept is not None:
            inverse = whitener(self.state.model, kept.total, self.state.ridge)
        solution = conjugate_gradient(
            lambda vector: self.loss.product(params, vector.reshape(params.shape)).reshape(shape),
            gradient.reshape(shape),
            steps=PRODUCTS,
            tolerance=SOLVED,
            precondition=lambda vector: inverse(vector.reshape(params.shape)).reshape(shape),
        )
        return solution.value.reshape(params.shape)
