"""Local training in a removal: the run's own plan and rate, in rounds after those that are done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from probekit.arrays import Array
from probekit.federated.federation import Federation
from probekit.federated.local import LocalPlan, LossRecipe, TrainingLoss
from probekit.federated.queries import Curvature, LocalFit, Weight
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.linear.model import LinearModel
from probekit.unlearning.removal import Need, Questions, Removal

STEPS = 5
"""Full-batch steps of a local round, for heads that were not trained by FedAvg."""


def own_fedavg(removal: Removal) -> FedAvg | None:
    """The run's FedAvg, whose rate is known; None where it was trained otherwise."""
    trainer = removal.state.trainer
    if isinstance(trainer, KnotTraining):
        return trainer.fedavg
    return replace(trainer, keep=frozenset()) if isinstance(trainer, FedAvg) else None


def local_training(removal: Removal, clients: Federation) -> FedAvg:
    """The run's FedAvg; else full-batch steps at a rate that suits these clients."""
    fedavg = own_fedavg(removal)
    if fedavg is not None:
        return fedavg
    fedavg = FedAvg(1, LocalPlan(steps=STEPS))
    return fedavg.with_rate(clients, ridge=removal.ridge_choice.value)


def rate_needs(removal: Removal) -> frozenset[Need]:
    """A rate, where the run has none and it does not follow from curvatures, as that of a head."""
    is_head = isinstance(removal.state.model, LinearModel)
    has_rate = own_fedavg(removal) is not None or is_head
    return frozenset() if has_rate else frozenset({Need.RATE})


def rate_questions(removal: Removal, *, target: bool = False) -> list[Questions]:
    """What `local_training` asks."""
    has_rate = own_fedavg(removal) is not None
    return [] if has_rate else [Questions(Curvature(), target=target)]


def fit_questions(
    params: Array,
    recipe: LossRecipe | None = None,
    *,
    times: int = 1,
    clients: Collection[str] | None = None,
    target: bool = False,
) -> Questions:
    """Rounds of local training from parameters of this shape."""
    fit = LocalFit(params, LocalPlan(steps=1), recipe or TrainingLoss(0.0))
    names = None if clients is None else sorted(clients)
    return Questions(fit, times, names, target)


def continued_questions(
    fedavg: FedAvg | None, removal: Removal, numbers: Sequence[int]
) -> list[Questions]:
    """What FedAvg asks the retained clients in the rounds of these numbers."""
    params = removal.state.params
    if not numbers:
        return []
    if fedavg is None or fedavg.participation == 1:
        return [fit_questions(params, times=len(numbers))]
    rounds = [
        fit_questions(params, clients=fedavg.draw(removal.retained, number)) for number in numbers
    ]
    return rounds if fedavg.uniform else [Questions(Weight()), *rounds]


def target_round(
    removal: Removal,
    fedavg: FedAvg,
    start: Array,
    plan: LocalPlan,
    recipe: LossRecipe | None = None,
) -> Array:
    """The mean of the forgotten clients' parameters after one round by this plan."""
    ridge = removal.ridge_choice.value
    trained = replace(fedavg, plan=plan).uploads(
        removal.target, start, removal.round, ridge=ridge, recipe=recipe
    )
    return fedavg.step(start, trained)
