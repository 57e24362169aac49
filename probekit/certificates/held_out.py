"""Whether C is the one that held-out rows choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, SolverError
from probekit.federated.federation import Federation, InProcess, total_stats
from probekit.federated.held_out import ALIKE, HeldOut, is_held_out
from probekit.linear.logistic import fit_path
from probekit.linear.model import LinearModel
from probekit.linear.ridge import InverseC
from probekit.rows import StackedRows

BLUR = 0.002
"""Rounds end near the minimum, not at it: held-out losses may differ by this share."""


def is_best_C(  # noqa: N802
    ridge: float, rule: HeldOut, clients: Mapping[str, EmbeddingSet], model: LinearModel
) -> bool | None:
    """True where the rounds of training choose it again, False where a smaller C is better.

    The latter by central Newton fits. None: rounding chose another, or the ends of the rounds did.
    """
    total = sum(rows.weight for rows in clients.values())
    chosen = [C for C in rule.Cs if InverseC(C).of(total, model.classes) == ridge]
    if not chosen:
        return False
    federation = Federation.of(InProcess(clients), model)
    try:
        if rule.best(federation, stats=total_stats(federation)) == chosen[0]:
            return True
        losses = _central_losses(rule, list(clients.values()), model)
    except (InputError, SolverError):  # all rows of a class are held out, or none
        return None
    allowed = (1 + ALIKE - BLUR) * min(losses.values())
    is_beaten = any(loss < allowed for C, loss in losses.items() if chosen[0] > C)
    return False if is_beaten else None


def _central_losses(
    rule: HeldOut, sets: list[EmbeddingSet], model: LinearModel
) -> dict[float, float]:
    """The losses of all held-out rows, by C."""
    from scipy.special import logsumexp

    X = StackedRows([rows.rows for rows in sets])
    y = np.concatenate([rows.labels for rows in sets if rows.labels is not None])
    weights = np.concatenate([rows.row_weights for rows in sets])
    held_out = np.concatenate([is_held_out(rows) for rows in sets])
    options: dict[str, Any] = {"sample_weight": weights * ~held_out, "intercept": model.intercept}
    rows = np.asarray(X[held_out], np.float64)
    labels = y[held_out]
    losses = {}
    for fit in fit_path(X, y, sorted(rule.Cs), outputs=model.classes, **options):
        scores = rows @ fit.params[:-1] + fit.params[-1]
        surprises = logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels]
        losses[fit.C] = float(weights[held_out] @ surprises)
    return losses
