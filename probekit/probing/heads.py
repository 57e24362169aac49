"""The heads that a probe fits, by name, and their scores of rows that they were not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, SolverError
from probekit.estimators import Neighbors, fit_lda, fit_logistic, fit_nearest_mean, fit_ridge
from probekit.heads import Head
from probekit.probing.selection import Choice, choose_C, validation_rows
from probekit.progress import Progress, silent
from probekit.registry import nearest

if TYPE_CHECKING:
    from probekit.linear.logistic_choice import LogisticChoice
    from probekit.probing.options import ProbeOptions
    from probekit.probing.rows import ProbeRows

NESTED_ROWS = 5_000
"""Up to so many rows, every fold is scored with a ridge or C that was chosen without it."""
ZERO_SHOT = "zero-shot"
BY_COSINE = ("knn", ZERO_SHOT)
TINY_DEVIATION = 1e-5
"""Added to standard deviations, as big_vision does."""

Fit = Callable[[EmbeddingSet, "ProbeOptions"], tuple[Head | Neighbors, tuple[str, ...]]]
"""Training rows to a head, and notes on it.

The column "group" says what stays together, "split" which rows are "validation" rows.
"""


def _fit_ridge(train: EmbeddingSet, options: ProbeOptions) -> tuple[Head, tuple[str, ...]]:
    groups = train.columns.get("group")
    ridge = options.ridge if options.alpha is None else options.alpha / train.weight
    head, choice = fit_ridge(train, ridge=ridge, normalize=options.normalize, groups=groups)
    if not choice.at_grid_edge:
        return head, ()
    return head, (f"The ridge, {choice.value:.3g}, is at the edge of its grid (--ridge sets it).",)


def _fit_logistic(
    train: EmbeddingSet, options: ProbeOptions, progress: Progress = silent
) -> tuple[Head, tuple[str, ...]]:
    head, choice = fit_logistic(
        train,
        C=options.C,
        Cs=options.Cs or None,
        criterion=options.criterion,
        normalize=options.normalize,
        groups=train.columns.get("group"),
        progress=progress,
    )
    return head, choice_notes(choice, choice.value, choice.Cs)


def choice_notes(
    choice: Choice | LogisticChoice, C: float, Cs: Sequence[float] | Array
) -> tuple[str, ...]:
    """What to say of a C that was chosen at the end of a grid."""
    notes = []
    if choice.uncertified is not None:
        notes.append(
            f"C's from {choice.uncertified:.3g} up were left out: their solutions could not be "
            "certified, as of separable rows of large norm (--normalize l2 scales them)."
        )
    if choice.extended:
        notes.append(
            "The best C was the first or last of its grid, which was continued once: "
            f"{min(Cs):.3g} to {max(Cs):.3g} were tried."
        )
    if len(Cs) > 1 and C in (min(Cs), max(Cs)) and choice.uncertified is None:
        notes.append(f"C, {C:.3g}, is at the edge of its grid (--cs sets it).")
    return tuple(notes)


def _fit_lda(train: EmbeddingSet, options: ProbeOptions) -> tuple[Head, tuple[str, ...]]:
    groups = train.columns.get("group")
    head, _ = fit_lda(train, normalize=options.normalize, groups=groups)
    return head, ()


def _fit_nearest_mean(train: EmbeddingSet, options: ProbeOptions) -> tuple[Head, tuple[str, ...]]:
    groups = train.columns.get("group")
    return fit_nearest_mean(train, normalize=options.normalize, groups=groups), ()


def _fit_knn(
    train: EmbeddingSet, options: ProbeOptions, k: int | None = None
) -> tuple[Neighbors, tuple[str, ...]]:
    wanted = options.neighbors if k is None else k
    head = Neighbors(train, min(wanted, len(train)))
    if head.k == wanted:
        return head, ()
    return head, (f"k = {wanted} was reduced to {head.k}, the number of training rows.",)


def _name_classes(train: EmbeddingSet, options: ProbeOptions) -> tuple[Head, tuple[str, ...]]:
    """No row is looked at."""
    from probekit.probing.zero_shot import zero_shot_head

    if train.labels is None:
        raise InputError(f"Zero-shot heads are of classes; {train.source} has targets. Use ridge.")
    head = zero_shot_head(
        train.encoding.backbone,
        train.class_names,
        prompt_names=options.prompt_names,
        templates=options.templates,
        encoding=train.encoding,
    )
    return head, ()


HEADS: dict[str, Fit] = {
    "ridge": _fit_ridge,
    "logistic": _fit_logistic,
    "lda": _fit_lda,
    "nearest-mean": _fit_nearest_mean,
    "knn": _fit_knn,
    ZERO_SHOT: _name_classes,
}


def find_fit(head: str, progress: Progress = silent) -> Fit:
    """What fits a head: a name of HEADS, or knn:50."""
    if head == "logistic":  # which alone takes long
        return partial(_fit_logistic, progress=progress)
    if head in HEADS:
        return HEADS[head]
    kind, _, number = head.partition(":")
    if kind == "knn" and number.isdecimal() and int(number):
        return partial(_fit_knn, k=int(number))
    raise InputError(
        f"heads (--head) must be of {', '.join(HEADS)}, knn:50; found {head!r}. "
        f"{nearest(head, list(HEADS))}"
    )


@dataclass(frozen=True, eq=False)
class Fitted:
    """A head of all training rows, and scores of the evaluated rows by heads without them.

    probabilities: of the classes, (n, k), where the heads give them.
    """

    head: Head | Neighbors
    notes: tuple[str, ...]
    scores: Array
    probabilities: Array | None


def fit_head(
    name: str, rows: ProbeRows, options: ProbeOptions, progress: Progress = silent
) -> Fitted:
    """Without test rows, heads of the other folds score each fold.

    A ridge chosen with the fold flatters by about 1 % at 50 rows; with many rows by nothing.
    """
    train = rows.train
    head, notes = fit(name, train, options, progress)
    if rows.test is not None or name == ZERO_SHOT:
        scores = head.decision(rows.evaluated)
        probabilities = _probabilities(head, scores)
    else:
        if len(train) > NESTED_ROWS:
            options = _as_chosen(head, options)
        scores = np.full((len(train), train.outputs), -np.inf)
        probabilities = np.zeros(scores.shape)
        for outside, inside in rows.fold_rows():
            part, columns = _present_classes(train.take(outside))
            without, _ = fit(name, part, options, progress)
            fold_scores = without.decision(train.take(inside))
            scores[np.ix_(inside, columns)] = fold_scores
            probabilities[np.ix_(inside, columns)] = _probabilities(without, fold_scores)
    is_calibrated = bool(np.isfinite(probabilities).all())
    return Fitted(head, notes, scores, probabilities if is_calibrated else None)


def fit(
    name: str, train: EmbeddingSet, options: ProbeOptions, progress: Progress = silent
) -> tuple[Head | Neighbors, tuple[str, ...]]:
    """A head of these rows. Standardizing is made part of its weights."""
    fitting = find_fit(name, progress)
    mean = np.zeros(train.width)
    deviation = np.ones(train.width)
    if is_standardized(name, options):
        rows = np.asarray(train.rows, np.float64)
        mean = rows.mean(axis=0)
        deviation = rows.std(axis=0) + TINY_DEVIATION
        train = replace(train, rows=(rows - mean) / deviation)
        options = replace(options, normalize="none")
    choice = _choose_C(name, train, options, progress)
    if not options.refit:
        train = train.take(validation_rows(train)[0])
    if choice is None:
        head, notes = fitting(train, options)
    else:
        head, notes, choice = _fit_chosen(fitting, train, options, choice)
    if not isinstance(head, Head):
        return head, notes
    weights = head.weights / deviation[:, None]
    intercept = head.intercept - mean @ weights
    head = replace(head, weights=weights, intercept=intercept)
    if choice is None:
        return head, notes
    notes += choice_notes(choice, choice.C, list(choice.qualities))
    return replace(head, fit={**head.fit, "C_choice": "validation rows"}), notes


def _fit_chosen(
    fitting: Fit, train: EmbeddingSet, options: ProbeOptions, choice: Choice
) -> tuple[Head | Neighbors, tuple[str, ...], Choice]:
    """At the chosen C, or below it where all rows together cannot be certified there."""
    smaller = sorted((C for C in choice.qualities if C < choice.C), reverse=True)
    for C in (choice.C, *smaller):
        try:
            head, notes = fitting(train, replace(options, C=C))
        except SolverError:
            if min(choice.qualities) == C:
                raise
            choice = replace(choice, uncertified=C)
        else:
            break
    return head, notes, replace(choice, C=C)


def _choose_C(  # noqa: N802
    name: str, train: EmbeddingSet, options: ProbeOptions, progress: Progress
) -> Choice | None:
    """The C of validation rows, those of the data or of the protocol, where there are some."""
    if name != "logistic" or options.C != "auto" or train.labels is None:
        return None
    fitting, choosing = validation_rows(train)
    if not len(choosing) and options.rules is not None and options.rules.holdout is not None:
        choosing = options.rules.holdout(train.labels)
        fitting = np.setdiff1d(np.arange(len(train)), choosing)
    if not len(choosing):
        return None
    return choose_C(train.take(fitting), train.take(choosing), options, progress)


def _present_classes(train: EmbeddingSet) -> tuple[EmbeddingSet, Indices]:
    """The rows with only the classes that have some, and the numbers of these classes before."""
    if train.labels is None:
        return train, np.arange(train.outputs)
    present, labels = np.unique(train.labels, return_inverse=True)
    names = tuple(train.class_names[label] for label in present)
    return replace(train, labels=labels, class_names=names), present


def is_standardized(name: str, options: ProbeOptions) -> bool:
    """Whether a head is fitted to standardized rows: cosines are taken of rows as they are."""
    return options.normalize == "standardize" and name.partition(":")[0] not in BY_COSINE


def _as_chosen(head: Head | Neighbors, options: ProbeOptions) -> ProbeOptions:
    """Options that fit with the ridge or C of this head."""
    ridge = head.fit.get("ridge")
    C = head.fit.get("C")
    return replace(
        options,
        ridge=ridge if isinstance(ridge, float) else options.ridge,
        C=C if isinstance(C, float) else options.C,
    )


def _probabilities(head: Head | Neighbors, scores: Array) -> Array:
    """NaN for a head without probabilities of classes."""
    if isinstance(head, Head) and (head.task != "classes" or head.temperature is None):
        return np.full(scores.shape, np.nan)
    return head.probabilities(scores)
