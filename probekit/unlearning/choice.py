"""Which method to take when none is asked for: the best that the kept material allows, and why."""

from __future__ import annotations

from typing import Any

from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.registry import methods
from probekit.unlearning.method import NOTHING, REMEDIES, ROWS, Material, Unlearned, method, missing
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest


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
    why = missing(unlearner, removal)
    if why:
        raise InputError(why)
    found: Unlearned = unlearner.unlearn(removal)
    return found


def can_unlearn(trained: Trained, material: Material = NOTHING) -> dict[str, str]:
    """For every registered method why a client cannot be forgotten by it now; empty where it can."""
    if len(trained.counts) < 2:
        return dict.fromkeys(methods.names(), "Leaving a client out needs at least two; this run has one.")
    removal = Removal(trained, UnlearnRequest((next(iter(trained.counts)),)), material)
    return {name: missing(method(name), removal) for name in methods.names()}
