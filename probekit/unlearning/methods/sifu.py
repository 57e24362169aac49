"""SIFU (Fraboni et al., 2024): back to the last model that owed little to the forgotten client, noise, and on from it.

For every model on the way the trainer bounded how far it is from training without the client. Gaussian noise of
sigma = limit * sqrt(2 ln(1.25 / delta)) / epsilon hides what is left of it: (epsilon, delta), whatever comes after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.federated.methods.sifu import KEPT_SIFU, FollowedRounds, SifuTraining, branch_in, kept_branch
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.values import Array

NOISE_STREAM = 41
TRAINED_SO = "a run that followed its clients: train with `method=sifu`"


@dataclass(frozen=True)
class Sifu:
    """Goes back to the last model within the limit, adds noise, and trains on; of a run that was trained by sifu.

    `epsilon`, `delta`: what the noise is for; epsilon None: no noise, and nothing is claimed. `rounds`: after going
    back; None: as many as there had been. The noise is drawn from `seed`.
    """

    name: ClassVar[str] = "sifu"
    needs: ClassVar[tuple[Any, ...]] = (
        ("kept", KEPT_SIFU, TRAINED_SO),
        ("trainer", "share", TRAINED_SO),
        ("request", "leaving"),
        ("online", "fit"),
    )
    keeps: ClassVar[tuple[str, ...]] = (KEPT_SIFU,)
    traits: ClassVar[frozenset[str]] = frozenset({"epsilon_delta"})
    source: ClassVar[str] = SifuTraining.source
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"epsilon": (1.0, 10.0, 100.0), "rounds": (None, 10)}

    epsilon: float | None = 10.0
    delta: float = 1e-5
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        good = (self.epsilon is None or self.epsilon > 0) and 0 < self.delta < 1 and (self.rounds or 0) >= 0
        if not good or self.seed < 0:
            raise InputError(
                "sifu takes an epsilon above 0, a delta in (0, 1), rounds and a seed of 0 or more; found "
                f"{self.epsilon}, {self.delta}, {self.rounds} and {self.seed}."
            )

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after the rounds from there."""
        options: SifuTraining = removal.material.options
        before = branch_in(removal.before.kept[KEPT_SIFU], removal.params)
        gone = [name for name in before.psi if name in removal.forgotten]
        number, model = self.rollback(before, gone, options.initial(removal.problem))
        owed = float(sum(before.psi[name][number] for name in gone))
        sigma = self.sigma(float(before.limits[number])) if owed else 0.0
        generator = np.random.Generator(np.random.PCG64([self.seed, NOISE_STREAM]))

        def noised(params: Array) -> Array:
            return params + sigma * generator.standard_normal(params.shape) if sigma else params

        rate = removal.before.learning_rate or options.learning_rate
        if rate is None:
            raise InputError("Training goes on at the run's learning rate, which is not known here. Train again.")
        rounds = max(len(before.limits) - 1 - number, 0) if self.rounds is None else self.rounds
        psi = {name: float(one[number]) for name, one in before.psi.items() if name in removal.counts}
        given: Any = {"ridge": removal.ridge, "rate": rate, "watch": removal.watch}
        after = options.branch(
            removal.online, removal.problem, **given, first=number, rounds=rounds, start=noised(model), psi=psi
        )
        models = {name: (at, noised(one)) for name, (at, one) in before.models.items() if name in removal.counts}
        traces = {name: np.concatenate([before.psi[name][:number], one]) for name, one in after.psi.items()}
        limits = np.concatenate([before.limits[:number], after.limits])
        kept = kept_branch(replace(after, psi=traces, limits=limits, models={**models, **after.models}))
        d, k = removal.problem.shape
        return removal.finish(
            self,
            params=after.params,
            flops=rounds * (options.local_steps or options.local_epochs or 1) * 4 * removal.rows * d * k,
            note=self._note(number, rounds, owed, sigma),
            rounds=len(limits) - 1,
            learning_rate=rate,
            kept={**removal.before.without(removal.forgotten).kept, KEPT_SIFU: kept},
        )

    def rollback(self, before: FollowedRounds, gone: list[str], start: Array) -> tuple[int, Array]:
        """The last kept model that all of the forgotten together moved by no more than the limit, and its round."""
        known = {0: start, **dict(before.models.values())}
        within = [at for at in known if sum(before.psi[name][at] for name in gone) <= before.limits[at]]
        return max(within), known[max(within)]

    def sigma(self, limit: float) -> float:
        """The noise that hides a difference of this norm."""
        return 0.0 if self.epsilon is None else limit * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def _note(self, number: int, rounds: int, owed: float, sigma: float) -> str:
        said = f"Went back to round {number}, which owed at most {owed:.4g} to the forgotten, and {rounds} rounds on."
        if not sigma:
            return said
        return (
            f"{said} Noise of sigma {sigma:.6g} was added there for epsilon {self.epsilon:g}, delta {self.delta:g}: "
            "this holds for full batches of plain descent on a ridge loss at a rate that was given, for one request, "
            "and for whoever does not know the seed."
        )
