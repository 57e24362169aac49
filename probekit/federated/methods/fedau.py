"""FedAvg with an auxiliary head of every client, trained to false labels of its own rows (Gu et al., IJCAI 2024).

On a head the auxiliary one does not touch the main one, so that it is trained after the rounds, in one question with as
many steps as all rounds had: W_a = W~ + (I - rate H)^S (W_0 - W~), W~ the client's minimum for its false labels, S
steps. Of a network the last layer alone is trained, on the features of the final one (the authors train it in every
round).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.trained import Kept, Trained
from probekit.federated.training import Training
from probekit.models.adapters import last_layer
from probekit.models.fitting import FitPlan

AUXILIARY = "auxiliary"
LABELS = ("false", "random")


@dataclass(frozen=True)
class FedAu(FedAvg):
    """FedAvg, and an auxiliary head of every client for the method `fedau`.

    `labels`: "false" (never a row's own) or, as the public code draws them, "random" (one in k is right). `gamma` is
    the auxiliary loss's share, which on a head of its own scales its rate. `auxiliary_steps` None: as many as all
    rounds together.
    """

    name: ClassVar[str] = "fedau"
    keeps: ClassVar[tuple[str, ...]] = (*FedAvg.keeps, AUXILIARY)
    presets: ClassVar[tuple[str, ...]] = ()

    labels: str = "false"
    gamma: float = 0.5
    auxiliary_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels not in LABELS or not 0 < self.gamma <= 1 or (self.auxiliary_steps or 1) < 1:
            raise InputError(
                f"fedau takes labels {' or '.join(LABELS)}, a gamma in (0, 1] and auxiliary_steps of 1 or more; found "
                f"{self.labels}, {self.gamma} and {self.auxiliary_steps}."
            )

    def train(self, training: Training) -> Trained:
        """FedAvg's rounds, then one question for the auxiliary heads."""
        found, problem = super().train(training), training.problem
        mask = last_layer(problem)
        start = np.where(mask > 0, self.initial(problem), found.params)
        steps, epochs = self._steps(found.rounds)
        rate = self.gamma * float(found.learning_rate or 1.0)
        local = (steps, epochs, self.batch_size, self.drop_last, self.optimiser, rate)
        plan = FitPlan(*local, training.mean_ridge, targets=self.labels, seed=self.seed)
        with training.purpose(AUXILIARY):
            answers = training.clients.ask("fit", {"params": start, "mask": mask}, plan.plain)
            parts = {one.client: {"params": one.arrays["params"]} for one in answers.each()}
        kept = Kept(parts=parts, about=frozenset(parts))
        return replace(found, kept={**found.kept, AUXILIARY: kept}, traffic=dict(training.traffic))

    def _steps(self, rounds: int) -> tuple[int | None, int | None]:
        """Steps or epochs of an auxiliary head."""
        if self.auxiliary_steps is not None:
            return self.auxiliary_steps, None
        many: dict[str, Any] = {one: getattr(self, one) for one in ("local_steps", "local_epochs")}
        return tuple(None if value is None else value * rounds for value in many.values())  # type: ignore[return-value]
