"""Solvers of positive definite systems. A solver is its tolerances and nothing more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, SolverError
from probekit.linear.design import Solution
from probekit.linear.lapack import linalg

PASS = 1e-3
"""How far products in low precision are trusted before the true residual is looked at."""

Array = NDArray[np.float64]


@runtime_checkable
class Operator(Protocol):
    """A symmetric linear map on (d, k) arrays."""

    def matvec(self, v: Array) -> Array: ...
    def dense(self) -> Array | None:
        """Its matrix, or None where that is too large."""
        return None


class Solver(Protocol):
    """Solves operator(value) = rhs, or raises SolverError carrying its best Solution."""

    def solve(self, operator: Operator | Array, rhs: Array) -> Solution: ...


@dataclass(frozen=True, eq=False)
class Matrix(Operator):
    """A matrix as an operator."""

    array: Array

    def matvec(self, v: Array) -> Array:
        """The product with each column, by SciPy's BLAS: NumPy's threads would fight those that factored for cores."""
        if v.ndim != 2 or self.array.dtype != np.float64 or v.dtype != np.float64:
            return self.array @ v
        return np.asarray(linalg.gemm(1.0, self.array.T, v.T, trans_a=True, trans_b=True))

    def dense(self) -> Array | None:
        """The matrix itself."""
        return self.array


@dataclass(frozen=True, eq=False)
class Inverse(Operator):
    """The inverse of a positive definite matrix, factored once: a preconditioner."""

    factor: tuple[Array, bool]

    @classmethod
    def of(cls, matrix: Array) -> Inverse:
        """The inverse of this matrix."""
        try:
            return cls(linalg.cho_factor(matrix, lower=True))
        except linalg.LinAlgError as error:
            raise SolverError("A preconditioner must be positive definite. Use a larger ridge.") from error

    def matvec(self, v: Array) -> Array:
        """The inverse applied to each column."""
        return np.asarray(linalg.cho_solve(self.factor, v, check_finite=False))


def residual_of(operator: Operator | Array, value: Array, rhs: Array) -> float:
    """|rhs - operator(value)| / |rhs|, in Frobenius norms."""
    scale, difference = _norm(rhs), _norm(rhs - as_operator(operator).matvec(value))
    return difference / scale if scale else difference


def _norm(x: Array) -> float:
    """The Frobenius norm without BLAS: waking its threads takes longer than the sum."""
    return math.sqrt(float(np.square(x).sum()))


def as_operator(operator: Operator | Array) -> Operator:
    """A matrix or an operator as an operator."""
    return Matrix(operator) if isinstance(operator, np.ndarray) else operator


@dataclass(frozen=True)
class Cholesky:
    """Cholesky's factorisation; where the matrix is not positive definite, its eigenvectors, and the note says so.

    A relative residual above `tolerance` is refused.
    """

    tolerance: float = 1e-6

    def solve(self, operator: Operator | Array, rhs: Array) -> Solution:
        """The solution, or SolverError carrying it."""
        matrix = _dense(operator, rhs)
        try:
            factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
        except linalg.LinAlgError:
            return accepted(_by_eigenvectors(matrix, rhs), self.tolerance)
        value: Array = linalg.cho_solve(factor, rhs, check_finite=False)
        return accepted(Solution(value, residual_of(matrix, value, rhs), 1, "cholesky"), self.tolerance)


def _by_eigenvectors(matrix: Array, rhs: Array) -> Solution:
    """The solution of least norm: directions whose eigenvalue is rounding error are left out; the note counts them."""
    values, vectors = linalg.eigh(matrix, check_finite=False)
    kept = values > len(values) * np.finfo(np.float64).eps * np.abs(values).max(initial=0.0)
    note, dropped = (
        "The matrix is not positive definite: solved by eigenvectors instead of Cholesky.",
        int((~kept).sum()),
    )
    if dropped:
        note += f" {dropped} of {len(values)} directions have no curvature and were left out."
    basis = vectors[:, kept]
    value = basis @ ((basis.T @ rhs) / values[kept, None])
    return Solution(value, residual_of(matrix, value, rhs), 1, "eigen", note)


@dataclass(frozen=True)
class ConjugateGradient:
    """Conjugate gradients on all columns at once, each with its own step lengths.

    tolerance: the true relative residual to end within.
    max_steps: products with the operator at most.
    preconditioner: an operator close to the inverse.
    low_precision: the operator computed with less care, and cheaper. It takes the steps, the operator itself says
    what they left; where that no longer gets smaller, the operator takes the steps too.
    watch: called after each step with the steps so far, the relative residual of the recurrence, and the value.
    """

    tolerance: float = 1e-10
    max_steps: int = 1000
    preconditioner: Operator | None = None
    low_precision: Operator | None = None
    watch: Callable[[int, float, Array], None] | None = field(default=None, compare=False)

    def solve(self, operator: Operator | Array, rhs: Array) -> Solution:
        """The solution, or SolverError carrying the best one found."""
        return accepted(self.descend(operator, rhs), self.tolerance, "Allow more steps, or use a larger ridge.")

    def descend(
        self,
        operator: Operator | Array,
        remainder: Array,
        *,
        start: Array | None = None,
        residual: Callable[[Array], Array] | None = None,
        look_cost: int = 0,
    ) -> Solution:
        """The best value after `max_steps` at most, within the tolerance of |remainder| or not.

        start: where to begin (zero if not given), and remainder the residual there: the right-hand side of zero.
        residual: the true residual of a value, where there is a better way than remainder - operator(value - start).
        look_cost: the steps that a look at the true residual counts for, unless it is the last.
        """
        operator, first = as_operator(operator), _columns(remainder)
        origin = value = np.zeros_like(first) if start is None else start
        exact = residual or (lambda there: first - operator.matvec(there - origin))
        scale = size = float(np.linalg.norm(first))
        goal, steps, coarse = self.tolerance * scale, 0, self.low_precision
        while size > goal and steps < self.max_steps:
            near = goal if coarse is None else max(goal, PASS * size)
            try:
                moved, taken = self._run(coarse or operator, remainder, value, goal=near, before=steps, scale=scale)
            except SolverError:  # rounding can make products in low precision indefinite
                if coarse is None:
                    raise
                coarse = None
                continue
            # the recurrence drifts from the true residual: start again from where it believed to be done
            true = exact(moved)
            found, before, steps = float(np.linalg.norm(true)), size, steps + taken
            if coarse is None or found < size:
                value, remainder, size = moved, true, found
            if size > goal:
                steps += look_cost
                if not found < before / 2:
                    if coarse is None:  # rounding allows no more
                        break
                    coarse = None
        return Solution(value, size / scale if scale else size, min(steps, self.max_steps), "conjugate gradients")

    def _run(
        self, operator: Operator, rhs: Array, value: Array, *, goal: float, before: int, scale: float
    ) -> tuple[Array, int]:
        """The value from here on until the recurrence believes to be at the goal, and the steps."""
        residual = rhs.copy()
        z = self._precondition(residual)
        direction, product = z, (residual * z).sum(axis=0)
        for step in range(1, self.max_steps - before + 1):
            image = operator.matvec(direction)
            curvature = (direction * image).sum(axis=0)
            if (curvature < 0).any() or ((curvature == 0) & (product > 0)).any():
                best = Solution(value, float(np.linalg.norm(residual)) / scale, step, "conjugate gradients")
                found = f"found a curvature of {float(curvature.min()):g}. Use a larger ridge."
                raise SolverError(f"Conjugate gradients need a positive definite operator; {found}", best)
            length = _ratio(product, curvature)
            value, residual = value + length * direction, residual - length * image
            size = float(np.linalg.norm(residual))
            if self.watch is not None:
                self.watch(before + step, size / scale, value)
            if size <= goal / 2:
                break
            z = self._precondition(residual)
            previous, product = product, (residual * z).sum(axis=0)
            direction = z + _ratio(product, previous) * direction
        return value, step

    def _precondition(self, residual: Array) -> Array:
        return residual if self.preconditioner is None else self.preconditioner.matvec(residual)


def _ratio(above: Array, below: Array) -> Array:
    """above / below, 0 for columns that are already solved."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _columns(rhs: Array) -> Array:
    if rhs.ndim != 2:
        raise InputError(f"A right-hand side must have two dimensions, (d, k); found shape {rhs.shape}.")
    return rhs


def _dense(operator: Operator | Array, rhs: Array) -> Array:
    matrix = as_operator(operator).dense()
    if matrix is None:
        raise InputError("This solver needs a matrix, and this operator has none. Use ConjugateGradient.")
    if matrix.shape != (len(_columns(rhs)),) * 2:
        raise InputError(f"A matrix of shape {matrix.shape} does not fit a right-hand side of {rhs.shape}.")
    if not (np.isfinite(matrix).all() and np.isfinite(rhs).all()):
        raise InputError("A system to solve must be finite; found NaN or infinite entries. Look at the embeddings.")
    return matrix


def accepted(solution: Solution, tolerance: float, remedy: str = "Use a larger ridge.") -> Solution:
    """The solution, refused where its relative residual (a gradient's, where that is what vanishes) is larger."""
    if not solution.residual <= tolerance:
        found = f"reached {solution.residual:g} in {solution.steps} steps"
        raise SolverError(f"{solution.method} wanted a residual of {tolerance:g} and {found}. {remedy}", solution)
    return solution
