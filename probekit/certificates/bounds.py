"""How far parameters of a linear model are from the minimum over its rows, rounding included.

With g the gradient of the mean loss there, penalty included, and c at most the least curvature:
|w - w*| <= |g| / c and L(w) - L(w*) <= |g|^2 / 2c.

For squares with Hessian H and any step s, let r = g - H s. Then w* = w - s - H^-1 r, so that
|w - w*| <= |s| + |r| / c, L(w) - L(w*) = 1/2 <g, H^-1 g> <= 1/2 (|s|_H + |r| / sqrt c)^2, and the
minimum's scores of a row z are those of w - s up to |z| |r| / c.

For softmax, whose third derivative is bounded by its second (Bach, 2010): with R the longest row,
M = R sqrt(2 / ridge) and nu^2 = <g, H^-1 g>, if M nu < 1, |w - w*|_H <= t = -log(1 - M nu) / M and
so |w - w*| <= t / sqrt ridge and L(w) - L(w*) <= nu t.

All sums are rounded: gamma_m = m u / (1 - m u) bounds the relative error of m operations. Rows are
summed in blocks, so m is about the rows of a block plus the number of blocks and clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.errors import SolverError
from probekit.linear.model import LinearModel
from probekit.linear.stats import STACK_ROWS, SufficientStats, block_rows, with_ones

UNIT = 2.0**-53
SLACK = 1 + 2.0**-4
"""Claims exceed what was derived by this much, so that a verifier's arithmetic confirms them."""
PROVABLE = 1 - 2.0**-10
"""The share of a computed eigenvalue that a Cholesky factor is asked to confirm."""


def gamma(operations: float) -> float:
    """The relative error that so many roundings add up to."""
    return operations * UNIT / (1 - operations * UNIT)


def summing_error(parts: Collection[SufficientStats]) -> float:
    """The error of summed statistics, relative to the sums of absolute values.

    A root has that of its Householder reflections (Higham, Accuracy and Stability, Lemma 19.3).
    """
    products = 0.0
    additions = 0.0
    reflections = 0
    for part in parts:
        if part.root is None:
            block = block_rows(part.columns - 1)
            products = max(products, min(part.count, block) + part.count / block)
            additions += 1
        else:
            products = max(products, STACK_ROWS, len(part.root))
            additions += 2 * len(part.root) / STACK_ROWS  # two neighbors are more than a full stack
            reflections = max(reflections, len(part.root))
    rooted = 3 * reflections * gamma(10 * reflections)
    return gamma(products + additions + 16) + rooted


@dataclass(frozen=True, eq=False)
class Bounds:
    """The minimum is within `drift` of params - step; every number is on the safe side.

    residual: at least |g|, of which `allowance` is for rounding.
    curvature: at most the least eigenvalue of the Hessian.
    distance: at least |w - w*|.
    excess_loss: at least L(w) - L(w*).
    """

    params: Array
    step: Array
    drift: float
    residual: float
    allowance: float
    curvature: float
    distance: float
    excess_loss: float

    def certified_rows(self, rows: EmbeddingSet) -> int:
        """How many rows have the same class by the parameters and by the minimum."""
        return sum(int(self.keeps_class(block).sum()) for block in rows.blocks())

    def keeps_class(self, rows: EmbeddingSet) -> NDArray[np.bool_]:
        """Whether the top score leads every other at the parameters and at the minimum.

        A change of length `drift` moves the difference of two scores by at most sqrt(2) |z| drift.
        """
        Z = with_ones(np.asarray(rows.rows))
        lengths = np.linalg.norm(Z, axis=1, keepdims=True) * SLACK
        size = float(np.linalg.norm(self.params) + np.linalg.norm(self.step))
        rounding = 4 * gamma(Z.shape[1] + 4) * lengths * size
        scores = Z @ self.params
        top = scores.argmax(axis=1)[:, None]
        safe = _leads(scores, top) > rounding
        moved = math.sqrt(2) * lengths * self.drift + rounding
        safe &= _leads(scores - Z @ self.step, top) > moved
        np.put_along_axis(safe, top, True, axis=1)
        return np.asarray(safe.all(axis=1))


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is refused
def bounds_from_statistics(
    stats: SufficientStats, params: Array, *, model: LinearModel, ridge: float, summing: float
) -> Bounds:
    """For squares, whose Hessian follows from the sums; `summing` is the sums' relative error.

    The weight n is such a sum too: hence 2 `summing`.
    """
    size = stats.columns
    hessian = stats.gram / stats.weight + ridge * np.diagflat(model.penalized)
    moment = stats.moment / stats.weight
    gradient = hessian @ params - moment
    row_square = float(np.trace(stats.gram)) / stats.weight
    target_square = float(stats.target_squares.sum()) / stats.weight
    hessian_size = float(np.linalg.norm(hessian))
    hessian_error = 2 * summing * row_square + gamma(4) * hessian_size
    products = hessian_size * float(np.linalg.norm(params)) + float(np.linalg.norm(moment))
    allowance = SLACK * (
        hessian_error * float(np.linalg.norm(params))
        + 2 * summing * math.sqrt(row_square * target_square)
        + gamma(size + 4) * products
    )
    if not float(np.linalg.norm(gradient)) + allowance < math.inf:
        raise SolverError(
            f"Squares of rows and parameters must be finite; those of {stats.count} rows are "
            "not. Scale the embeddings."
        )
    floor = ridge * float(model.penalized.min())
    curvature = least_curvature(hessian, hessian_error, floor=floor)
    convex = strongly_convex(params, gradient, allowance=allowance, curvature=curvature)
    step = _newton_step(hessian, gradient)
    step_size = float(np.linalg.norm(step))
    rounding = gamma(size + 4) * (hessian_size * step_size + float(np.linalg.norm(gradient)))
    remainder = float(np.linalg.norm(gradient - hessian @ step))
    remainder += rounding + hessian_error * step_size + allowance
    energy = float((step * (hessian @ step)).sum())
    energy += (hessian_error + gamma(2 * size + 8) * hessian_size) * step_size**2
    return quadratic(convex, step, remainder=remainder, energy=math.sqrt(max(energy, 0.0)))


