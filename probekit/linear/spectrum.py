"""What eigenvalues tell of a curvature: its largest, its condition, in how many directions rows decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import ClientStats
from probekit.linear.lapack import linalg, sparse_linalg

Array = NDArray[np.float64]
Eigenvalues = NDArray[np.floating[Any]]

DENSE_EIGENVALUES = 64
"""Up to this size all eigenvalues are computed: that is faster than iterating for one."""


def largest_eigenvalue(matrix: Array | Callable[[Array], Array], *, size: int = 0, tolerance: float = 1e-10) -> float:
    """The largest eigenvalue of a symmetric matrix, or of a product with columns of `size` numbers, (size, 1)."""
    if isinstance(matrix, np.ndarray):
        size, operator = len(matrix), matrix
        if size <= DENSE_EIGENVALUES:
            return float(np.linalg.eigvalsh(matrix)[-1])
    else:
        product = matrix
        operator = sparse_linalg.LinearOperator((size, size), lambda v: product(v.reshape(-1, 1)).ravel(), dtype=float)
    start = np.ones(size)  # fixed, so that the answer is: a random start changes the last digits
    return float(sparse_linalg.eigsh(operator, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)[0])


def effective_dimension(eigenvalues: Eigenvalues, ridge: float) -> float:
    """sum s / (s + ridge) over eigenvalues s of a Gram or kernel: in how many directions rows decide, not the ridge.

    Eigenvalues that are rounding error do not count.
    """
    kept = eigenvalues[eigenvalues > len(eigenvalues) * np.finfo(np.float64).eps * eigenvalues.max(initial=0.0)]
    return float((kept / (kept + ridge)).sum())


def rows_effective_dimension(stats: ClientStats, ridge: float) -> float:
    """That of statistics, `ridge` in mean scaling: tr G/n (G/n + ridge P)^-1, P without a free intercept."""
    gram = stats.total_gram / stats.count
    free = stats.design.intercept == "free"
    if free:
        # an intercept without penalty is one direction of its own; the others are those of the centred rows
        gram = gram[:-1, :-1] - np.outer(gram[:-1, -1], gram[:-1, -1])
    return effective_dimension(linalg.eigvalsh(gram), ridge) + free


def condition(eigenvalues: Eigenvalues, penalty: float) -> float:
    """The condition number of a Gram with a penalty added; infinite where it is singular."""
    shifted = np.maximum(eigenvalues, 0.0) + penalty
    return float(shifted.max() / shifted.min()) if shifted.min() > 0 else float("inf")
