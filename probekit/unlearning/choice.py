"""Which method to take when none is asked for: the best that the kept material allows, and why."""

from __future__ import annotations

from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.models.heads import NetworkHead
from probekit.unlearning.method import NOTHING, REMEDIES, Material, Unlearned, require
from probekit.unlearning.method import method as named
from probekit.unlearning.pcg import DEFAULT_ROUNDS
from probekit.unlearning.request import UnlearnRequest


def choose(
    trained: Trained, *, online: bool = False, rows: bool = False, request: UnlearnRequest | None = None
) -> tuple[str, str]:
    """The name of a method and a sentence that says why; `online`: the retained clients answer, `rows`: the
    cached rows of the run are at hand."""
    by_row = request is not None and request.by_row
    if trained.statistics is not None and (rows or not by_row):
        return "exact", "Every client's statistics are kept: the rest is summed anew and solved, exactly."
    if rows and isinstance(trained.head, NetworkHead):
        return "retrain", "The cached rows are at hand: training on the rest from the same w_p finds its minimum."
    if rows:
        return "retrain", (
            "No statistics are kept, but the cached rows are at hand: closed-form training on the rest is exact."
        )
    if by_row:
        raise InputError(f"Forgetting single samples needs {REMEDIES['rows']}.")
    removal = trained.can_unlearn()["fedremoval"]
    gradients = removal.possible or (trained.gradients is None and trained.objective is None)
    if online and trained.server is not None and gradients:
        return f"fedremoval-pcg:{DEFAULT_ROUNDS}", (
            "No statistics are kept, but the server has rows of its own and the retained clients answer: a "
            "gradient round each brings the head as near to retraining as wanted."
        )
    if removal.possible:
        return "fedremoval", (
            "No statistics are kept and no client answers: one step with the server's curvature is what "
            "the kept gradients allow. It is not exact; how far off it is takes a gradient round to know."
        )
    if isinstance(trained.head, NetworkHead):
        raise InputError(
            'Nothing that this run kept allows unlearning a whole network. Train with keep="gradients" and a server '
            f"share; or give {REMEDIES['rows']}, and use retrain."
        )
    raise InputError(
        f"Nothing that this run kept allows unlearning. {removal.why} For exact removal keep "
        f"{REMEDIES['statistics']}; or give {REMEDIES['rows']}."
    )


def unlearn(
    trained: Trained, request: UnlearnRequest, *, method: str = "auto", material: Material = NOTHING
) -> Unlearned:
    """The run without the forgotten, by the method of this name or the best that the material allows."""
    if method == "auto":
        rows = material.embeddings is not None and material.partition is not None
        method, _ = choose(trained, online=material.clients is not None, rows=rows, request=request)
    unlearner = named(method)
    require(unlearner, trained, material)
    return unlearner.unlearn(trained, request, material)