def strongly_convex(
    params: Array, gradient: Array, *, allowance: float, curvature: float
) -> Bounds:
    """From the gradient's norm and the least curvature alone."""
    residual = float(np.linalg.norm(gradient)) * SLACK + allowance
    if not curvature > 0:
        raise SolverError(
            "A certificate needs curvature in every direction that rounding cannot explain; found "
            f"{curvature:g}. Raise the ridge (--ridge), or penalize the intercept."
        )
    distance = SLACK * residual / curvature
    excess = SLACK * residual * (residual / curvature) / 2
    return Bounds(
        params, np.zeros_like(params), distance, residual, allowance, curvature, distance, excess
    )


def quadratic(bounds: Bounds, step: Array, *, remainder: float, energy: float) -> Bounds:
    """The same for squares where a step s is known: |g - H s| <= remainder, |s|_H <= energy."""
    drift = SLACK * remainder / bounds.curvature
    if not drift < bounds.drift:
        return bounds
    distance = SLACK * float(np.linalg.norm(step)) + drift
    root = SLACK * (energy + remainder / math.sqrt(bounds.curvature))
    return replace(
        bounds,
        step=step,
        drift=drift,
        distance=min(distance, bounds.distance),
        excess_loss=min(root * root / 2, bounds.excess_loss),
    )


def self_concordant(bounds: Bounds, *, decrement: float, longest_row: float) -> Bounds:
    """The same for softmax where nu <= decrement; `bounds` where nothing better follows."""
    growth = SLACK * longest_row * math.sqrt(2 / bounds.curvature)
    if not growth * decrement < 1:
        return bounds
    length = -math.log1p(-growth * decrement) / growth
    distance = min(SLACK * length / math.sqrt(bounds.curvature), bounds.distance)
    excess = min(SLACK * decrement * length, bounds.excess_loss)
    return replace(bounds, drift=distance, distance=distance, excess_loss=excess)


def least_curvature(hessian: Array, error: float, *, floor: float) -> float:
    """At most the least eigenvalue of what `hessian` is up to `error`, which is `floor` or more.

    If a Cholesky factor of A exists in floating point, no eigenvalue of A is below
    -gamma_(p+1) trace(A).
    """
    guess = float(np.linalg.eigvalsh(hessian)[0]) * PROVABLE
    floor *= 1 - gamma(4)
    try:
        np.linalg.cholesky(hessian - guess * np.eye(len(hessian)))
    except np.linalg.LinAlgError:
        return floor
    return max(guess - error - SLACK * gamma(len(hessian) + 4) * float(np.trace(hessian)), floor)


def a_priori_distance(
    server: SufficientStats,
    retained: SufficientStats,
    params: Array,
    *,
    model: LinearModel,
    ridge: float,
) -> float:
    """What the distance after a Newton step with the server's curvature cannot exceed, beforehand.

    |G/n - G_p/n_p| |g| / (c_p c), with g the retained gradient at `params`, and c_p and c the least
    curvatures. Rounding is not allowed for.
    """
    penalty = ridge * np.diagflat(model.penalized)
    server_gram = server.gram / server.weight
    retained_gram = retained.gram / retained.weight
    hessian = retained_gram + penalty
    gradient = hessian @ params - retained.moment / retained.weight
    server_curvature = float(np.linalg.eigvalsh(server_gram + penalty)[0])
    curvature = float(np.linalg.eigvalsh(hessian)[0])
    if not min(server_curvature, curvature) > 0:
        return math.inf
    difference = float(np.linalg.norm(retained_gram - server_gram, 2))
    return difference * float(np.linalg.norm(gradient)) / curvature / server_curvature


def _newton_step(hessian: Array, gradient: Array) -> Array:
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    try:
        return np.ascontiguousarray(cho_solve(cho_factor(hessian, lower=True), gradient))
    except LinAlgError:
        return np.zeros_like(gradient)


def _leads(scores: Array, top: NDArray[np.int64]) -> Array:
    """By how much the top score leads each."""
    return np.asarray(np.take_along_axis(scores, top, axis=1) - scores)
