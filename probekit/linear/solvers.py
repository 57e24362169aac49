"""Iterative solvers: positive definite systems, minima of smooth convex functions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from probekit.arrays import Array

Map = Callable[[Array], Array]
ValueAndGradient = Callable[[Array], tuple[float, Array]]

ARMIJO = 1e-4
SHORTEST_STEP = 1e-10
VALUE_ROUNDING = 1e-14


@dataclass(frozen=True, eq=False)
class Solution:
    """Where a solver ended, the residual (or gradient) there, and after how many steps."""

    value: Array
    residual: Array
    steps: int


Search = Generator[Array, tuple[float, Array], Solution]
"""Yields points, is sent the value and gradient there."""


def conjugate_gradient(
    product: Map,
    right: Array,
    *,
    steps: int,
    tolerance: float = 1e-12,
    precondition: Map | None = None,
) -> Solution:
    """x with product(x) = right, to a relative residual.

    Columns are systems with the same matrix, each with its own step length.
    """
    x = np.zeros_like(right)
    residual = right.copy()
    direction = residual if precondition is None else precondition(residual)
    energy = (residual * direction).sum(axis=0)
    goal = tolerance * float(np.linalg.norm(right))
    for step in range(steps):
        if np.linalg.norm(residual) <= goal:
            return Solution(x, residual, step)
        moved = product(direction)
        length = _quotient(energy, (direction * moved).sum(axis=0))
        x = x + length * direction
        residual = residual - length * moved
        corrected = residual if precondition is None else precondition(residual)
        next_energy = (residual * corrected).sum(axis=0)
        direction = corrected + _quotient(next_energy, energy) * direction
        energy = next_energy
    return Solution(x, residual, steps)


def _quotient(numerator: Array, denominator: Array) -> Array:
    """0 in columns that are solved already."""
    zeros = np.zeros_like(numerator)
    return np.divide(numerator, denominator, out=zeros, where=denominator > 0)


@dataclass(frozen=True)
class Lbfgs:
    """Limited-memory quasi-Newton minimization with a backtracking line search.

    `goal` is a gradient norm, absolute: relative to the first gradient a warm start gains nothing.
    """

    rounds: int
    goal: float
    memory: int = 20

    def minimize(
        self, value_and_gradient: ValueAndGradient, start: Array, *, precondition: Map
    ) -> Solution:
        """The point where the gradient is small; `precondition` is a first inverse Hessian."""
        search = self.search(start, precondition=precondition)
        params = next(search)
        while True:
            try:
                params = search.send(value_and_gradient(params))
            except StopIteration as end:
                solution: Solution = end.value
                return solution

    def search(self, start: Array, *, precondition: Map) -> Search:
        """Asks for value and gradient at one point after the other, and returns the last.

        So several searches can ask together.
        """
        params = start
        value, gradient = yield params
        pairs: list[tuple[Array, Array]] = []
        for step in range(self.rounds):
            if np.linalg.norm(gradient) <= self.goal:
                return Solution(params, gradient, step)
            direction = -_two_loops(gradient, pairs, precondition)
            slope = float((gradient * direction).sum())
            length = 1.0
            while True:
                trial = params + length * direction
                trial_value, trial_gradient = yield trial
                if trial_value <= value + ARMIJO * length * slope:
                    break
                if _is_flat(trial_value, value, length, slope):
                    break
                length /= 2
            moved = trial - params
            changed = trial_gradient - gradient
            if float((moved * changed).sum()) > 0:
                pairs = [*pairs, (moved, changed)][-self.memory :]
            params = trial
            value = trial_value
            gradient = trial_gradient
        return Solution(params, gradient, self.rounds)


def _is_flat(trial: float, value: float, length: float, slope: float) -> bool:
    """Whether rounding hides which point is lower."""
    change = abs(length * slope)
    return change <= VALUE_ROUNDING * max(abs(value), abs(trial)) or length < SHORTEST_STEP


def _two_loops(gradient: Array, pairs: list[tuple[Array, Array]], precondition: Map) -> Array:
    """The quasi-Newton inverse Hessian times the gradient (Nocedal, 1980)."""
    direction = gradient.copy()
    weights = []
    for moved, changed in reversed(pairs):
        weight = float((moved * direction).sum()) / float((moved * changed).sum())
        direction = direction - weight * changed
        weights.append(weight)
    direction = precondition(direction)
    for (moved, changed), weight in zip(pairs, reversed(weights), strict=True):
        correction = float((changed * direction).sum()) / float((moved * changed).sum())
        direction = direction + (weight - correction) * moved
    return direction
