"""Rounds in which the forgotten clients take part, beside the retained ones or alone: what such methods share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.models.fitting import FitPlan
from probekit.protocols import Progress
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import fits, local_plan
from probekit.values import Array

Shares = Mapping[str, float]


def one_of(what: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that is not known."""
    if value not in known:
        raise InputError(f"{what} is one of {', '.join(known)}; found {value!r}.")


def positive(method: Any, *names: str) -> None:
    """Refuse options at or below 0."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not value > 0:
            raise InputError(f"{method.name}:{name} must be above 0; found {value}.")


def plan_of(method: Any, removal: Removal, *, scale: float | None = None, **more: Any) -> FitPlan:
    """Local training by a method's own `steps`, `batch`, `rate` and `rate_scale` (or another scale)."""
    own = {name: getattr(method, name, None) for name in ("steps", "batch", "rate")}
    plan = local_plan(removal, **{**own, **more})
    return replace(plan, rate=plan.rate * (method.rate_scale if scale is None else scale))


def work(removal: Removal, plan: FitPlan, counts: Mapping[str, int], rounds: int = 1) -> int:
    """Operations of so many rounds of local training."""
    d, k = removal.problem.shape
    if plan.steps is None:
        rows = (plan.epochs or 1) * sum(counts.values())
    else:
        rows = plan.steps * sum(min(plan.batch or count, count) for count in counts.values())
    return int(4 * rounds * rows * d * k)


def shares_of_all(removal: Removal) -> tuple[Shares, Shares]:
    """What each retained and each forgotten client counts in an average of them all.

    In a request by samples one client is both.
    """
    kept, gone = removal.counts, removal.target.counts
    names = [*((0, name) for name in kept), *((1, name) for name in gone)]
    found = [*removal.shares({str(name): (gone if name[0] else kept)[name[1]] for name in names}).values()]
    return dict(zip(kept, found, strict=False)), dict(zip(gone, found[len(kept) :], strict=True))


def joint_round(
    removal: Removal,
    params: Array,
    plans: tuple[FitPlan, FitPlan],
    shares: tuple[Shares, Shares],
    **arrays: Array,
) -> Array:
    """Parameters after a round of the retained and of the forgotten clients, each with its plan and its shares.

    `arrays` go to the forgotten ones. Buffers are the retained clients' mean.
    """
    uploads = fits(removal.retained, params, plans[0]), fits(removal.target, params, plans[1], **arrays)
    moves = [part[name] * (own[name] - params) for part, own in zip(shares, uploads, strict=True) for name in part]
    found = params + np.sum(moves, axis=0)
    whole = sum(shares[0].values())
    for rows in buffers(removal):
        found[rows] = sum(share / whole * uploads[0][name][rows] for name, share in shares[0].items())
    return np.asarray(found)


def joint_rounds(
    removal: Removal,
    params: Array,
    plans: tuple[FitPlan, FitPlan],
    shares: tuple[Shares, Shares],
    rounds: int,
    *,
    stage: str = "rounds with the forgotten",
    **arrays: Array,
) -> Array:
    """So many of them, one after the other."""
    progress = removal.watch(stage)
    for number in range(rounds):
        numbered = replace(plans[0], round=plans[0].round + number), replace(plans[1], round=plans[1].round + number)
        params = joint_round(removal, params, numbered, shares, **arrays)
        progress(Progress(number + 1, rounds))
    return params


def target_steps(removal: Removal, params: Array, plan: FitPlan, **arrays: Array) -> Array:
    """Parameters after local steps of the forgotten clients alone; buffers stay as they are."""
    uploads = fits(removal.target, params, plan, **arrays)
    found = np.asarray(sum(share * uploads[name] for name, share in target_shares(removal).items()))
    for rows in buffers(removal):
        found[rows] = params[rows]
    return found


def target_shares(removal: Removal) -> dict[str, float]:
    """What each forgotten client counts among them."""
    return removal.shares(removal.target.counts)


def buffers(removal: Removal) -> list[slice]:
    """The rows of the parameters that are averaged and never trained."""
    return [removal.problem.blocks[name] for name in getattr(removal.problem, "averaged", ())]


def share_of_norm(share: float | None, params: Array) -> float | None:
    """A distance as a share of the parameters' norm; None: no limit."""
    norm = float(np.linalg.norm(params))
    return share * norm if share is not None and norm else None


def random_params(problem: Any, seed: int, *, scale: float = 1.0) -> Array:
    """Parameters of a model made anew: a network's own; of a quadratic loss its start and +-scale / sqrt(columns)."""
    if "quadratic" not in problem.traits and hasattr(problem, "random_start"):
        return np.asarray(problem.random_start(seed))
    drawn = np.random.default_rng(seed).uniform(-1, 1, problem.shape)
    return np.asarray(problem.start + scale * drawn / np.sqrt(problem.shape[0]))
