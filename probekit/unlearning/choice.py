"""Which method to take when none is asked for: the best that the kept material allows, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.registry import methods
from probekit.unlearning.method import FROM_ROWS, NOTHING, REMEDIES, ROWS, Material, Unlearned, method, missing
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import Array


def choose(removal: Removal) -> tuple[str, str]:
    """The name of a method and a sentence that says why: of those that are possible, the one that comes nearest.

    One step with the server's curvature is only taken where its own rule says that it helps.
    """
    if removal.pretrained_on:
        raise InputError(removal.pretrained_on)
    before, by_row = removal.before, removal.request.by_row
    rows = removal.held is not None and not removal.material.server_only
    answering = removal.material.clients is not None and removal.online.offers("statistics")
    if before.statistics is not None and (rows or not by_row or answering):
        return "exact", "Every client's statistics are kept: the rest is summed anew and solved, exactly."
    if "quadratic" not in removal.problem.traits:
        return _trained_anew(removal)
    summed = "statistics" in removal.problem.traits
    if rows and not missing(method("retrain"), removal):
        why = "The cached rows are at hand: training on the rest from the same w_p finds its minimum."
        if summed:
            why = "No statistics are kept, but the cached rows are at hand: closed-form training on the rest is exact."
        return "retrain", why
    if by_row and removal.material.clients is None and not rows:
        raise InputError(f"Forgetting single samples needs {ROWS}.")
    if not missing(method("fedremoval-pcg"), removal):
        return f"fedremoval-pcg:{method('fedremoval-pcg').rounds}", (
            "No statistics are kept, but the server has rows of its own and the retained clients answer: a "
            "gradient round each brings the head as near to retraining as wanted."
        )
    if not missing(method("fedremoval-line"), removal):
        return "fedremoval-line", (
            "The retained clients answer with one number each: along FedRemoval's step their loss falls to its lowest."
        )
    online = removal.material.clients is not None and before.objective is None
    if online and not missing(method("retrain"), removal):
        return "retrain", "The retained clients answer: closed-form training on what they send is exact."
    return "fedremoval", _one_step(removal, f" For exact removal keep {REMEDIES['kept', 'statistics']}." * summed)


def _trained_anew(removal: Removal) -> tuple[str, str]:
    """What is left where the loss is not quadratic: training on the rest, to the minimum or by the run's own rounds."""
    why = "The loss is not quadratic, so that nothing is certified; training on the rest from the run's own start"
    for name, ends in (("retrain", "finds its minimum"), ("retrain-fedavg", "is the reference itself")):
        if not missing(method(name), removal):
            return name, f"{why} {ends}."
    lacking = missing(method("retrain-fedavg"), removal)
    raise InputError(f"{lacking} Other methods are taken by name (`method=...`).")


def _one_step(removal: Removal, exact: str) -> str:
    """Why one step with the server's curvature is taken: its own rule says that it helps; else it is refused."""
    from probekit.unlearning.methods.fedremoval import server_plan

    lacking = missing(method("fedremoval"), removal)
    if lacking:
        raise InputError(f"Nothing that this run kept allows unlearning. {lacking}{exact} Or give {ROWS}.")
    plan = server_plan(removal)
    if plan.warnings:
        raise InputError(
            f"All that this run kept allows is one step with the server's curvature, which may do harm, so that it is "
            f"only taken when asked for by name (`method=fedremoval`). {' '.join(plan.warnings)}{exact} Or give {ROWS}."
        )
    return (
        f"No statistics are kept and no client answers: one step with the server's curvature is what the kept "
        f"gradients allow, and its {plan.server_rows} rows are enough for it to help. It is not exact; how far off it "
        "is takes a gradient round to know."
    )


def unlearn(
    trained: Trained, request: UnlearnRequest, *, method: Any = "auto", material: Material = NOTHING
) -> Unlearned:
    """The run without the forgotten, by the method of this name or the best that the material allows."""
    removal = Removal(trained, request, material)
    return carried_out(removal, choose(removal)[0] if method == "auto" else method)


def carried_out(removal: Removal, name: Any) -> Unlearned:
    """The removal by one method, its needs checked once."""
    unlearner = method(name)
    if not removal.counts:  # where a request names what is not there, this is where it is refused
        raise InputError("Cannot forget every sample of every client: nothing would remain to be trained on.")
    why = missing(unlearner, removal)
    if why:
        raise InputError(why)
    found: Unlearned = unlearner.unlearn(removal)
    _refuse_nothing_done(removal, unlearner, np.asarray(found.trained_after.params))
    return found


def _refuse_nothing_done(removal: Removal, unlearner: Any, after: Array) -> None:
    """Refuse parameters that are not finite, and the old ones where rows were to go: doing nothing is no method.

    What is made of the retained rows alone may come out as it was.
    """
    if not np.isfinite(after).all():
        raise InputError(f"Unlearning by {unlearner.name} must end in finite parameters. Nothing was changed.")
    request, counts = removal.request, removal.before.counts
    leaves = any(counts.get(name) for name in request.clients) or bool(request.samples)
    if leaves and FROM_ROWS not in getattr(unlearner, "traits", ()) and np.array_equal(after, removal.params):
        raise InputError(
            f"Unlearning by {unlearner.name} gave the old head back, bit for bit, though rows were to go. Nothing was "
            "changed; use another method, or other options of this one."
        )


def can_unlearn(trained: Trained, material: Material = NOTHING) -> dict[str, str]:
    """For every registered method why a client cannot be forgotten by it now; empty where it can."""
    if len(trained.counts) < 2:
        return dict.fromkeys(methods.names(), "Leaving a client out needs at least two; this run has one.")
    removal = Removal(trained, UnlearnRequest((next(iter(trained.counts)),)), material)
    return {name: missing(method(name), removal) for name in methods.names()}
