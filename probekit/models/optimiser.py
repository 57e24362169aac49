"""The steps that clients take: plain, with momentum, or Adam. State lives for one round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.errors import InputError
from probekit.registry import nearest
from probekit.values import Array

OPTIMISERS = ("sgd", "momentum", "adam")


@dataclass
class State:
    """What an optimiser remembers between the steps of one round, for all clients of a stack."""

    first: Array
    second: Array
    steps: int = 0


@dataclass(frozen=True)
class Optimiser:
    """A rule that turns gradients into steps; it works on a stack of clients at once.

    sgd: w - rate g. momentum: m = momentum m + g, w - rate m. adam: the usual one, with bias correction and
    epsilon outside the square root.
    """

    name: str = "sgd"
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in OPTIMISERS:
            raise InputError(f"There is no optimiser {self.name!r}. {nearest(self.name, list(OPTIMISERS))}")
        if not all(0 <= value < 1 for value in (self.momentum, *self.betas)) or not self.epsilon > 0:
            raise InputError(f"Momentum and betas must lie in [0, 1) and epsilon above 0; found {self}.")

    def start(self, params: Array) -> State:
        """Fresh state for these parameters."""
        first = np.zeros_like(params if self.name != "sgd" else params[:0])
        return State(first, np.zeros_like(params if self.name == "adam" else params[:0]))

    def step(self, params: Array, gradient: Array, *, state: State, rate: float) -> None:
        """Move, in place, the first clients of the stack: as many as the gradient has."""
        active = len(gradient)
        moving = params[:active]
        state.steps += 1
        if self.name == "sgd":
            moving -= rate * gradient
            return
        first = state.first[:active]
        if self.name == "momentum":
            first *= self.momentum
            first += gradient
            moving -= rate * first
            return
        second, (fading, fading_square) = state.second[:active], self.betas
        first *= fading
        first += (1 - fading) * gradient
        second *= fading_square
        second += (1 - fading_square) * gradient**2
        size = np.sqrt(second / (1 - fading_square**state.steps)) + self.epsilon
        moving -= rate / (1 - fading**state.steps) * first / size

    def largest_rate(self, curvature: float) -> float | None:
        """The rate from which full-batch steps diverge at this largest curvature; None: no such rule."""
        if self.name == "adam":
            return None
        return 2 * (1 + (self.momentum if self.name == "momentum" else 0.0)) / curvature
