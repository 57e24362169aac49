"""Arithmetic in about twice float64's precision, for a verifier: pairs of a number and what rounding took off it.

Sums and products of single numbers are Dekker's and Knuth's; a matrix product is Ozaki's: both factors are cut into
slices of so few bits that BLAS multiplies slices without any rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SPLIT = 2.0**27 + 1
SLICES = 4
LEAST = -960
"""The exponent below which nothing is told apart from zero."""
PIECE = 2**14
"""Numbers that are added at a time."""
UNIT = 2.0**-100
"""The relative error of one operation here, with room."""


@dataclass(frozen=True, eq=False)
class Doubled:
    """high + low, where |low| is at most a rounding error of high."""

    high: Array
    low: Array

    @classmethod
    def of(cls, value: Any) -> Doubled:
        """A number, or an array, as it is."""
        high = np.asarray(value, dtype=np.float64)
        return cls(high, np.zeros_like(high))

    def __add__(self, other: Doubled) -> Doubled:
        total = self.high + other.high
        back = total - self.high
        lost = (self.high - (total - back)) + (other.high - back)
        return _pair(total, lost + (self.low + other.low))

    def __neg__(self) -> Doubled:
        return Doubled(-self.high, -self.low)

    def __sub__(self, other: Doubled) -> Doubled:
        return self + -other

    def __mul__(self, other: Doubled) -> Doubled:
        product = self.high * other.high
        (a, b), (c, d) = _halves(self.high), _halves(other.high)
        lost = ((a * c - product) + a * d + b * c) + b * d
        return _pair(product, lost + (self.high * other.low + self.low * other.high))

    def __truediv__(self, other: Doubled) -> Doubled:
        first = Doubled.of(self.high / other.high)
        rest = self - first * other
        return first + Doubled.of((rest.high + rest.low) / other.high)

    def __getitem__(self, index: Any) -> Doubled:
        return Doubled(self.high[index], self.low[index])

    @property
    def T(self) -> Doubled:  # noqa: N802
        """Transposed."""
        return Doubled(self.high.T, self.low.T)

    def sum(self, axis: int) -> Doubled:
        """The sum along an axis."""
        high, low = np.moveaxis(self.high, axis, 0), np.moveaxis(self.low, axis, 0)
        total = Doubled.of(np.zeros(high.shape[1:]))
        for one, rest in zip(high, low, strict=True):
            total = total + Doubled(one, rest)
        return total

    def at(self, params: Array) -> Doubled:
        """The product with a matrix of plain numbers."""
        return matmul(self.high, params) + Doubled.of(self.low @ params)


class Accumulator:
    """A sum of many arrays of one shape: as `Doubled` adds, in place and in pieces that stay in a cache."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._high, self._low = np.zeros(shape), np.zeros(shape)
        self._spare = np.empty((3, min(math.prod(shape), PIECE)))

    def add(self, value: Array) -> None:
        """Add an array."""
        highs, lows, values = (one.reshape(-1) for one in (self._high, self._low, value))
        for start in range(0, len(values), PIECE):
            part = slice(start, start + PIECE)
            high, low, new = highs[part], lows[part], values[part]
            total, back, lost = self._spare[:, : len(new)]
            np.add(high, new, out=total)
            np.subtract(total, high, out=back)
            np.subtract(high, np.subtract(total, back, out=lost), out=lost)
            lost += np.subtract(new, back, out=back)
            lost += low
            np.add(total, lost, out=high)
            np.subtract(lost, np.subtract(high, total, out=back), out=low)

    @property
    def sum(self) -> Doubled:
        """What was added up."""
        return Doubled(self._high, self._low)


def outer(left: Doubled, right: Doubled) -> Doubled:
    """The outer product of two vectors."""
    return left[:, None] * right[None, :]


def matmul(left: Array, right: Array) -> Doubled:
    """The product of two matrices of plain numbers; `product_error` says how exact it is."""
    bits = _bits(left.shape[1])
    first, second = _slices(left, bits), _slices(right.T, bits)
    total = Doubled.of(np.zeros((len(left), right.shape[1])))
    for order in range(SLICES):
        for i in range(order + 1):
            total = total + Doubled.of(first[i] @ second[order - i].T)
    return total


def product_error(left: Array, right: Array) -> Array:
    """For each column of a product by `matmul`, a bound of its error's norm."""
    rows, columns = np.abs(left).max(axis=1, initial=0.0), np.abs(right).max(axis=0, initial=0.0)
    factor = 16 * left.shape[1] * 2.0 ** -(SLICES * _bits(left.shape[1]))
    return np.asarray(factor * float(np.linalg.norm(rows)) * columns)


def _bits(terms: int) -> int:
    """As many bits as two factors may have for a sum of so many products to be exact in float64."""
    return (53 - math.ceil(math.log2(max(terms, 2)))) // 2


def _slices(matrix: Array, bits: int) -> list[Array]:
    """Parts that add up to the matrix, each with so many bits below the row's largest entry, or the part before's."""
    largest = np.abs(matrix).max(axis=1, keepdims=True, initial=0.0)
    step = np.ldexp(1.0, np.maximum(np.frexp(largest)[1] - bits, LEAST))
    parts = []
    for _ in range(SLICES):
        part = np.rint(matrix / step) * step
        parts.append(part)
        matrix, step = matrix - part, np.maximum(np.ldexp(step, -bits), 2.0**LEAST)
    return parts


def _pair(high: Array, low: Array) -> Doubled:
    total = high + low
    return Doubled(np.asarray(total), np.asarray(low - (total - high)))


def _halves(value: Array) -> tuple[Array, Array]:
    large = SPLIT * value
    high = large - (large - value)
    return high, value - high
