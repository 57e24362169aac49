"""What trainers that stand on FedAvg's rounds share: a steady rate, a round's uploads, and how a training ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from probekit.federated.federation import Federation
from probekit.federated.loss import CommonLoss
from probekit.federated.methods.cg import training_recipe
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.trained import Kept, Trained
from probekit.federated.training import Training
from probekit.linear.design import Solution
from probekit.models.fitting import FitPlan
from probekit.values import Array


def steady_rate(
    options: FedAvg, clients: Federation, problem: Any, ridge: float, who: Collection[str] | None = None
) -> float:
    """The learning rate that was asked for, or 1 / (largest curvature) of these clients."""
    if options.learning_rate is not None:
        return options.learning_rate
    plan = {"ridge": ridge, "batch": options.batch_size}
    answers = clients.ask("scales", plan=plan, clients=who, precision=problem.precision)
    return 1 / max(one.values["curvature"] for one in answers.each())


def round_uploads(
    options: FedAvg, clients: Federation, params: Array, who: Sequence[str], *, number: int, rate: float, ridge: float
) -> Array:
    """What these clients come to in a round that starts from these parameters, in the order of names."""
    local = (options.local_steps, options.local_epochs, options.batch_size, options.drop_last, options.optimiser)
    plan = FitPlan(*local, rate, ridge, seed=options.seed, round=number, tells_loss=False).plain
    found = {
        one.client: one.arrays["params"] for one in clients.ask("fit", {"params": params}, plan, clients=who).each()
    }
    return np.stack([found[name] for name in who])


def averaged_rows(problem: Any) -> list[slice]:
    """The rows of parameters that are averaged and never moved by steps, as a network's buffers."""
    return [problem.blocks[name] for name in getattr(problem, "averaged", ())]


def trained_at(
    options: FedAvg, training: Training, params: Array, kept: dict[str, Kept], *, rate: float | None = None
) -> Trained:
    """The end of a training: the head, how far the common loss's gradient fell, and what is kept."""
    problem, common = training.problem, CommonLoss(training.clients, training.problem, training.mean_ridge)
    with training.purpose("residual"):
        first, last = (float(np.linalg.norm(common.gradient(one))) for one in (problem.start, params))
    note = "The residual is that of the common loss, whose minimum these rounds do not aim at."
    solution = Solution(params, last / (first or 1.0), options.rounds, options.name, note)
    head = problem.head(params, ridge=training.ridge, recipe=training_recipe(training, solution))
    more: dict[str, Any] = {"gradients": training.kept_gradients(params), "kept": kept, "learning_rate": rate}
    if training.keep == "statistics":
        with training.purpose("statistics"):
            more["statistics"] = training.statistics()
    how: Any = {"method": options.name, "weights": options.weights, "rounds": options.rounds}
    return training.finish(head, solution, **how, **more)
