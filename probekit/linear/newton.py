"""Penalized log loss of rotated rows, minimized by Newton's method until a gap is certified.

    minimize over W, b   F = sum_i w_i loss(W^T x_i + b) + penalty/2 |W|^2      with sum_i w_i = 1

Truncated Newton with preconditioned conjugate gradients (Dembo and Steihaug, 1983), where the rows'
second moments are diagonal and the Hessian is near their Kronecker product with the mean curvature
(Boehning, 1992, with the curvature at the iterate). Products with the Hessian run in float32,
gradients too while that is accurate enough; what is certified is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import device

from probekit.errors import InputError
from probekit.linear.likelihood import Likelihood
from probekit.linear.rotation import AnyArray, RotatedRows, row_blocks, squared_norm

NEWTON_STEPS = 60
CG_STEPS = 400
LINE_SEARCH_STEPS = 10
ARMIJO = 1e-4
CG_REDUCTION = 0.02
CG_SHARE = 0.3
"""Of the gradient that is small enough, which the residual of a step may have."""
ACTIVE_CURVATURE = 0.02
"""Rows below this share of the mean curvature are left out of products with the Hessian."""
ACTIVE_ROWS = 0.85
"""With a larger share of rows left, copying them does not pay."""
FLOOR = 1e-8
ROUNDING = {False: 1e-6, True: 1e-13}
"""Of an objective, relative: in float32 and in float64."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The rows with targets and weights.

    weights: (n,) float64 of sum 1.
    shares: (k,), the weighted means of the targets; sums: (p, k), those of rows times targets.
    mean: (p,), the weighted mean of the rotated rows.
    kept: (n, k) float32, what the curvature needs, overwritten by every evaluation.
    """

    rows: RotatedRows
    likelihood: Likelihood
    targets: AnyArray
    weights: AnyArray
    shares: AnyArray
    sums: AnyArray
    mean: AnyArray
    kept: AnyArray

    @classmethod
    def of(
        cls,
        rows: RotatedRows,
        likelihood: Likelihood,
        targets: AnyArray,
        weights: AnyArray,
        buffer: AnyArray,
    ) -> Problem:
        """buffer: float32, n * k or more numbers; problems may share it."""
        xp = rows.xp
        n, k = rows.count, likelihood.outputs
        weights = weights / xp.sum(weights)
        sums = xp.zeros((rows.columns, k), dtype=xp.float64, device=device(weights))
        shares = xp.zeros_like(sums[:1, :])
        mean = xp.zeros_like(rows.center)
        for block in row_blocks(n, max(rows.columns, k)):
            x = rows.block(block)
            ones = xp.ones_like(x[:, :1])
            sums += likelihood.totals(targets[block], weights[block], x)
            shares = shares + likelihood.totals(targets[block], weights[block], ones)
            mean = mean + weights[block] @ x
        problem = cls(
            rows=rows,
            likelihood=likelihood,
            targets=targets,
            weights=weights,
            shares=shares[0, :],
            sums=rows.map.T @ sums,
            mean=rows.map.T @ mean,
            kept=xp.reshape(buffer[: n * k], (n, k)),
        )
        problem._check_shares()
        return problem

    def _check_shares(self) -> None:
        xp = self.rows.xp
        constant = (self.shares <= 0) | (self.shares >= 1)
        if bool(xp.any(constant)):
            number = int(xp.argmax(xp.astype(constant, xp.int64)))
            raise InputError(
                "Logistic regression needs rows of every class, and both values of every label; "
                f"found none of class or label {number} with a weight above 0. Leave it out."
            )

    def blocks(self) -> Iterator[slice]:
        return row_blocks(self.rows.count, max(self.rows.columns, self.likelihood.outputs))

    def start(self) -> AnyArray:
        """No weights, and the intercept that is best then."""
        xp = self.rows.xp
        intercept = self.likelihood.intercept(self.shares)
        if not self.rows.is_free:
            intercept = xp.zeros_like(intercept)
        return xp.concat([xp.zeros_like(self.sums), intercept[None, :]])


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point, its loss and gradient.

    theta: weights of rotated columns (p, k) above an intercept (1, k), which is 0 if not free.
    """

    theta: AnyArray
    loss: float
    loss_gradient: AnyArray
    penalty: float
    in_float64: bool

    @property
    def objective(self) -> float:
        return self.loss + 0.5 * self.penalty * squared_norm(self.theta[:-1, :])

    @property
    def gradient(self) -> AnyArray:
        gradient = self.loss_gradient + self.penalty * self.theta
        gradient[-1, :] = self.loss_gradient[-1, :]
        return gradient

    @property
    def natural_gap(self) -> float:
        """|gradient in W|^2 / (2 penalty): the duality gap once the intercept is optimal."""
        return squared_norm(self.gradient[:-1, :]) / (2 * self.penalty)


