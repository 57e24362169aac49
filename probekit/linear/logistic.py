"""A multinomial logistic head, to compare with. No statistics carry it, so it cannot be unlearned exactly.

minimise C sum_i -log softmax(x_i W + b)[y_i] + 1/2 |W|^2, b free: scikit-learn's objective. Two classes share
one vector there (its softmax form has half the C), and so they do here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, special

from probekit.errors import InputError, SolverError
from probekit.linear.design import Design, Solution
from probekit.linear.solvers import ConjugateGradient, Operator
from probekit.linear.statistics import checked_labels, row_blocks
from probekit.models.heads import LinearHead
from probekit.values import Json, Rows

Array = NDArray[np.float64]
NEWTON_STEPS = 50
NO_EXACT_UNLEARNING = (
    "A logistic head has no sufficient statistics: forgetting exactly means training again on the retained "
    "rows. Train a ridge head to unlearn exactly."
)


def fit_logistic(
    rows: Rows, labels: NDArray[Any], design: Design, *, c: float = 1.0, tolerance: float = 1e-10
) -> tuple[LinearHead, Solution]:
    """The logistic head of these rows; the solution's residual is its gradient relative to that of zero.

    L-BFGS in coordinates in which the embeddings have no scale of their own, then Newton to the end.
    """
    labels = checked_labels(labels, len(rows), design.classes)
    _check(labels, design, c)
    columns = np.vstack([block.astype(np.float64) for _, block in row_blocks(rows, design)])
    problem = _Problem(columns, labels, design, c / 2 if design.classes == 2 else c)
    params, residual, steps = _minimise(problem, tolerance)
    solution = Solution(params, residual, steps, "l-bfgs and newton")
    if not residual <= tolerance:
        raise SolverError(
            f"A logistic head wanted a relative gradient of {tolerance:g} and reached {residual:g} in "
            f"{steps} steps. Use a smaller C.",
            solution,
        )
    recipe: dict[str, Json] = {
        "head": "logistic",
        "C": c,
        "intercept": design.intercept,
        "rows": len(rows),
        "residual": residual,
        "exact_unlearning": False,
        "why": NO_EXACT_UNLEARNING,
    }
    classes = tuple(str(number) for number in range(design.classes))
    return LinearHead(params, classes, 1 / c, view=design.view, recipe=recipe), solution


def _minimise(problem: _Problem, tolerance: float) -> tuple[Array, float, int]:
    """Parameters, relative gradient and steps."""
    start = np.zeros(problem.shape).ravel()
    scale = float(np.linalg.norm(problem.both(start)[1])) or 1.0
    options = {"maxiter": 200, "gtol": 1e-4 * scale, "maxcor": 20}
    found = optimize.minimize(problem.both, start, jac=True, method="L-BFGS-B", options=options)
    flat, steps = np.asarray(found.x), int(found.nit)
    loss, gradient = problem.both(flat)
    for _ in range(NEWTON_STEPS):
        size = float(np.linalg.norm(gradient))
        if size <= tolerance * scale:
            break
        step, steps = _newton_step(problem, flat, gradient), steps + 1
        for halving in range(20):
            ahead = flat - step / 2**halving
            ahead_loss, ahead_gradient = problem.both(ahead)
            # close to the end the loss shows no progress: its digits are used up, the gradient's are not
            if ahead_loss < loss or float(np.linalg.norm(ahead_gradient)) < size:
                break
        flat, loss, gradient = ahead, ahead_loss, ahead_gradient
    return problem.params(flat), float(np.linalg.norm(gradient)) / scale, steps


def _newton_step(problem: _Problem, flat: Array, gradient: Array) -> Array:
    curvature = problem.curvature(flat)
    try:
        solution = ConjugateGradient(tolerance=1e-3, max_steps=500).solve(curvature, gradient[:, None])
    except SolverError as error:
        # a step that is not quite Newton's still descends
        if not isinstance(error.best, Solution):
            raise
        solution = error.best
    return solution.value[:, 0]


def _check(labels: NDArray[np.int64], design: Design, c: float) -> None:
    if not 0 < c < np.inf:
        raise InputError(f"C must be a finite number above 0; found {c}.")
    if design.intercept == "penalised":
        raise InputError('A logistic head has a "free" intercept or "none"; found "penalised".')
    if len(np.unique(labels)) < 2:
        raise InputError("A logistic head needs rows of at least two classes; found fewer.")


class _Problem:
    """The mean loss on centred embeddings in coordinates V, W = T V, T T^T close to the inverse curvature."""

    def __init__(self, columns: Array, labels: NDArray[np.int64], design: Design, strength: float) -> None:
        count, size = columns.shape
        self.labels, self.free = labels, design.intercept == "free"
        self.mean = columns.mean(axis=0) if self.free else np.zeros(size)
        self.ridge = 1 / (strength * count)
        centred = columns - self.mean
        # a softmax's curvature is about 1/k of the squares' where classes are even
        curvature = centred.T @ centred / (count * design.classes) + self.ridge * np.eye(size)
        self.whitening: Array = linalg.solve_triangular(
            linalg.cholesky(curvature, lower=True), np.eye(size), lower=True, check_finite=False
        ).T
        self.columns = centred @ self.whitening
        self.shape = (size + self.free, design.classes)

    def both(self, flat: Array) -> tuple[float, Array]:
        """The mean loss and its gradient."""
        value = flat.reshape(self.shape)
        size = self.columns.shape[1]
        scores = self.columns @ value[:size]
        if self.free:
            scores += value[size]
        every = np.arange(len(scores))
        logs = special.logsumexp(scores, axis=1)
        loss = float((logs - scores[every, self.labels]).mean())
        np.exp(scores - logs[:, None], out=scores)
        scores[every, self.labels] -= 1
        scores /= len(scores)
        weights = self.whitening @ value[:size]
        gradient = np.empty(self.shape)
        gradient[:size] = self.columns.T @ scores + self.ridge * (self.whitening.T @ weights)
        if self.free:
            gradient[size] = scores.sum(axis=0)
        return loss + self.ridge / 2 * float(np.square(weights).sum()), gradient.ravel()

    def curvature(self, flat: Array) -> Operator:
        """The second derivative at a point, on flattened parameters."""
        value = flat.reshape(self.shape)
        size = self.columns.shape[1]
        bias = value[size] if self.free else 0.0
        return _Curvature(self, special.softmax(self.columns @ value[:size] + bias, axis=1))

    def params(self, flat: Array) -> Array:
        """The (d+1, k) parameters on embeddings, bias last; what is common to all classes is taken off."""
        value = flat.reshape(self.shape)
        weights = self.whitening @ value[: self.columns.shape[1]]
        bias = value[-1] - value[-1].mean() if self.free else np.zeros(self.shape[1])
        weights = weights - weights.mean(axis=1, keepdims=True)
        return np.vstack([weights, bias - self.mean @ weights])


@dataclass(frozen=True, eq=False)
class _Curvature:
    """X^T (diag(p) - p p^T) X / n, row by row, plus the ridge."""

    problem: _Problem
    chances: Array

    def matvec(self, v: Array) -> Array:
        problem, chances = self.problem, self.chances
        value = v.reshape(problem.shape)
        size = problem.columns.shape[1]
        scores = problem.columns @ value[:size]
        if problem.free:
            scores += value[size]
        scores -= (chances * scores).sum(axis=1, keepdims=True)
        scores *= chances / len(chances)
        result = np.empty(problem.shape)
        whitening = problem.whitening
        result[:size] = problem.columns.T @ scores + problem.ridge * (whitening.T @ (whitening @ value[:size]))
        if problem.free:
            result[size] = scores.sum(axis=0)
        return result.reshape(v.shape)

    def dense(self) -> Array | None:
        return None
