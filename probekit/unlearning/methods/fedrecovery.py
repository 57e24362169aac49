"""FedRecovery (Zhang et al., 2023): the forgotten clients' weighted residuals, subtracted at the end, and noise.

With a_i the aggregate update of round i and b_i the same without the forgotten, w = w_T - sum q_i (a_i - b_i), with
q_i = |a_i|^2 / sum |a_j|^2. As these weights sum to 1 it takes one average round's residual off; the sum with weights 1
is FedAccum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.unlearning.history import HISTORY_NEEDS, Replay
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.values import Array

NOISE_STREAM = 40
WEIGHINGS, RESIDUALS = ("norm", "sum"), ("paper", "fedau")
RELEASED = (
    "Its (epsilon, delta) holds only if the head before was released with noise of the same sigma, and for whoever "
    "does not know the seed."
)


@dataclass(frozen=True)
class FedRecovery:
    """Subtracts the forgotten clients' weighted residuals of all rounds; asks nobody.

    `weights`: "norm" (the paper's), or "sum": all rounds in full, which is FedAccum. `scale`: of what is subtracted.
    `residual`: "paper", or "fedau" as in the comparison of FedAU's code, (a - D_u / n) / (n - 1): it takes the
    *retained* clients' updates off. Noise: `sigma` of every parameter, or `epsilon` with `delta`: sigma then follows
    from the certified distance to retraining, |gradient| / ridge, for which the retained clients' gradient is asked;
    the paper's own bound is not used. It is drawn from `seed`. None: no noise.
    """

    name: ClassVar[str] = "fedrecovery"
    needs: ClassVar[tuple[Any, ...]] = HISTORY_NEEDS
    keeps: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[frozenset[str]] = frozenset({"epsilon_delta"})
    source: ClassVar[str] = "Zhang et al., TIFS 2023"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"scale": (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)}

    weights: str = "norm"
    scale: float = 1.0
    residual: str = "paper"
    sigma: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.weights not in WEIGHINGS or self.residual not in RESIDUALS:
            raise InputError(
                f"fedrecovery takes weights={' or '.join(WEIGHINGS)} and residual={' or '.join(RESIDUALS)}; found "
                f"{self.weights} and {self.residual}."
            )
        positive = all(one is None or one > 0 for one in (self.sigma, self.epsilon))
        if not positive or not 0 < self.delta < 1 or (self.sigma and self.epsilon) or self.seed < 0:
            raise InputError(
                "fedrecovery takes a sigma or an epsilon above 0, not both, a delta in (0, 1) and a seed of 0 or more; "
                f"found {self.sigma}, {self.epsilon}, {self.delta} and {self.seed}."
            )

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head without the residuals, and with the noise that was asked for."""
        replay, found = Replay(removal), []
        for number, one in enumerate(replay.history.rounds):
            whole = replay.after(number + 1) - one.start
            found.append((float(np.square(whole).sum()), self._residual(replay, number, whole)))
        total = sum(size for size, _ in found) or 1.0
        taken = sum((size / total if self.weights == "norm" else 1.0) * one for size, one in found)
        params = np.asarray(replay.history.end - self.scale * taken)
        for rows in replay.means:  # buffers: the retained clients' of the last round
            last = replay.rounds[-1]
            params[rows] = replay.average(last.start, last.names, last.uploads)[rows]
        sigma, said = self._sigma(removal, params)
        if sigma:
            generator = np.random.Generator(np.random.PCG64([self.seed, NOISE_STREAM]))
            params = params + sigma * generator.standard_normal(params.shape)
        return removal.finish(self, params=params, flops=3 * params.size * len(found), note=said)

    def _residual(self, replay: Replay, number: int, whole: Array) -> Array:
        """What the forgotten clients changed in a round."""
        one = replay.history.rounds[number]
        if self.residual == "fedau":
            many = len(one.participants)
            gone = [one.update(name) for name in one.participants if name not in replay.shares]
            return np.asarray((whole - sum(gone, np.zeros_like(whole)) / many) / max(many - 1, 1))
        who = [at for at, name in enumerate(one.participants) if name in replay.shares]
        if not who:
            return whole
        names = [one.participants[at] for at in who]
        return np.asarray(whole - (replay.average(one.start, names, np.asarray(one.uploads)[who]) - one.start))

    def _sigma(self, removal: Removal, params: Array) -> tuple[float, str]:
        """The noise wanted, and what is to be said of it."""
        if self.sigma is not None:
            return self.sigma, f"Noise of sigma {self.sigma:.6g} was added, as asked for. {RELEASED}"
        if self.epsilon is None:
            return 0.0, "No noise was asked for, so that nothing of (epsilon, delta) is claimed."
        ridge = float(np.min(removal.problem.penalty(removal.ridge)))
        certified = "quadratic" in removal.problem.traits and ridge > 0 and removal.retained.offers("gradient")
        if not certified:
            raise InputError(
                "Sigma follows from a certified distance: of a quadratic loss with a ridge above 0, whose retained "
                "clients answer. Give sigma instead of epsilon, or keep statistics."
            )
        distance = float(np.linalg.norm(removal.loss.gradient(params))) / ridge
        least = math.log(1 / self.delta)
        sigma = distance / math.sqrt(2) / (math.sqrt(least + self.epsilon) - math.sqrt(least))
        return sigma, (
            f"Noise of sigma {sigma:.6g} was added for epsilon {self.epsilon:g}, delta {self.delta:g}: it follows from "
            f"the certified distance {distance:.6g} to retraining, not from the paper's bound, and so depends on the "
            f"rows. {RELEASED}"
        )
