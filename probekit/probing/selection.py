"""The C of a logistic head, chosen by rows that are no training rows then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, SolverError
from probekit.linear.calibration import log_losses
from probekit.linear.logistic import CS, fit_path
from probekit.linear.logistic_choice import EXTENSION
from probekit.linear.stats import normalized
from probekit.progress import Progress, silent

if TYPE_CHECKING:
    from probekit.linear.logistic_choice import Criterion
    from probekit.probing.options import ProbeOptions

Qualities = dict[float, float]
"""How good each C is."""
UNCERTIFIED = -np.inf
"""The quality of a C whose solution could not be certified, as of separable rows of large norm."""
COARSE_STEP = 16
"""Between the C's that a coarse-to-fine search begins with."""


def validation_rows(train: EmbeddingSet) -> tuple[Indices, Indices]:
    """The rows to fit on and the rows to choose by, as their column "split" says."""
    everything = np.arange(len(train))
    if "split" not in train.columns:
        return everything, everything[:0]
    is_validation = np.asarray(train.columns["split"] == "validation")
    return everything[~is_validation], everything[is_validation]


@dataclass(frozen=True)
class Choice:
    """The best C, and how good each C was that was tried: accuracies, or less the log loss.

    extended: whether the grid was continued, as its first or last C was the best.
    uncertified: the least C of the grid whose solution could not be certified.
    """

    C: float
    qualities: Mapping[float, float]
    extended: bool = False
    uncertified: float | None = None


def choose_C(  # noqa: N802
    train: EmbeddingSet,
    validation: EmbeddingSet,
    options: ProbeOptions,
    progress: Progress = silent,
) -> Choice:
    """The C whose head of the training rows is best on the validation rows; of equals the least.

    The grid CS is continued once where its first or last C is the best.
    """
    Cs = sorted(options.Cs or CS)
    try_Cs = partial(_qualities, train, validation, options, progress)
    if options.search == "coarse-to-fine":
        tried = _search(Cs, try_Cs)
    else:
        tried = try_Cs(Cs)
        tried |= try_Cs([] if options.Cs else continued(Cs, _best(tried)))
    qualities = {C: quality for C, quality in tried.items() if quality > UNCERTIFIED}
    missing = [C for C in tried if C in Cs and C not in qualities]
    return Choice(
        _best(qualities),
        qualities,
        extended=any(C not in Cs for C in qualities),
        uncertified=min(missing, default=None),
    )


def continued(Cs: Sequence[float], best: float) -> list[float]:
    """The next C's beyond the end of a grid that is the best of it; none beyond others."""
    steps = range(1, EXTENSION + 1)
    ratio = Cs[-1] / Cs[-2]
    if best == Cs[-1]:
        return [Cs[-1] * ratio**step for step in steps]
    if best == Cs[0]:
        return [Cs[0] / ratio**step for step in reversed(steps)]
    return []


def _best(qualities: Mapping[float, float]) -> float:
    """Of equals the least."""
    return max(sorted(qualities), key=lambda C: qualities[C])


def _search(Cs: list[float], try_Cs: Callable[[list[float]], Qualities]) -> Qualities:
    """Every 16th C, then both neighbors of the best at half the distance, until it is 1."""
    step = COARSE_STEP
    tried = try_Cs(Cs[::step])
    while step > 1:
        step //= 2
        best = Cs.index(_best(tried))
        near = [Cs[place] for place in (best - step, best + step) if 0 <= place < len(Cs)]
        tried |= try_Cs([C for C in near if C not in tried])
    return tried


def _qualities(
    train: EmbeddingSet,
    validation: EmbeddingSet,
    options: ProbeOptions,
    progress: Progress,
    Cs: list[float],
) -> Qualities:
    if not Cs:
        return {}
    if train.labels is None or validation.labels is None:
        raise InputError(f"C is chosen by classes; {train.source} has targets. Pass C (--c).")
    present, labels = np.unique(train.labels, return_inverse=True)
    known = np.flatnonzero(np.isin(validation.labels, present))
    if not len(known):
        raise InputError(
            f"No validation row of {train.source} is of a class that training rows have, so they "
            "cannot choose C. Pass it (--c)."
        )
    held_out = normalized(validation.take(known), options.normalize)
    rows = np.asarray(held_out.rows, np.float64)
    true = np.searchsorted(present, validation.labels[known])
    fits = fit_path(
        normalized(train, options.normalize).rows,
        labels,
        Cs,
        sample_weight=train.weights,
        progress=progress,
    )
    qualities = dict.fromkeys(Cs, UNCERTIFIED)
    try:
        for fit in fits:
            scores = rows @ fit.params[:-1] + fit.params[-1]
            qualities[fit.C] = quality(scores, true, options.criterion)
    except SolverError:
        is_first = Cs[0] == min(options.Cs or CS)
        if is_first and qualities[Cs[0]] == UNCERTIFIED:
            raise
    return qualities


def quality(scores: Array, labels: Indices, criterion: Criterion) -> float:
    """How well scores know the labels; the higher, the better."""
    if criterion == "accuracy":
        return float((scores.argmax(axis=1) == labels).mean())
    return -float(log_losses(scores, labels).mean())
