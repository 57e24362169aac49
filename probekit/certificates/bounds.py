"""How far a head can be from the minimum of the retained loss, rounding errors included.

The retained loss is 1/2 <W, H W> - <W, B> + const with minimum W*. At any W its gradient g = H W - B = H (W - W*)
gives |W - W*| <= |g| / smallest curvature, loss - minimum = 1/2 <g, H^-1 g>, and for a row x
|x (W - W*)|_k <= sqrt(x H^-1 x) sqrt(g_k H^-1 g_k). Every number below is an upper bound of what exact
arithmetic on the rows (as the design sees them) would give: H and B come from rounded sums, the products
round, and so does the eigenvalue. gamma(m) = m u / (1 - m u) bounds the relative error of m operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.lapack import linalg
from probekit.linear.norms import column_norms, norm
from probekit.linear.ridge import penalty_of
from probekit.linear.roots import STACK_ROWS
from probekit.linear.statistics import BLOCK_BYTES, FAST_ROWS
from probekit.linear.system import Standardisation, class_weights, standardisation_of
from probekit.linear.targets import TargetStats

UNIT = float(np.finfo(np.float64).eps) / 2
TINY = 2.0**-1000
"""What underflow can hide."""
SMALLEST = 2.0**-960
UNBOUNDED = (
    "The rows' squares add up to {:.3g}: float64 cannot bound what it does to such numbers, or to such a ridge. "
    "Scale the embeddings."
)
FAST_UNIT = float(np.finfo(np.float32).eps) / 2

Array = NDArray[np.float64]


def gamma(operations: float, unit: float = UNIT) -> float:
    """The relative error that so many roundings can add up to."""
    product = operations * unit
    if product >= 0.5:
        raise InputError(f"Rounding errors of {operations:g} operations cannot be bounded. Use float64 sums.")
    return product / (1 - product)


def summing_error(arithmetic: str, dimension: int, rows: int, parts: int) -> float:
    """The relative error, against the sum of absolute products, of what is summed over blocks and clients."""
    if arithmetic == "exact":
        return 0.0
    size = 4 if arithmetic == "fast" else 8
    block = max(64, BLOCK_BYTES // (size * dimension))
    if arithmetic == "fast":
        # the shift by the mean makes products up to 8 times as large
        return 8 * gamma(min(rows, block, FAST_ROWS) + 4, FAST_UNIT) + gamma(rows / FAST_ROWS + parts + 4)
    return gamma(min(rows, block) + rows / block + parts + 4)


def root_error(rows: int) -> float:
    """The relative error of R^T R against the sum of squares, for the triangular factor of so many rows.

    Each of `rows` Householder reflections of that length moves a column by at most gamma(10 rows) times its norm
    (Higham, Accuracy and Stability, Lemma 19.3), and R^T R by twice that.
    """
    return 2 * rows * gamma(10 * rows)


@dataclass(frozen=True, eq=False)
class RetainedQuadratic:
    """The retained loss from statistics, in the parameters of the head's least-squares problem.

    `floor` is a curvature that every direction has whatever the rows are (0: none is known).
    `curvature_error` and `linear_error` bound the rounding in `curvature` and `linear` (Frobenius). `centre` is
    taken off rows before they meet the parameters (only for a centred head without intercept).
    """

    curvature: Array
    linear: Array
    floor: float
    curvature_error: float
    linear_error: float
    centre: Array | None = None


def quadratic(
    stats: ClientStats, objective: Mapping[str, Any], *, parts: int = 1, roots: int = 0, term: Array | None = None
) -> RetainedQuadratic:
    """The retained loss of summed statistics by a certificate's `objective` (ridge, scaling, view, class_weight).

    parts: how many clients' sums were added. roots: the most rows that one sent as a root.
    term: a linear term, in sum scaling, that the loss has besides.
    """
    largest = float(np.abs(stats.gram).max(initial=0.0))
    if largest and not SMALLEST < largest < 1 / SMALLEST:
        raise InputError(UNBOUNDED.format(largest))
    design, weights = stats.design, class_weights(stats, objective["class_weight"])
    chosen = standardisation_of(stats, objective["view"])
    gram = stats.total_gram if (weights == 1).all() else np.tensordot(weights, stats.gram, axes=1)
    moment = stats.moment * weights
    masses = np.array([stats.count]) if isinstance(stats, TargetStats) else stats.class_counts * weights
    weight, centre = float(masses.sum()), None
    if design.intercept == "none" and chosen.centre.any():
        centre = chosen.centre
        gram, moment = _centred(gram, moment, centre, counts=masses)
    mean_ridge = penalty_of(objective["ridge"], objective["scaling"], weight) / weight
    curvature = gram / weight + mean_ridge * _penalty(design, chosen)
    if not np.isfinite(curvature).all():
        raise InputError(UNBOUNDED.format(largest))
    linear = (moment if term is None else moment - term) / weight
    added = 0.0 if term is None else gamma(4) * norm(term) / weight
    # means, and classes with weights, are sums over the classes
    summing = summing_error(design.arithmetic, design.dimension, stats.count, parts) + gamma(design.classes + 16)
    if roots and not design.grid:
        summing += gamma(min(STACK_ROWS, stats.count)) + root_error(roots)
    energy = float(np.trace(stats.total_gram)) * float(weights.max()) / weight
    target_energy = (
        float(np.sum(stats.energy if isinstance(stats, TargetStats) else stats.class_counts * weights**2)) / weight
    )
    penalised = design.intercept != "free" and chosen.name == "none"
    return RetainedQuadratic(
        curvature,
        linear,
        floor=mean_ridge * (1 - gamma(16)) if penalised else 0.0,
        curvature_error=summing * energy * (1 if centre is None else 4)
        + gamma(4) * norm(curvature)
        + _penalty_error(design, chosen, mean_ridge, rows=stats)
        + TINY,
        linear_error=summing * math.sqrt(energy * target_energy) * (1 if centre is None else 2) + added,
        centre=centre,
    )


@dataclass(frozen=True)
class Residual:
    """|g| as computed, and how much rounding may have hidden; for all classes together and for each."""

    norm: float
    rounding: float
    by_class: tuple[float, ...]
    rounding_by_class: tuple[float, ...]

    @property
    def bound(self) -> float:
        """What |g| cannot exceed."""
        return self.norm + self.rounding

    @property
    def class_bounds(self) -> Array:
        """What no class's |g_k| can exceed."""
        return np.asarray(np.add(self.by_class, self.rounding_by_class))


