"""Slow answers to the same questions, by other means than the library's: no Gram, no eigenvectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def one_hot(labels: NDArray[np.int64], classes: int) -> Array:
    """A row of zeros with a one, per label."""
    return np.eye(classes)[labels]


def columns(rows: Array, *, intercept: str = "penalised", view: str = "raw") -> Array:
    """The explicit matrix of a design."""
    seen = np.array([row / np.sqrt(sum(x * x for x in row)) for row in rows]) if view == "l2" else rows
    return seen if intercept == "none" else np.hstack([seen, np.ones((len(seen), 1))])


def least_squares(
    matrix: Array, targets: Array, *, penalty: float, free: bool = False, weights: Array | None = None
) -> Array:
    """The ridge solution as an ordinary least-squares problem with rows for the penalty (through an SVD)."""
    root = np.ones(len(matrix)) if weights is None else np.sqrt(weights)
    extra = np.sqrt(penalty) * np.eye(matrix.shape[1])
    if free:
        extra[-1] = 0
    stacked = np.vstack([matrix * root[:, None], extra])
    aims = np.vstack([targets * root[:, None], np.zeros((len(extra), targets.shape[1]))])
    return np.asarray(np.linalg.lstsq(stacked, aims, rcond=None)[0])


def leave_one_out_scores(matrix: Array, targets: Array, *, penalty: float, free: bool = False) -> Array:
    """The score of each row in the head trained on all other rows, by training that many heads."""
    found = np.empty_like(targets)
    for row in range(len(matrix)):
        rest = np.arange(len(matrix)) != row
        found[row] = matrix[row] @ least_squares(matrix[rest], targets[rest], penalty=penalty, free=free)
    return found


def woodbury_removal(matrix: Array, targets: Array, *, gone: NDArray[np.int64], penalty: float) -> Array:
    """The head without some rows, from the inverse with them: W + R^- X_S^T (X_S W - Y_S)."""
    inverse = np.linalg.inv(matrix.T @ matrix + penalty * np.eye(matrix.shape[1]))
    params = inverse @ matrix.T @ targets
    rows, aims = matrix[gone], targets[gone]
    middle = np.linalg.inv(np.eye(len(gone)) - rows @ inverse @ rows.T)
    without = inverse + inverse @ rows.T @ middle @ rows @ inverse
    return np.asarray(params + without @ rows.T @ (rows @ params - aims))


def numerical_gradient(function: object, point: Array, *, step: float = 1e-6) -> Array:
    """Central differences, one entry at a time."""
    assert callable(function)
    found = np.empty_like(point)
    for index in np.ndindex(*point.shape):
        there, back = point.copy(), point.copy()
        there[index] += step
        back[index] -= step
        found[index] = (function(there) - function(back)) / (2 * step)
    return found


def relative(found: Array, wanted: Array) -> float:
    """The Frobenius distance over the norm of what was wanted."""
    return float(np.linalg.norm(np.asarray(found) - wanted) / np.linalg.norm(wanted))