def evaluate(problem: Problem, theta: AnyArray, *, penalty: float, in_float64: bool) -> Iterate:
    """Loss and gradient at theta; `problem.kept` is what the Hessian there needs.

    float64 reads the rows as given, float32 the rotated copy at theta rounded to float32.
    """
    rows = problem.rows
    xp = rows.xp
    dtype = xp.float64 if in_float64 else xp.float32
    if in_float64:
        W = rows.map @ theta[:-1, :]
        b = theta[-1, :]
    else:
        rounded = xp.astype(theta, dtype)
        theta = problem.likelihood.project(xp.astype(rounded, xp.float64))
        W = rounded[:-1, :]
        b = rounded[-1, :]
    loss = 0.0
    gradient = xp.zeros_like(theta)
    for block in problem.blocks():
        x = rows.block(block) if in_float64 else rows.rotated[block, :]
        weights = xp.astype(problem.weights[block], dtype)
        scores = x @ W
        scores += b
        losses, slopes, kept = problem.likelihood.losses(scores, problem.targets[block])
        problem.kept[block, :] = kept
        loss += float(xp.sum(xp.astype(losses, xp.float64) * problem.weights[block]))
        slopes *= weights[:, None]
        gradient[:-1, :] += x.T @ slopes
        gradient[-1, :] += xp.sum(slopes, axis=0, dtype=xp.float64)
    if in_float64:
        gradient[:-1, :] = rows.map.T @ gradient[:-1, :]
    if not rows.is_free:
        gradient[-1, :] = 0.0
    return Iterate(theta, loss, problem.likelihood.project(gradient), penalty, in_float64)