def residual(loss: RetainedQuadratic, params: Array) -> Residual:
    """The gradient's norms at these parameters, from statistics."""
    products = loss.curvature @ params - loss.linear
    sizes = np.abs(loss.curvature) @ np.abs(params) + np.abs(loss.linear)
    rounding = gamma(len(params) + 4) * column_norms(sizes)
    rounding += loss.curvature_error * column_norms(params) + loss.linear_error
    return _residual(products, rounding)


def asked_residual(
    gradient: Array,
    params: Array,
    *,
    problem: Any,
    ridge: float,
    counts: Sequence[int],
    scales: Mapping[str, float],
    term: Array | None = None,
) -> Residual:
    """The norms of a gradient that clients were asked for; of `scales`, `energy` is the sum of squares of their rows,
    `target_energy` that of their targets; `term` is a linear term (in sum scaling) that was added to it.

    X^T (X W - Y) rounds by at most gamma(d + rows) |X|^T (|X| |W| + |Y|), and that is at most |X|^2 |W| + |X| |Y|.
    """
    columns, energy, target_energy = problem.shape[0], scales["energy"], scales["target_energy"]
    rows, block = sum(counts), max(64, BLOCK_BYTES // (8 * columns))
    operations = columns + min(max(counts), block) + max(counts) / block + len(counts) + 16
    factor = summing_error(problem.arithmetic, columns, rows, len(counts)) + gamma(operations)
    data = energy / rows * column_norms(params) + math.sqrt(energy / rows * target_energy / rows)
    added = ridge * column_norms(params) + (0.0 if term is None else column_norms(term) / rows)
    return _residual(gradient, factor * data + gamma(8) * (column_norms(gradient) + added))


@dataclass(frozen=True)
class SmallestCurvature:
    """The smallest curvature that was used, and what guarantees it: "ridge" or "statistics"."""

    value: float
    source: str


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the retained loss at some parameters: the gradient, the smallest curvature, perhaps all (real
    targets: `groups`, the losses of targets that the same rows know). `gradient` is as clients answered it."""

    residual: Residual
    curvature: SmallestCurvature | None
    loss: RetainedQuadratic | None = None
    groups: tuple[tuple[NDArray[np.int64], RetainedQuadratic], ...] = ()
    gradient: Array | None = None

    @property
    def weights(self) -> float | None:
        """The bound on the distance of parameters."""
        if self.curvature is None or not self.curvature.value > 0:
            return None
        return self.residual.bound / self.curvature.value


def convexity(loss: RetainedQuadratic) -> SmallestCurvature:
    """The smallest curvature, less its rounding error, or the ridge's where that is more."""
    values = np.linalg.eigvalsh(loss.curvature)
    room = 4 * (len(values) + 4) * UNIT * float(np.trace(loss.curvature)) + 16 * len(values) * UNIT * float(values[-1])
    sure = float(values[0]) - loss.curvature_error - room
    sure *= 1 - gamma(64)
    return SmallestCurvature(sure, "statistics") if sure > loss.floor else SmallestCurvature(loss.floor, "ridge")


@dataclass(frozen=True, eq=False)
class Factor:
    """H^-1 as a form: v -> an upper bound of v H^-1 v, for each column.

    With L L^T the computed factorisation, L L^T <= H + t I <= (1 + t / c) H for c the smallest curvature and t
    what rounding did; a triangular solve's relative error is at most gamma(d) |L| / sqrt(c - t).
    """

    lower: Array
    inflation: float

    @classmethod
    def of(cls, loss: RetainedQuadratic, curvature: float) -> Factor | None:
        """The factor, or None where rounding is as large as the smallest curvature."""
        trace, size = float(np.trace(loss.curvature)), len(loss.curvature)
        strayed = loss.curvature_error + gamma(size + 2) * trace
        if curvature <= 2 * strayed:
            return None
        try:
            lower = linalg.cholesky(loss.curvature, lower=True)
        except linalg.LinAlgError:
            return None
        solving = gamma(size) * math.sqrt(trace / (curvature - strayed))
        if solving >= 0.5:
            return None
        return cls(lower, (1 + strayed / curvature) * (1 + 2 * solving) ** 2 * (1 + gamma(size + 4)))

    def forms(self, v: Array) -> Array:
        """Upper bounds of v_k H^-1 v_k for each column of v."""
        solved = linalg.solve_triangular(self.lower, v, lower=True)
        return np.asarray(np.square(solved).sum(axis=0) * self.inflation)


def excess_loss(gradient_bound: Residual, curvature: float, *, loss: RetainedQuadratic | None, params: Array) -> float:
    """How far the retained loss can lie above its minimum: 1/2 <g, H^-1 g>, or |g|^2 / (2 smallest curvature)."""
    simple = gradient_bound.bound / curvature * gradient_bound.bound / 2
    factor = None if loss is None else Factor.of(loss, curvature)
    if loss is None or factor is None:
        return simple
    root = math.sqrt(float(factor.forms(loss.curvature @ params - loss.linear).sum()))
    hidden = norm(np.asarray(gradient_bound.rounding_by_class)) / math.sqrt(curvature)
    return min(simple, (root + hidden) * (root + hidden) / 2) * (1 + gamma(16))


def _penalty(design: Design, standardisation: Standardisation) -> Array:
    """The matrix of the penalty in the head's own parameters: of (scale coefficients, bias at the centre)."""
    result = np.zeros((design.columns, design.columns))
    size = design.dimension
    np.einsum("ii->i", result)[:size] = standardisation.scale**2
    if design.intercept == "penalised":
        last = np.append(standardisation.centre, 1.0)
        result += np.outer(last, last)
    return result


def _penalty_error(design: Design, standardisation: Standardisation, ridge: float, *, rows: ClientStats) -> float:
    """How far rounding in means and variances may take the penalty off."""
    if standardisation.name == "none":
        return 0.0
    square = float(np.trace(rows.total_gram[: design.dimension, : design.dimension])) / rows.count
    return ridge * gamma(4 * design.classes + 64) * (square + 1)


def _centred(gram: Array, moment: Array, centre: Array, *, counts: Array) -> tuple[Array, Array]:
    sums = moment.sum(axis=1)
    shift = np.outer(sums, centre)
    return (gram - (shift + shift.T) + counts.sum() * np.outer(centre, centre), moment - np.outer(centre, counts))


def _residual(products: Array, rounding: Array) -> Residual:
    columns = column_norms(products)
    rounding = rounding + gamma(len(products) + len(columns) + 32) * columns  # norms round too
    return Residual(norm(products), norm(rounding), tuple(columns.tolist()), tuple(rounding.tolist()))
