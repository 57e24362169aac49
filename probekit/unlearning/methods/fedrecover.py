"""FedRecover (Cao et al., 2023): the run's rounds again, with what retained clients would have sent estimated.

A client's pseudo-gradient at the new model is taken to be g_t^c + B_c (M_t - w_t), with g_t^c and w_t as kept and B_c a
limited-memory matrix from the rounds in which it really trained. Of gradients in one local step B_c is the curvature;
of M steps it is Q_c = I - (I - rate * H_c)^M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.linear.squares import StatsSquares
from probekit.models.fitting import FitPlan
from probekit.unlearning.history import HISTORY_NEEDS, KeptRound, Replay
from probekit.unlearning.method import REMEDIES, Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, fits, local_plan
from probekit.values import Array

MATRICES = ("secant", "exact")


@dataclass(frozen=True)
class FedRecover:
    """Repeats the run's rounds from kept ones, asking few of the clients (Starfish's two servers are out of scope).

    `buffer`: pairs of differences that a client's matrix is made of. `warmup` rounds, every `correction`-th one (0:
    none) and the last `tuning` ones are really trained; the others are estimated. `matrices`: "secant", or "exact": of
    a head by plain full-batch descent whose statistics were kept, the true ones, and nobody is asked; that is FedAvg's
    retraining. Starfish (Liu et al., 2024) computes this among two servers that hold secret shares; here one server
    holds the history, and nothing is claimed of two.
    """

    name: ClassVar[str] = "fedrecover"
    needs: ClassVar[tuple[Any, ...]] = (*HISTORY_NEEDS, ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("history",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Cao et al., S&P 2023"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"correction": (5, 10, 20), "buffer": (1, 2)}

    buffer: int = 2
    warmup: int = 10
    correction: int = 10
    tuning: int = 5
    matrices: str = "secant"

    def __post_init__(self) -> None:
        if self.buffer < 1 or min(self.warmup, self.correction, self.tuning) < 0 or self.matrices not in MATRICES:
            raise InputError(
                "fedrecover takes a buffer of 1 or more, rounds of 0 or more and matrices=secant or exact; found "
                f"{self.buffer}, {self.warmup}, {self.correction}, {self.tuning} and {self.matrices}."
            )

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after all rounds."""
        replay, plan = Replay(removal), local_plan(removal)
        matrices = {name: self._matrix(removal, plan, name) for name in replay.shares}
        last, asked = len(replay.history.rounds), 0

        def step(now: Array, one: KeptRound) -> Array:
            nonlocal asked
            if not self._trained(one.number, last):
                moves = [matrices[name].product(now - one.start) for name in one.names]
                return replay.moved(now, one, one.updates - np.stack(moves))
            asked += 1
            found = fits(removal.retained, now, replace(plan, round=one.number), clients=one.names)
            sent = np.stack([found[name] for name in one.names])
            for name, kept, new in zip(one.names, one.updates, sent - now, strict=True):
                matrices[name].add(now - one.start, kept - new)
            return replay.moved(now, one, sent - now, sent)

        params = replay.run(step)
        d, k = removal.problem.shape
        flops = (
            asked * (plan.steps or plan.epochs or 1) * 4 * removal.rows * d * k + last * params.size * 8 * self.buffer
        )
        note = f"{asked} of {last} rounds were trained by the retained clients; the others were estimated."
        return removal.finish(self, params=params, flops=flops, note=note, **replay.kept(params))

    def _trained(self, number: int, rounds: int) -> bool:
        """Whether a round is really trained."""
        if self.matrices == "exact":
            return False
        regular = self.correction and (number - self.warmup + 1) % self.correction == 0
        return bool(number < self.warmup or number >= rounds - self.tuning or regular)

    def _matrix(self, removal: Removal, plan: FitPlan, client: str) -> Any:
        if self.matrices == "secant":
            return Secant(self.buffer)
        statistics = removal.statistics
        if statistics is None or plan.batch is not None or plan.optimiser.name != "sgd":
            raise InputError(
                f"fedrecover:matrices=exact needs full batches, plain sgd and {REMEDIES['kept', 'statistics']}."
            )
        squares = StatsSquares(statistics[client])
        return LocalMatrix(squares, removal.problem.penalty(plan.ridge), plan.rate, plan.steps or plan.epochs or 1)


@dataclass(eq=False)
class Secant:
    """B v from the last pairs of differences of parameters and of pseudo-gradients (Byrd et al., 1994); 0 of none."""

    size: int
    moved: list[Array] = field(default_factory=list)
    changed: list[Array] = field(default_factory=list)

    def add(self, moved: Array, changed: Array) -> None:
        """Take a pair in, unless it has no curvature."""
        if float((moved * changed).sum()) > np.finfo(np.float64).eps * float((moved * moved).sum()):
            self.moved = [*self.moved, moved.ravel()][-self.size :]
            self.changed = [*self.changed, changed.ravel()][-self.size :]

    def product(self, v: Array) -> Array:
        """The matrix applied."""
        if not self.moved:
            return np.zeros_like(v)
        S, Y, flat = np.stack(self.moved, 1), np.stack(self.changed, 1), v.ravel()
        A, scale = S.T @ Y, float(Y[:, -1] @ S[:, -1]) / float(S[:, -1] @ S[:, -1])
        lower = np.tril(A, -1)
        middle = np.block([[-np.diag(np.diag(A)), lower.T], [lower, scale * S.T @ S]])
        right = np.concatenate([Y.T @ flat, scale * S.T @ flat])
        # pairs of consecutive rounds are nearly parallel
        weights = np.linalg.lstsq(middle, right, rcond=None)[0]
        return np.asarray(scale * flat - np.hstack([Y, scale * S]) @ weights).reshape(v.shape)


@dataclass(frozen=True, eq=False)
class LocalMatrix:
    """Q v = v - (I - rate * H)^steps v, from a client's statistics."""

    squares: StatsSquares
    penalty: Array
    rate: float
    steps: int

    def product(self, v: Array) -> Array:
        """The matrix applied."""
        left = v
        for _ in range(self.steps):
            left = left - self.rate * (self.squares.product(left) / self.squares.count + self.penalty * left)
        return np.asarray(v - left)
