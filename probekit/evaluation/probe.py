"""One call from a data set and a backbone to a head and honest numbers about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from probekit.cache.disk import DiskStore
from probekit.errors import InputError, MismatchError
from probekit.evaluation import metrics
from probekit.evaluation.left_out import most_wrong
from probekit.evaluation.metrics import Interval
from probekit.evaluation.probe_options import CHOICE_ROWS, ProbeOptions, of_rows, timed
from probekit.evaluation.probe_rows import Progress, RowSource, labelled, with_groups
from probekit.evaluation.probe_values import Probe
from probekit.evaluation.target_probe import probed_targets
from probekit.linear.design import ClientStats, Design
from probekit.linear.groups import leave_groups_out, left_out_scores
from probekit.linear.leaveout import choose_ridge
from probekit.linear.path import RidgePath, Validation, decompose
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.linear.temperature import grid_temperature
from probekit.models.heads import LinearHead, head_of
from probekit.models.serving import scores
from probekit.values import EmbeddingSet


def probe(
    data: Any,
    *,
    backbone: Any = None,
    test: Any = None,
    groups: ArrayLike | None = None,
    test_groups: ArrayLike | None = None,
    group: str | None = None,
    window: tuple[float, float] | None = None,
    store: DiskStore | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Probe:
    """Encode what is not encoded yet, choose the ridge, fit a head, and judge it on rows that it does not know.

    data: a data set as `dataset` takes it, an EmbeddingSet, a set of the cache by its name, or arrays (X, y), where y
    are classes, a matrix of several labels (0, 1) or real targets, or fractions; NaN: unknown.
    backbone: as `backbone` takes it; not for vectors.
    test: the same for the rows to judge on. Left out: the data set's own test split; where it has none, every
    training row is judged by the head of the others, and the result says so.
    groups, test_groups: one entry per row: what belongs together (patients, users) is left out together.
    group: the same by the name of a column of the data set.
    window: of grey values, as `extract` takes it.
    store: where embeddings are kept; left out, the cache.
    progress: called while encoding.
    options: the fields of `ProbeOptions`.
    """
    how = ProbeOptions(**options)
    seconds: dict[str, float] = {}
    with timed(seconds, "encode"):
        source = RowSource(backbone, store, progress, group, {"window": window})
        rows, judged = source.pair(data, test)
    rows, judged = with_groups(rows, judged, groups, test_groups)
    rows = labelled(rows, "training")
    return probed(rows, None if judged is None else labelled(judged, "test"), how, seconds=seconds)


def probed(
    rows: EmbeddingSet, test: EmbeddingSet | None, how: ProbeOptions, *, seconds: dict[str, float] | None = None
) -> Probe:
    """The probe of these embeddings."""
    seconds = {} if seconds is None else seconds
    if rows.targets is not None:
        return probed_targets(rows, test, how, seconds=seconds)
    classes = _classes(rows, test)
    design = Design(rows.dimension, len(classes), how.normalise, how.intercept, per_class=how.class_weight is not None)
    with timed(seconds, "statistics"):
        sums = statistics(rows.embeddings, rows.labels, design)
    with timed(seconds, "ridge"):
        path = decompose(sums, standardise=how.standardise, class_weight=how.class_weight)
        ridge, validation = _chosen(path, rows, how)
    with timed(seconds, "fit"):
        head = _fitted(sums, ridge, rows, classes, how)
    with timed(seconds, "evaluate"):
        left_out = left_out_scores(path, rows.embeddings, rows.labels, ridge=ridge, groups=rows.groups)
        judged = rows if test is None else test
        found = left_out if test is None else scores(head, test)
        told = _judged(found, judged, classes, Interval(how.confidence, seed=how.seed))
        temperature = grid_temperature(left_out, rows.labels)
        calibration = None
        if len(judged) > 1:
            calibration = metrics.calibration(found, judged.labels, temperature=temperature)
        wrong = most_wrong(left_out, replace(rows, class_names=classes))
    return Probe(
        head=head,
        validation=validation,
        temperature=temperature,
        calibration=calibration,
        most_wrong=wrong,
        chance=float(np.bincount(judged.labels).max() / len(judged)),
        **told,
        **of_rows(rows, test, seconds),
    )


def _classes(rows: EmbeddingSet, test: EmbeddingSet | None) -> tuple[str, ...]:
    if test is not None and test.targets is not None:
        raise MismatchError("Training rows have classes, test rows several labels or real targets. Give both the same.")
    if test is not None and test.class_names != rows.class_names:
        raise MismatchError(
            f"Training and test rows must mean the same classes; found {list(rows.class_names[:8])} and "
            f"{list(test.class_names[:8])}. Give both the same class names."
        )
    top = max(int(one.labels.max()) for one in (rows, test) if one is not None)
    classes = rows.class_names or tuple(map(str, range(top + 1)))
    if len(np.unique(rows.labels)) < 2:
        raise InputError("A probe needs training rows of two classes or more; found one class.")
    return classes


def _chosen(path: RidgePath, rows: EmbeddingSet, how: ProbeOptions) -> tuple[float, Validation | None]:
    if not isinstance(how.ridge, str):
        return how.ridge, None
    if rows.groups is not None:
        found = leave_groups_out(path, rows.embeddings, rows.labels, groups=rows.groups)
        return found.best(), found
    return choose_ridge(path, rows.embeddings, rows.labels, most=CHOICE_ROWS, seed=how.seed)


def _fitted(
    sums: ClientStats, ridge: float, rows: EmbeddingSet, classes: tuple[str, ...], how: ProbeOptions
) -> LinearHead:
    found = fit(sums, ridge, standardise=how.standardise, class_weight=how.class_weight)
    recipe = {**found.recipe, "backbone": rows.spec.backbone, "source": rows.source}
    head = head_of(found, classes=classes, spec_digest=rows.spec.untriggered().digest)
    return replace(head, recipe=recipe)


def _judged(found: Any, rows: EmbeddingSet, classes: Sequence[str], interval: Interval) -> dict[str, Any]:
    guesses = np.asarray(np.argmax(found, axis=1), np.int64)
    how: dict[str, Any] = {"groups": rows.groups, "interval": interval}
    return {
        "accuracy": metrics.accuracy(guesses, rows.labels, **how),
        "top_5": metrics.top_k(found, rows.labels, 5, **how) if len(classes) > 5 else None,
        "mean_per_class": metrics.mean_per_class(guesses, rows.labels, **how),
        "by_class": metrics.accuracy_by_class(guesses, rows.labels, classes=classes, **how),
        "confusion": metrics.confusion(guesses, rows.labels, classes=classes),
    }
