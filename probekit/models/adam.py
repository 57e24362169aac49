"""The paper's iterative solver: Adam on 1/2 <v, A v> - <g, v>, the best of what it passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from probekit.errors import InputError
from probekit.linear.design import Solution
from probekit.linear.solvers import Operator, as_operator, residual_of
from probekit.models.optimiser import Optimiser
from probekit.values import Array

START_STREAM = 30


@dataclass(frozen=True)
class AdamSteps:
    """Full-batch Adam. Every `look_every` steps the objective is looked at; the lowest one's point is given.

    `weight_decay` is added to the gradient as weight_decay v, and not to the objective. `start`: the first point, else
    zeros or (`random_start`) uniform in +-1 / sqrt(columns). The rate is multiplied
    by `decay` every `decay_every` steps. It gives what it reached, with its true residual, and refuses nothing.
    """

    rate: float = 0.01
    steps: int = 400
    decay: float = 0.9
    decay_every: int = 200
    look_every: int = 5
    weight_decay: float = 0.0
    random_start: bool = False
    seed: int = 0
    start: Array | None = field(default=None, compare=False)
    watch: Callable[[int, float, Array], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.steps > 0 and self.decay_every > 0 and self.look_every > 0):
            raise InputError(f"Adam needs a rate and numbers of steps above 0; found {self}.")

    def solve(self, operator: Operator | Array, rhs: Array) -> Solution:
        """The best point passed."""
        operator = as_operator(operator)
        v = np.zeros_like(rhs)
        if self.start is not None:
            v = self.start.copy()
        elif self.random_start:
            generator = np.random.Generator(np.random.PCG64([self.seed, START_STREAM]))
            v = generator.uniform(-1, 1, rhs.shape) / math.sqrt(len(rhs))
        optimiser = Optimiser("adam")
        stack = v[None]
        state = optimiser.start(stack)
        best, lowest, taken = stack[0].copy(), math.inf, 0
        for step in range(self.steps + 1):
            image = operator.matvec(stack[0])
            if self.watch is not None:
                self.watch(step, float(np.linalg.norm(image - rhs) / (np.linalg.norm(rhs) or 1)), stack[0])
            objective = float((stack[0] * (image / 2 - rhs)).sum())
            if step % self.look_every == 0 and objective < lowest:
                best, lowest, taken = stack[0].copy(), objective, step
            gradient = image - rhs + self.weight_decay * stack[0]
            rate = self.rate * self.decay ** (step // self.decay_every)
            optimiser.step(stack, gradient[None], state=state, rate=rate)
        note = f"The best of {self.steps} Adam steps was number {taken}."
        return Solution(best, residual_of(operator, best, rhs), self.steps, "adam", note)


F2L2 = AdamSteps(weight_decay=0.01, random_start=True)
"""The published code's schedule: 400 steps at 0.01, the rate times 0.9 every 200, the best of every fifth."""
F2L2_MNIST = AdamSteps(steps=3200, decay_every=400, weight_decay=0.01, random_start=True)
"""Its schedule for MNIST: eight times the steps."""
ADAM = {"adam": AdamSteps(), "f2l2": F2L2, "f2l2-mnist": F2L2_MNIST}
