"""Multinomial logistic regression, to compare with. No statistics carry it, so it cannot be unlearned exactly.

minimise C sum_i -log softmax(x_i W + b)[y_i] + 1/2 |W|^2, b free: scikit-learn's objective. Two classes share
one vector there (its softmax form has half the C), and so they do here.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import Design, LinearFit, Solution
from probekit.linear.lapack import special
from probekit.linear.solvers import accepted
from probekit.linear.statistics import checked_labels, row_blocks
from probekit.values import Json, Rows

Array = NDArray[np.float64]
STEPS = 1000
NO_EXACT_UNLEARNING = (
    "A logistic head has no sufficient statistics: forgetting exactly means training again on the retained "
    "rows. Train a ridge head to unlearn exactly."
)


def loss_and_gradient(params: Array, columns: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """The sum over rows of -log softmax(columns @ params)[label], and its gradient.

    params: (c, k). columns: (n, c), with a column of ones where there is a bias. labels: n class numbers.
    Both are sums, so that those of several holders add up.
    """
    scores, every = columns @ params, np.arange(len(columns))
    logs = special.log_softmax(scores, axis=1)
    away = np.exp(logs)
    away[every, labels] -= 1
    return -float(logs[every, labels].sum()), columns.T @ away


def fit_logistic(
    rows: Rows, labels: NDArray[Any], design: Design, *, c: float = 1.0, tolerance: float = 1e-10
) -> LinearFit:
    """The logistic parameters of rows that one holder has, by scikit-learn.

    rows, labels: the (n, d) embeddings and their class numbers.
    design: how rows are seen; its intercept is "free" or "none".
    c: the weight of the loss against the ridge of 1.
    tolerance: the gradient to reach, relative to that at zero; a larger one is refused.
    Gives the parameters, and a solution whose residual is that gradient.
    """
    labels = checked_labels(labels, len(rows), design.classes)
    if not 0 < c < np.inf:
        raise InputError(f"C must be a finite number above 0; found {c}.")
    if design.intercept == "penalised":
        raise InputError('A logistic head has a "free" intercept or "none"; found "penalised".')
    if len(np.unique(labels)) < 2:
        raise InputError("A logistic head needs rows of at least two classes; found fewer.")
    columns = np.vstack([block.astype(np.float64) for _, block in row_blocks(rows, design)])
    free = design.intercept == "free"
    centre = columns.mean(axis=0) if free else np.zeros(design.dimension)
    columns -= centre
    seen = np.hstack([columns, np.full((len(columns), 1), float(free))])
    strength = c / 2 if design.classes == 2 else c
    scale = float(np.linalg.norm(loss_and_gradient(np.zeros((seen.shape[1], design.classes)), seen, labels)[1]))
    goal = tolerance * scale / len(columns) / np.sqrt(seen.shape[1] * design.classes)
    params, steps = _minimum(columns, labels, design, c=c, goal=goal)
    gradient = strength * loss_and_gradient(params, seen, labels)[1]
    gradient[:-1] += params[:-1]
    residual = float(np.linalg.norm(gradient)) / (strength * scale)
    params[-1] -= centre @ params[:-1]
    solution = accepted(Solution(params, residual, steps, "newton-cg"), tolerance, "Use a smaller C.")
    recipe = logistic_recipe(design, c=c, rows=len(rows), residual=residual)
    return LinearFit(params, 1 / c, design, solution, recipe)


def logistic_recipe(design: Design, *, c: float, rows: int, residual: float) -> dict[str, Json]:
    """What a logistic head says of how it came about."""
    return {
        "head": "logistic",
        "C": c,
        "intercept": design.intercept,
        "rows": rows,
        "residual": residual,
        "exact_unlearning": False,
        "why": NO_EXACT_UNLEARNING,
    }


def _minimum(columns: Array, labels: NDArray[np.int64], design: Design, *, c: float, goal: float) -> tuple[Array, int]:
    """The (d+1, k) parameters on these columns, what is common to all classes taken off, and the steps."""
    from sklearn.linear_model import LogisticRegression

    classes, weights = design.classes, np.ones(len(columns))
    absent = np.setdiff1d(np.arange(classes), labels)
    if absent.size:  # a row of no weight makes a class known
        columns = np.vstack([columns, np.zeros((len(absent), columns.shape[1]))])
        labels, weights = np.append(labels, absent), np.append(weights, np.zeros(len(absent)))
    free = design.intercept == "free"
    model = LogisticRegression(C=c, tol=goal, max_iter=STEPS, solver="newton-cg", fit_intercept=free)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller looks at the gradient instead
        model.fit(columns, labels, sample_weight=weights)
    params = np.vstack([model.coef_.T, np.broadcast_to(model.intercept_, (1, len(model.coef_)))])
    if classes == 2:
        params = np.hstack([-params, params]) / 2
    return params - params.mean(axis=1, keepdims=True), int(np.max(model.n_iter_))
