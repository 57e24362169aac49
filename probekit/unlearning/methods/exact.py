"""Exact removal: training anew to the minimum over the retained rows. Nothing is subtracted.

Ridge heads: the clients' sums, kept or asked for again, are added and solved. Training adds the
same sums by the same function in the same order, and chooses the ridge from them by the same rule,
so the head has the bits of a retrained one. Logistic heads and linearized networks are minimized
from the start, as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from probekit.federated.federation import collect_stats
from probekit.federated.queries import Statistics
from probekit.federated.state import KeptStatistics, State, Trainer
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.model import LinearModel
from probekit.records import record
from probekit.unlearning.methods.retrain import training_questions
from probekit.unlearning.removal import Need, Promise, Questions, Removal


@record("method/exact")
@dataclass(frozen=True)
class Exact:
    """Asks nobody where statistics are kept but clients that forget samples."""

    promise: ClassVar[Promise] = "minimum"

    def needs(self, removal: Removal) -> frozenset[Need]:
        if not removal.has_sums:
            return frozenset({Need.RETAINED, Need.RETAINED_ROWS, Need.PENALIZED, Need.LINEAR})
        return frozenset() if removal.keeps_statistics else frozenset({Need.RETAINED})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        if not removal.has_sums:
            return training_questions(_minimizer(removal), removal)
        return [] if removal.keeps_statistics else [Questions(Statistics())]

    def unlearn(self, removal: Removal) -> State:
        state = removal.state
        setting = state.ridge_choice.setting
        if not removal.has_sums:
            trainer = _minimizer(removal)
            trained = trainer.train(removal.retained, ridge=setting, progress=removal.progress)
            return replace(trained, trainer=state.trainer)
        parts = removal.statistics
        if parts is None:
            parts = collect_stats(removal.retained, progress=removal.progress)
        everybody = replace(removal.retained, clients=removal.clients)
        solved = ClosedForm().solve(everybody, parts, ridge=setting)
        kept = () if state.get(KeptStatistics) is None else solved.kept
        return removal.finish(solved.params, *kept, ridge=solved.ridge_choice)


def _minimizer(removal: Removal) -> Trainer:
    trainer = removal.state.trainer
    if isinstance(removal.state.model, LinearModel):
        return trainer if isinstance(trainer, LbfgsRounds) else LbfgsRounds(keep=frozenset())
    return trainer if isinstance(trainer, ConjugateGradients) else ConjugateGradients()