def duality_gap(problem: Problem, iterate: Iterate) -> float:
    """F - D, which F - F* never exceeds, from the loss and the gradient alone.

    D(a) = sum_i w_i entropy(a_i) - |sum_i w_i x_i (y_i - a_i)^T|^2 / (2 penalty) for probabilities
    a_i with sum_i w_i a_i = shares. Those of the model, p, violate only the last equation, which
    a = (1 - t) p + t q repairs; entropy(a) >= (1 - t) entropy(p) + t entropy(q), as it is concave,
    and sum_i w_i entropy(p_i) = loss - <loss gradient, theta>. In F - D the large terms cancel:

        t (loss + <S, W> - entropy(q)) + (1 - t) <gradient in b, b> + |e|^2 / (2 penalty)

    with S = sums - mean q^T and e = t (S - penalty W) - (1 - t) gradient in W. A penalized
    intercept leaves no such equation: then t is 0.
    """
    xp = problem.rows.xp
    if not problem.rows.is_free:
        return iterate.natural_gap
    W = iterate.theta[:-1, :]
    slope = iterate.loss_gradient[-1, :]
    t, q, entropy = problem.likelihood.repair(problem.shares, slope)
    sums = problem.sums - problem.mean[:, None] * q[None, :]
    mixed = iterate.loss + float(xp.sum(sums * W)) - entropy
    multiplier = float(xp.sum(slope * iterate.theta[-1, :]))
    e = t * (sums - iterate.penalty * W) - (1 - t) * iterate.gradient[:-1, :]
    return t * mixed + (1 - t) * multiplier + squared_norm(e) / (2 * iterate.penalty)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The inverse of (second moments) x (mean curvature) + penalty, diagonal in their eigenbases.

    directions: (k, r); diagonal: (p + 1, r).
    """

    directions: AnyArray
    diagonal: AnyArray

    def solve(self, gradient: AnyArray) -> AnyArray:
        return ((gradient @ self.directions) / self.diagonal) @ self.directions.T


@dataclass(frozen=True, eq=False)
class Hessian:
    """The Hessian in float32 over the rows that carry curvature, a `share` of all."""

    xp: Any
    likelihood: Likelihood
    x: AnyArray
    kept: AnyArray
    weights: AnyArray
    penalty: float
    is_free: bool
    share: float

    def blocks(self) -> Iterator[slice]:
        return row_blocks(self.x.shape[0], max(self.x.shape[1], self.likelihood.outputs))

    def product(self, direction: AnyArray) -> AnyArray:
        """Directions are scaled to 1, as float32 ends at 1e38."""
        xp = self.xp
        size = float(xp.max(xp.abs(direction))) or 1.0
        V = xp.astype(direction / size, xp.float32)
        product = xp.zeros_like(direction)
        for block in self.blocks():
            x = self.x[block, :]
            scores = x @ V[:-1, :]
            scores += V[-1, :]
            self.likelihood.curve(self.kept[block, :], scores)
            scores *= self.weights[block][:, None]
            product[:-1, :] += x.T @ scores
            product[-1, :] += xp.sum(scores, axis=0, dtype=xp.float64)
        product *= size
        product[:-1, :] += self.penalty * direction[:-1, :]
        if not self.is_free:
            product[-1, :] = 0.0
        return self.likelihood.project(product)


def mean_curvature(problem: Problem) -> tuple[AnyArray, AnyArray]:
    """Eigenvalues and eigenvectors of the mean curvature in the scores at the last evaluation."""
    xp = problem.rows.xp
    moment: Any = 0.0
    for block in problem.blocks():
        weights = xp.astype(problem.weights[block], xp.float32)
        moment += problem.likelihood.moment(problem.kept[block, :], weights)
    values, vectors = problem.likelihood.eigenbasis(moment)
    return xp.clip(values, FLOOR * float(xp.max(values)) + 1e-30, None), vectors


def hessian_of(problem: Problem, penalty: float, *, active_only: bool) -> Hessian:
    """The Hessian at the last evaluation; rows that are left out are overwritten in `kept`."""
    rows = problem.rows
    xp = rows.xp
    kept = problem.kept
    weights = xp.astype(problem.weights, xp.float32)
    full = Hessian(xp, problem.likelihood, rows.rotated, kept, weights, penalty, rows.is_free, 1.0)
    if not active_only:
        return full
    curvature = xp.zeros_like(weights)
    for block in problem.blocks():
        curvature[block] = weights[block] * problem.likelihood.trace(kept[block, :])
    active = xp.nonzero(curvature > ACTIVE_CURVATURE * xp.mean(curvature))[0]
    count = int(active.shape[0])
    if count == 0 or count > ACTIVE_ROWS * rows.count:
        return full
    for block in row_blocks(count, kept.shape[1]):
        kept[block, :] = xp.take(kept, active[block], axis=0)
    return replace(
        full,
        x=xp.take(rows.rotated, active, axis=0),
        kept=kept[:count, :],
        weights=xp.take(weights, active),
        share=count / rows.count,
    )


def conjugate_gradient(
    hessian: Hessian, preconditioner: Preconditioner, gradient: AnyArray, goal: float
) -> AnyArray:
    """The step s with |H s + gradient| <= goal, or the best within CG_STEPS products."""
    xp = hessian.xp
    step = xp.zeros_like(gradient)
    residual = -gradient
    direction = preconditioner.solve(residual)
    energy = float(xp.sum(residual * direction))
    for _ in range(CG_STEPS):
        image = hessian.product(direction)
        curvature = float(xp.sum(direction * image))
        if curvature <= 0:
            break
        step = step + (energy / curvature) * direction
        residual = residual - (energy / curvature) * image
        if squared_norm(residual) <= goal**2:
            break
        scaled = preconditioner.solve(residual)
        next_energy = float(xp.sum(residual * scaled))
        if next_energy <= 0:
            break
        direction = scaled + (next_energy / energy) * direction
        energy = next_energy
    return step


def newton_step(
    problem: Problem, iterate: Iterate, wanted: float, *, active_only: bool
) -> tuple[AnyArray, float]:
    """The truncated Newton step to a gap of `wanted`, and the share of rows that it was made of."""
    values, directions = mean_curvature(problem)
    hessian = hessian_of(problem, iterate.penalty, active_only=active_only)
    diagonal = problem.rows.values[:, None] * values + iterate.penalty
    diagonal = problem.rows.xp.concat([diagonal, values[None, :]])
    preconditioner = Preconditioner(directions, diagonal)
    gradient = iterate.gradient
    enough = CG_SHARE * math.sqrt(2 * iterate.penalty * wanted)
    goal = max(enough, CG_REDUCTION * math.sqrt(squared_norm(gradient)))
    return conjugate_gradient(hessian, preconditioner, gradient, goal), hessian.share


def line_search(problem: Problem, iterate: Iterate, step: AnyArray) -> tuple[Iterate | None, float]:
    """The first of theta + step, theta + 0.4 step, ... that is enough lower (Armijo), its length.

    Where rounding hides what is lower, a smaller slope along the step will do.
    """
    xp = problem.rows.xp
    slope = float(xp.sum(iterate.gradient * step))
    rounding = ROUNDING[iterate.in_float64] * iterate.objective
    length = 1.0
    for _ in range(LINE_SEARCH_STEPS):
        candidate = reevaluate(problem, iterate, iterate.theta + length * step)
        change = candidate.objective - iterate.objective
        is_flatter = abs(float(xp.sum(candidate.gradient * step))) <= 0.9 * abs(slope)
        if change <= ARMIJO * length * slope or (change <= rounding and is_flatter):
            return candidate, length
        length *= 0.4
    return None, length


def reevaluate(problem: Problem, iterate: Iterate, theta: AnyArray) -> Iterate:
    return evaluate(problem, theta, penalty=iterate.penalty, in_float64=iterate.in_float64)


def intercept_step(problem: Problem, iterate: Iterate) -> Iterate:
    """One Newton step on a free intercept alone, evaluated in float64."""
    theta = iterate.theta
    if problem.rows.is_free:
        values, directions = mean_curvature(problem)
        change = directions @ ((directions.T @ iterate.loss_gradient[-1, :]) / values)
        theta = problem.rows.xp.concat([theta[:-1, :], theta[-1:, :] - change[None, :]])
    return evaluate(problem, theta, penalty=iterate.penalty, in_float64=True)


@dataclass(frozen=True)
class Shortcuts:
    """What still saves time; a shortcut that failed stays off for weaker penalties."""

    float32_gradients: bool = True
    active_rows: bool = True


@dataclass(frozen=True, eq=False)
class Minimum:
    """An iterate in float64, its duality gap and the Newton steps to it."""

    iterate: Iterate
    gap: float
    steps: int
    shortcuts: Shortcuts


def minimize(problem: Problem, iterate: Iterate, tolerance: float, shortcuts: Shortcuts) -> Minimum:
    """Newton steps until the gap is at most `tolerance` times the objective, or no step helps.

    An iterate whose gap only lacks an optimal intercept gets that. A step that does not halve the
    gap turns a shortcut off: first that rows are left out (also where the step was too long), then
    float32 gradients.
    """
    steps = 0
    gap = math.inf
    for _ in range(NEWTON_STEPS):
        wanted = tolerance * iterate.objective
        if iterate.in_float64:
            gap = duality_gap(problem, iterate)
            if gap <= wanted:
                break
        if iterate.natural_gap <= 0.5 * wanted:
            polished = intercept_step(problem, iterate)
            if polished.natural_gap > wanted:
                shortcuts = replace(shortcuts, float32_gradients=False)
            iterate = polished
            continue
        step, share = newton_step(problem, iterate, wanted, active_only=shortcuts.active_rows)
        candidate, length = line_search(problem, iterate, step)
        steps += 1
        has_halved = candidate is not None and candidate.natural_gap <= 0.5 * iterate.natural_gap
        if candidate is not None and has_halved and (length == 1 or share == 1):
            iterate = candidate
            continue
        if share < 1:
            shortcuts = replace(shortcuts, active_rows=False)
        elif not iterate.in_float64:
            shortcuts = replace(shortcuts, float32_gradients=False)
        elif candidate is None:
            break
        in_float64 = iterate.in_float64 or not shortcuts.float32_gradients
        iterate = replace(candidate or iterate, in_float64=in_float64)
        iterate = reevaluate(problem, iterate, iterate.theta)
    else:
        iterate = intercept_step(problem, iterate)
        gap = duality_gap(problem, iterate)
    return Minimum(iterate, gap, steps, shortcuts)
