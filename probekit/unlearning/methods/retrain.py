"""Retraining: the run's own trainer, from its start and at its rate, on what is retained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from probekit.arrays import Array
from probekit.federated.held_out import ROUNDS, FittedGradients, HeldOut, HeldOutLosses
from probekit.federated.queries import Gradient, Product, Statistics, Weight
from probekit.federated.state import State, Trainer
from probekit.federated.training.cg import NEWTON_STEPS, ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.ridge import InverseC, RidgeRule
from probekit.records import record
from probekit.unlearning.local import continued_questions, fit_questions
from probekit.unlearning.removal import Need, Promise, Questions, Removal


@record("method/retrain")
@dataclass(frozen=True)
class Retrain:
    """Trains again, a ridge that a rule chose included: what all other methods are measured by."""

    promise: ClassVar[Promise] = "retrained"

    def needs(self, removal: Removal) -> frozenset[Need]:
        closed = isinstance(removal.state.trainer, ClosedForm)
        return frozenset({Need.RETAINED} if closed else {Need.RETAINED, Need.RETAINED_ROWS})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return training_questions(removal.state.trainer, removal)

    def unlearn(self, removal: Removal) -> State:
        state = removal.state
        setting = state.ridge_choice.setting
        return state.trainer.train(removal.retained, ridge=setting, progress=removal.progress)


def training_questions(trainer: Trainer, removal: Removal) -> list[Questions]:
    """What a trainer asks, at most."""
    params = removal.state.params
    rule = removal.state.ridge_choice.rule
    if isinstance(trainer, ClosedForm):
        questions = [Questions(Statistics())]
    elif isinstance(trainer, LbfgsRounds):
        summed = trainer.whiten or "statistics" in trainer.keep
        questions = _choosing(rule, params, summed=summed)
        questions.append(Questions(Gradient(params), times=2 * trainer.rounds))
    elif isinstance(trainer, FedAvg):
        questions = _choosing(rule, params, summed="statistics" in trainer.keep)
        questions += continued_questions(trainer, removal, range(trainer.rounds))
    elif isinstance(trainer, KnotTraining):
        questions = _choosing(rule, params, summed=bool(trainer.keep))
        questions.append(fit_questions(params))
        for group in np.array_split(list(removal.retained.clients), trainer.clusters):
            questions.append(fit_questions(params, times=trainer.fedavg.rounds, clients=group))
        return questions
    elif isinstance(trainer, ConjugateGradients):
        questions = [Questions(Weight())] if rule else []
        questions.append(Questions(Product(params, params), times=trainer.products))
        questions.append(Questions(Gradient(params), times=NEWTON_STEPS))
    else:
        return []
    if "gradients" in trainer.keep:
        questions.append(Questions(Gradient(params)))
    return questions


def _choosing(rule: RidgeRule | None, params: Array, *, summed: bool) -> list[Questions]:
    """What is asked for the choice of a ridge; summed: the trainer asks for statistics anyhow."""
    questions = [Questions(Statistics())] if summed else []
    if isinstance(rule, HeldOut):
        several = np.stack([params] * len(rule.Cs))
        questions.append(Questions(FittedGradients(several), times=2 * ROUNDS))
        questions.append(Questions(HeldOutLosses(several)))
    if rule is None or summed:
        return questions
    by_weight = isinstance(rule, InverseC | HeldOut)
    return [*questions, Questions(Weight() if by_weight else Statistics())]
