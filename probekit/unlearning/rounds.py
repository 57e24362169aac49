"""Rounds of local training in a method: how clients train there, and the averages of what they send."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.models.fitting import FitPlan
from probekit.models.optimiser import Optimiser
from probekit.protocols import Progress
from probekit.unlearning.removal import Removal
from probekit.values import Array

STEPS = 10
"""Of a client in a round, where the run had none."""
RATE = (("trainer", "local_steps"), ("retained", "scales"))
"""What a learning rate follows from, as a need: the run's own, or the curvature of the clients who train."""
TARGET_RATE = (("trainer", "local_steps"), ("target", "scales"))


def local_plan(
    removal: Removal,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    rate: float | None = None,
    optimiser: str | None = None,
    clients: Federation | None = None,
    **more: Any,
) -> FitPlan:
    """How clients train in a round: what is given, else as in the run's own training, else full batches.

    Without any rate it is 1 / the largest curvature of `clients` (the retained ones): they are asked for that.
    """
    own: Any = removal.material.options
    known = own if hasattr(own, "local_steps") else None
    if steps is None and epochs is None:
        steps, epochs = (STEPS, None) if known is None else (known.local_steps, known.local_epochs)
    batch = known.batch_size if batch is None and known is not None else batch
    used = Optimiser(optimiser) if optimiser else Optimiser() if known is None else known.optimiser
    rate = rate or removal.before.learning_rate or (None if known is None else known.learning_rate)
    if rate is None:
        rate = 1 / _largest_curvature(removal, removal.retained if clients is None else clients, batch)
    given: dict[str, Any] = {"ridge": removal.ridge, "seed": getattr(known, "seed", 0), "tells_loss": False, **more}
    drop = getattr(known, "drop_last", False)
    return FitPlan(steps, epochs, batch, drop, used, rate, round=removal.before.rounds, **given)


def fits(
    federation: Federation, params: Array, plan: FitPlan, *, clients: Collection[str] | None = None, **arrays: Array
) -> dict[str, Array]:
    """Each client's parameters after its local steps."""
    answers = federation.ask("fit", {"params": params, **arrays}, plan.plain, clients=clients)
    return {one.client: one.arrays["params"] for one in answers.each()}


def averaged(removal: Removal, uploads: Mapping[str, Array], counts: Mapping[str, int] | None = None) -> Array:
    """The mean of uploads, weighed as in the run's training; `counts` are rows of clients that do not stay."""
    if not uploads:
        raise InputError("An average needs somebody's parameters; nobody sent any.")
    known = {**removal.before.counts, **removal.counts, **(counts or {})}
    shares = removal.shares({name: known[name] for name in uploads})
    return np.asarray(sum(share * uploads[name] for name, share in shares.items()))


def retained_rounds(
    removal: Removal, params: Array, plan: FitPlan, rounds: int, *, stage: str = "rounds", **arrays: Array
) -> Array:
    """FedAvg of the retained clients from these parameters on."""
    progress = removal.watch(stage)
    for number in range(rounds):
        uploads = fits(removal.retained, params, replace(plan, round=plan.round + number), **arrays)
        params = averaged(removal, uploads)
        progress(Progress(number + 1, rounds))
    return params


def _largest_curvature(removal: Removal, clients: Federation, batch: int | None) -> float:
    """Of any client's loss or, with minibatches, of any row's."""
    if not clients.offers("scales"):
        raise InputError("This loss has no curvature to take a learning rate from. Give one: NAME:rate=0.01.")
    plan = {"ridge": removal.ridge, "batch": batch}
    answers = clients.ask("scales", plan=plan, precision=removal.problem.precision)
    return max(one.values["curvature"] for one in answers.each())
