"""The heads that a probe fits, by name, and their scores of rows that they were not fitted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.estimators import Neighbors, fit_ridge
from probekit.heads import Head

if TYPE_CHECKING:
    from probekit.probing.options import ProbeOptions
    from probekit.probing.rows import ProbeRows

NESTED_ROWS = 5_000
"""Up to so many rows, every fold is scored with a ridge that was chosen without it."""

Fit = Callable[[EmbeddingSet, "ProbeOptions"], tuple[Head | Neighbors, tuple[str, ...]]]
"""Training rows to a head, and notes on it. The column "group" says what stays together."""


def _fit_ridge(train: EmbeddingSet, options: ProbeOptions) -> tuple[Head, tuple[str, ...]]:
    groups = train.columns.get("group")
    head, choice = fit_ridge(train, ridge=options.ridge, normalize=options.normalize, groups=groups)
    if not choice.at_grid_edge:
        return head, ()
    return head, (f"The ridge, {choice.value:.3g}, is at the edge of its grid (--ridge sets it).",)


def _fit_knn(train: EmbeddingSet, options: ProbeOptions) -> tuple[Neighbors, tuple[str, ...]]:
    head = Neighbors(train, min(options.neighbors, len(train)))
    if head.k == options.neighbors:
        return head, ()
    note = f"k = {options.neighbors} was reduced to {head.k}, the number of training rows."
    return head, (note,)


HEADS: dict[str, Fit] = {"ridge": _fit_ridge, "knn": _fit_knn}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A head of all training rows, and scores of the evaluated rows by heads without them.

    confidences: probabilities of the predicted classes, where the heads give them.
    """

    head: Head | Neighbors
    notes: tuple[str, ...]
    scores: Array
    confidences: Array | None


def fit_head(name: str, rows: ProbeRows, options: ProbeOptions) -> Fitted:
    """Without test rows, heads of the other folds score each fold.

    A ridge chosen with the fold flatters by about 1 % at 50 rows; with many rows by nothing.
    """
    fit = HEADS[name]
    train = rows.train
    head, notes = fit(train, options)
    if rows.test is not None:
        scores = head.decision(rows.test)
        confidences = _confidences(head, scores)
    else:
        ridge = head.fit.get("ridge")
        if isinstance(ridge, float) and len(train) > NESTED_ROWS:
            options = replace(options, ridge=ridge)
        scores = np.empty((len(train), train.outputs))
        confidences = np.empty(len(train))
        for outside, inside in rows.fold_rows():
            without, _ = fit(train.take(outside), options)
            scores[inside] = without.decision(train.take(inside))
            confidences[inside] = _confidences(without, scores[inside])
    is_calibrated = bool(np.isfinite(confidences).all())
    return Fitted(head, notes, scores, confidences if is_calibrated else None)


def _confidences(head: Head | Neighbors, scores: Array) -> Array:
    """NaN for a head without probabilities."""
    if isinstance(head, Head) and (head.task != "classes" or head.temperature is None):
        return np.full(len(scores), np.nan)
    return np.asarray(head.probabilities(scores).max(axis=1))
