"""Rows in the eigenbasis of their Gram, over NumPy arrays or torch tensors on any device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from probekit.errors import InputError
from probekit.linear.ridge import INTERCEPTS, Intercept

AnyArray = Any
"""numpy.ndarray or torch.Tensor: the array API standard has no static type."""

BLOCK_VALUES = 1 << 20
"""Of rows or scores, in float64, at a time."""


def row_blocks(count: int, width: int) -> Iterator[slice]:
    size = max(1, BLOCK_VALUES // width)
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def squared_norm(array: AnyArray) -> float:
    return float((array * array).sum())


@dataclass(frozen=True, eq=False)
class RotatedRows:
    """Rows x as given, and (x - center) @ map in float32, whose columns are uncorrelated.

    rows: (n, d), anything that slices to arrays; a memory map is read in blocks.
    center: the weighted mean where the intercept is free. A penalized one is a last column of ones,
        and nothing is centered.
    map: (p, p), an orthogonal matrix over `scale`, so that the mean variance of a column is 1.
    values: (p,), the columns' second moments.
    """

    xp: Any
    rows: Any
    intercept: Intercept
    center: AnyArray
    map: AnyArray
    scale: float
    values: AnyArray
    rotated: AnyArray

    @classmethod
    def of(cls, rows: Any, weights: AnyArray, intercept: Intercept = "free") -> RotatedRows:
        """weights: (n,), float64, not all 0; its namespace and device are those of the result."""
        if intercept not in INTERCEPTS:
            raise InputError(f"intercept must be 'free' or 'penalized'; found {intercept!r}.")
        xp = array_namespace(weights)
        place = {"device": device(weights)}
        is_free = intercept == "free"
        n, d = rows.shape
        p = d if is_free else d + 1
        shares = weights / xp.sum(weights)
        center = xp.zeros(p, dtype=xp.float64, **place)
        identity = xp.eye(p, dtype=xp.float64, **place)
        plain = cls(xp, rows, intercept, center, identity, 1.0, center, xp.empty((0, p), **place))
        blocks = list(row_blocks(n, p))
        mean = center
        square = 0.0
        for block in blocks:
            x = plain.block(block)
            mean = mean + shares[block] @ x
            square += float(shares[block] @ xp.sum(x * x, axis=1))
        if not math.isfinite(square):
            raise InputError(
                "Vectors must be finite, and their squares too; found NaN, infinity or overflow. "
                "Leave such rows out (--on-error skip), or scale the vectors down."
            )
        if is_free:
            center = mean
            square = max(square - squared_norm(mean), 1e-14 * square)
        scale = math.sqrt(square / p) or 1.0
        plain = cls(xp, rows, intercept, center, identity, 1.0, center, plain.rotated)
        rotated = xp.empty((n, p), dtype=xp.float32, **place)
        gram = xp.zeros((p, p), dtype=xp.float64, **place)
        for block in blocks:
            rotated[block, :] = xp.astype(plain.block(block) / scale, xp.float32)
            roots = xp.astype(xp.sqrt(shares[block]), xp.float32)
            scaled = rotated[block, :] * roots[:, None]
            gram += xp.astype(scaled.T @ scaled, xp.float64)
        values, basis = xp.linalg.eigh(gram)
        single = xp.astype(basis, xp.float32)
        for block in blocks:
            rotated[block, :] = rotated[block, :] @ single
        values = xp.clip(values, 0.0, None)
        return cls(xp, rows, intercept, center, basis / scale, scale, values, rotated)

    @property
    def count(self) -> int:
        return int(self.rows.shape[0])

    @property
    def columns(self) -> int:
        return int(self.center.shape[0])

    @property
    def is_free(self) -> bool:
        return self.intercept == "free"

    @property
    def variance(self) -> float:
        """The mean of a column of the rows as given."""
        return self.scale**2

    def block(self, index: slice) -> AnyArray:
        """Some rows in float64, centered or with their ones, not rotated."""
        xp = self.xp
        x = xp.asarray(self.rows[index], dtype=xp.float64, device=device(self.center))
        if self.is_free:
            return x - self.center
        return xp.concat([x, xp.ones_like(x[:, :1])], axis=1)

    def params(self, theta: AnyArray) -> AnyArray:
        """Weights above the intercept (d + 1, k) for rows as given.

        theta: weights of rotated columns (p, k) above a free intercept (1, k).
        """
        weights = self.map @ theta[:-1, :]
        if not self.is_free:
            return weights
        return self.xp.concat([weights, theta[-1:, :] - self.center[None, :] @ weights])

    def theta(self, params: AnyArray) -> AnyArray:
        """The inverse of `params`."""
        xp = self.xp
        weights = params[:-1, :] if self.is_free else params
        rotated = self.scale**2 * (self.map.T @ weights)
        if not self.is_free:
            return xp.concat([rotated, xp.zeros_like(rotated[:1, :])])
        return xp.concat([rotated, params[-1:, :] + self.center[None, :] @ weights])
