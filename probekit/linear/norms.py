"""Norms of numbers of any size: squares of what is very large or small would leave float64's range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def column_norms(matrix: Array) -> Array:
    """The norm of each column."""
    largest = np.abs(matrix).max(axis=0, initial=0.0)
    power = np.where(np.isfinite(largest), np.frexp(largest)[1], 0)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(np.sqrt(np.square(np.ldexp(matrix, -power)).sum(axis=0)), power))


def norm(values: Array) -> float:
    """The norm of all numbers together (Frobenius)."""
    return float(column_norms(np.reshape(values, (-1, 1)))[0])
