"""One call from a data set and a backbone to a head and honest numbers about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from probekit.cache.disk import DiskStore
from probekit.datasets import dataset as find_dataset
from probekit.encoding.extract import ExtractProgress, extract, set_name
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.evaluation import metrics
from probekit.evaluation.left_out import most_wrong
from probekit.evaluation.metrics import Interval
from probekit.evaluation.probe_options import CHOICE_ROWS, ProbeOptions, judged_on, shared_groups, timed
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

TEST_SPLITS = ("test", "validation", "val")
Progress = Callable[[ExtractProgress], None]


def probe(
    data: Any,
    *,
    backbone: Any = None,
    test: Any = None,
    groups: ArrayLike | None = None,
    test_groups: ArrayLike | None = None,
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
    store: where embeddings are kept; left out, the cache.
    progress: called while encoding.
    options: the fields of `ProbeOptions`.
    """
    how = ProbeOptions(**options)
    seconds: dict[str, float] = {}
    with timed(seconds, "encode"):
        rows, judged = embedded_pair(data, test, backbone, store, progress)
    rows, judged = _grouped(rows, judged, groups, test_groups)
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
    design = Design(rows.dimension, len(classes), how.view, how.intercept, per_class=how.class_weight is not None)
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
        source=rows.source,
        backbone=rows.spec.backbone,
        judged_on=judged_on(rows, test),
        rows=len(rows),
        test_rows=len(judged),
        validation=validation,
        temperature=temperature,
        calibration=calibration,
        most_wrong=wrong,
        chance=float(np.bincount(judged.labels).max() / len(judged)),
        shared_groups=shared_groups(rows, test),
        seconds={name: round(took, 4) for name, took in seconds.items()},
        train=rows,
        test=test,
        **told,
    )


def embedded_pair(
    data: Any, test: Any, backbone: Any, store: DiskStore | None, progress: Progress | None
) -> tuple[EmbeddingSet, EmbeddingSet | None]:
    """Training rows and, where there are any, test rows: as given, of the cache, or encoded now."""
    if test is not None:
        return tuple(_embedded(one, backbone, store, progress) for one in (data, test))  # type: ignore[return-value]
    if not isinstance(data, str) or is_set(data, store):
        return _embedded(data, backbone, store, progress), None
    for split in TEST_SPLITS:
        try:
            parts = find_dataset(data, split="train"), find_dataset(data, split=split)
        except (NotFoundError, InputError):
            continue  # no such split: whatever else is wrong is said when the data set is read below
        names = (set_name(data, one, str(backbone)) for one in ("train", split))
        rows, judged = (
            _embedded(one, backbone, store, progress, name=name) for one, name in zip(parts, names, strict=True)
        )
        return rows, judged
    return _embedded(data, backbone, store, progress), None


def _embedded(
    data: Any, backbone: Any, store: DiskStore | None, progress: Progress | None, name: str = ""
) -> EmbeddingSet:
    if isinstance(data, EmbeddingSet):
        return _without_backbone(data, backbone)
    if isinstance(data, tuple) and len(data) == 2 and np.ndim(data[0]) == 2:
        return _without_backbone(EmbeddingSet.from_numpy(*data), backbone)
    kept = store if store is not None else DiskStore()
    if isinstance(data, str) and is_set(data, kept):
        return _without_backbone(kept.open(data), backbone)
    if backbone is None:
        raise InputError(
            "A data set needs a backbone to encode it with: give `backbone`, for example "
            '"packaged:efficientnet-lite0", or vectors that exist already as (X, y).'
        )
    found = extract(backbone, data, store=kept, progress=progress)
    if name or isinstance(data, str):
        kept.sets.give_name(name or set_name(data, None, str(backbone)), found.digest)
    return found


def is_set(name: str, store: DiskStore | None) -> bool:
    """Whether the cache has a set of this name."""
    try:
        (store if store is not None else DiskStore()).sets.resolve(name)
    except (NotFoundError, InputError):
        return False
    return True


def _without_backbone(rows: EmbeddingSet, backbone: Any) -> EmbeddingSet:
    if backbone is not None:
        raise InputError("These rows are vectors already: leave `backbone` out, or give the data set itself.")
    return rows


def labelled(rows: EmbeddingSet, what: str) -> EmbeddingSet:
    """The rows that have an embedding and a label."""
    kept = rows.usable[rows.labels[rows.usable] >= 0]
    if not len(kept):
        raise InputError(f"None of the {len(rows)} {what} rows has a label. Name the label column, or give labels.")
    return rows if len(kept) == len(rows) else rows.select(kept)


def _grouped(
    rows: EmbeddingSet, test: EmbeddingSet | None, groups: ArrayLike | None, test_groups: ArrayLike | None
) -> tuple[EmbeddingSet, EmbeddingSet | None]:
    """The rows with their groups, numbered alike in both."""
    if test is None and test_groups is not None:
        raise InputError("`test_groups` are of test rows, and there are none. Give `test`, or leave them out.")
    given = [None if one is None else [*map(str, np.asarray(one).tolist())] for one in (groups, test_groups)]
    names = {name: number for number, name in enumerate(dict.fromkeys(name for one in given for name in one or ()))}
    numbers = [None if one is None else np.array([names[name] for name in one], np.int64) for one in given]
    rows = rows if numbers[0] is None else replace(rows, groups=numbers[0])
    return rows, test if test is None or numbers[1] is None else replace(test, groups=numbers[1])


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
    return {
        "accuracy": metrics.accuracy(guesses, rows.labels, interval=interval),
        "top_5": metrics.top_k(found, rows.labels, 5, interval=interval) if len(classes) > 5 else None,
        "mean_per_class": metrics.mean_per_class(guesses, rows.labels, groups=rows.groups, interval=interval),
        "by_class": metrics.accuracy_by_class(guesses, rows.labels, classes=classes, interval=interval),
        "confusion": metrics.confusion(guesses, rows.labels, classes=classes),
    }
