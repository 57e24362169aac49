"""SIFU's training (Fraboni et al., 2024): FedAvg that follows how much each client may have moved the model.

With F the mean of a round's uploads f_c, leaving client c out of that round changes the outcome by exactly
p_c / (1 - p_c) |f_c - F|, and what it changed before fades by at most (1 - rate * ridge) in each local step:
Psi_c <- fade * Psi_c + p_c / (1 - p_c) |f_c - F| bounds the distance to training without c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.local_rounds import averaged_rows, round_uploads, steady_rate, trained_at
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.server import average, client_weights
from probekit.federated.trained import Kept, Trained
from probekit.federated.training import Training
from probekit.protocols import Progress, Watch
from probekit.values import Array

KEPT_SIFU = "sifu"
PSI = ("bound", "exact")
CODE_EPSILON, CODE_SIGMA = 10.0, 0.05
"""The public code's constants."""


@dataclass(frozen=True, eq=False)
class FollowedRounds:
    """Rounds with what they may owe to each client: `psi` before every round and at the end, the limit that it was
    held to there, and of each client the last model within it, with its round.
    """

    params: Array
    psi: Mapping[str, Array]
    limits: Array
    models: Mapping[str, tuple[int, Array]]


@dataclass(frozen=True)
class SifuTraining(FedAvg):
    """FedAvg that keeps of each client the last model which it moved by no more than `share` of the model's norm.

    `psi`: "bound" (the recursion, with the ridge's contraction where steps are plain descent), or "exact": every round
    is repeated without each client, at the cost of as many trainings as there are clients. `reference`: the public
    code's limit (epsilon 10, sigma 0.05, delta 1 / clients, whatever the model's norm) and no contraction; it goes back
    to the first rounds, which is retraining. The other options are FedAvg's; everybody takes part in every round.
    """

    name: ClassVar[str] = "sifu"
    keeps: ClassVar[tuple[str, ...]] = ("gradients", "statistics", KEPT_SIFU)
    source: ClassVar[str] = "Fraboni et al., AISTATS 2024"

    share: float = 0.1
    psi: str = "bound"
    reference: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.psi not in PSI or not 0 <= self.share < math.inf:
            raise InputError(
                f"sifu takes psi={' or '.join(PSI)} and a share of 0 or more; found {self.psi}, {self.share}."
            )
        if self.participation < 1 or self.keep_history:
            raise InputError(
                "sifu follows every client in every round and keeps no history; found "
                f"participation={self.participation}, keep_history={self.keep_history}. Leave them out."
            )

    def train(self, training: Training) -> Trained:
        """The rounds, and what is kept of them."""
        ridge, problem = training.mean_ridge, training.problem
        with training.purpose("scales"):
            rate = steady_rate(self, training.clients, problem, ridge)
        with training.purpose("rounds"):
            found = self.branch(training.clients, problem, ridge=ridge, rate=rate, watch=training.watch)
        return trained_at(self, training, found.params, {KEPT_SIFU: kept_branch(found)}, rate=rate)

    def branch(
        self,
        clients: Federation,
        problem: Any,
        *,
        ridge: float,
        rate: float,
        watch: Watch,
        first: int = 0,
        rounds: int | None = None,
        start: Array | None = None,
        psi: Mapping[str, float] | None = None,
    ) -> FollowedRounds:
        """Rounds from `first` on, from this start and what it owes to each client; so many of them, or to the last."""
        params = self.initial(problem) if start is None else start
        names, means, progress = list(clients.clients), averaged_rows(problem), watch("rounds")
        shares = client_weights(np.array([clients.counts[name] for name in names]), self.weights)
        owed, fade = np.array([(psi or {}).get(name, 0.0) for name in names]), self._fade(problem, ridge, rate)
        without = dict.fromkeys(names, params) if self.psi == "exact" and first == 0 and len(names) > 1 else {}
        how: Any = {"rate": self.server_learning_rate, "means": means}
        trace, limits, models = [owed], [self._limit(params, len(names))], dict[str, tuple[int, Array]]()
        last = self.rounds if rounds is None else first + rounds

        def look(number: int) -> None:
            models.update(
                {name: (number, params) for name, one in zip(names, trace[-1], strict=True) if one <= limits[-1]}
            )

        look(first)
        for number in range(first, last):
            plan: Any = {"number": number, "rate": rate, "ridge": ridge}
            uploads = round_uploads(self, clients, params, names, **plan)
            apart = uploads - np.tensordot(shares, uploads, axes=1)
            params = average(params, uploads, shares, clients=len(names), **how)
            for gone in without:
                rest = [name for name in names if name != gone]
                sent = round_uploads(self, clients, without[gone], rest, **plan)
                own = client_weights(np.array([clients.counts[name] for name in rest]), self.weights)
                without[gone] = average(without[gone], sent, own, clients=len(rest), **how)
            owed = (
                np.array([np.linalg.norm(params - without[name]) for name in names])
                if without
                else fade * owed + self.server_learning_rate * _odds(shares) * np.linalg.norm(apart, axis=(1, 2))
            )
            trace.append(owed)
            limits.append(self._limit(params, len(names)))
            look(number + 1)
            progress(Progress(number + 1, last))
        traces = np.array(trace)
        return FollowedRounds(params, {name: traces[:, at] for at, name in enumerate(names)}, np.array(limits), models)

    def _fade(self, problem: Any, ridge: float, rate: float) -> float:
        """How much of a difference a round leaves: below 1 where every local step contracts."""
        contracts = "quadratic" in problem.traits and self.optimiser.name == "sgd" and not self.reference
        least = float(np.min(problem.penalty(ridge))) if contracts else 0.0
        local = (1 - rate * least) ** (self.local_steps or self.local_epochs or 1)
        return (
            1 - self.server_learning_rate + self.server_learning_rate * local if self.server_learning_rate <= 1 else 1.0
        )

    def _limit(self, params: Array, clients: int) -> float:
        if self.reference:
            return CODE_EPSILON * CODE_SIGMA / math.sqrt(2 * math.log(1.25 * clients))
        return self.share * float(np.linalg.norm(params))


def _odds(shares: Array) -> Array:
    """p / (1 - p); 0 of a client that is alone, and cannot leave."""
    return np.divide(shares, 1 - shares, out=np.zeros_like(shares), where=shares < 1)


def kept_branch(found: FollowedRounds) -> Kept:
    """A branch as it is kept."""
    parts = {name: {"psi": psi} for name, psi in found.psi.items()}
    for name, (_, model) in found.models.items():
        parts[name]["model"] = model
    plain: Any = {name: number for name, (number, _) in found.models.items()}
    return Kept({"limits": found.limits}, parts, plain, frozenset(found.psi))


def branch_in(kept: Kept, params: Array) -> FollowedRounds:
    """The branch that was kept."""
    rounds: Any = kept.plain
    models = {name: (int(rounds[name]), kept.parts[name]["model"]) for name in rounds}
    return FollowedRounds(params, {name: one["psi"] for name, one in kept.parts.items()}, kept.arrays["limits"], models)
