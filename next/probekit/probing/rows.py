"""Training and test rows made ready: one list of classes, copies counted, folds drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.arrays import Indices, id_keys
from probekit.embeddings import UNLABELED, EmbeddingSet
from probekit.errors import InputError, MismatchError
from probekit.evaluation.intervals import Sampling, group_numbers
from probekit.heads import Task, task_of
from probekit.probing.options import ProbeOptions

if TYPE_CHECKING:
    from probekit.extraction.sources import RowSplits

FOLD_STREAM = 11
FOLD_INFLATION = 2.0
"""Of the variance of metrics over folds; see `Sampling`."""
SHOWN_CLASSES = 5
MANY_COPIES = 0.01
"""Where more training rows than this share are copies, intervals count a sample once."""


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Rows to fit heads on and rows to evaluate them on.

    train: its labels are numbers of classes that have training rows.
    test: None where training rows are evaluated in folds; its further classes come last.
    units: training rows that must not be separated (of one group, or copies of one sample).
    folds: the fold of every training row; None where there is only one unit.
    copies: training rows with a copy in the test rows or, without test rows, in another row.
    unknown_classes: rows by class of the test rows that no training row has.
    """

    train: EmbeddingSet
    test: EmbeddingSet | None
    units: Indices
    folds: Indices | None
    copies: int = 0
    unknown_classes: Mapping[str, int] = field(default_factory=dict)
    missing_classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def evaluated(self) -> EmbeddingSet:
        return self.train if self.test is None else self.test

    @property
    def evaluated_on(self) -> str:
        if self.test is not None:
            return "test rows"
        kind = "grouped" if "group" in self.train.columns else "stratified"
        return f"training rows, {len(list(self.fold_rows()))} {kind} folds"

    @cached_property
    def task(self) -> Task:
        return task_of(self.train)

    def fold_rows(self) -> Iterator[tuple[Indices, Indices]]:
        """For every fold the training rows outside and inside of it."""
        assert self.folds is not None
        for fold in np.unique(self.folds):
            yield np.flatnonzero(self.folds != fold), np.flatnonzero(self.folds == fold)

    def sampling(self, options: ProbeOptions) -> Sampling:
        groups = self.evaluated.columns.get("group")
        if self.test is not None:
            numbers = None if groups is None else group_numbers(groups)
            return Sampling(options.confidence, numbers, options.seed)
        by_unit = groups is not None or self.copies > MANY_COPIES * len(self.train)
        units = self.units if by_unit else None
        return Sampling(options.confidence, units, options.seed, FOLD_INFLATION)


def prepare_rows(splits: RowSplits, options: ProbeOptions) -> ProbeRows:
    notes = list(splits.notes)
    train = _labeled(splits.train, "training", notes)
    if splits.validation is not None:
        validation = _labeled(splits.validation, "validation", notes)
        notes.append(
            f"{len(validation):,} validation rows joined {len(train):,} training rows: the ridge "
            "is chosen by leaving training rows out."
        )
        train = concatenate([train, validation])
    if splits.test is None:
        train = _present_classes(train)
        units = _units(train)
        copies = len(train) - len(np.unique(id_keys(train.ids)))
        if copies:
            notes.append(
                f"{copies:,} of {len(train):,} training rows are copies of others; copies are kept "
                "in one fold."
            )
        folds = draw_folds(units, train.labels, options.folds, options.seed)
        if folds is None:
            raise InputError(
                f"Folds need two groups or more; all {len(train)} rows are of one group, or copies "
                "of one sample. Pass test rows (test=, --test)."
            )
        return ProbeRows(train, None, units, folds, copies, notes=tuple(notes))
    test = _labeled(splits.test, "test", notes)
    _check_same_space(train, test)
    train, copies = _without_copies(train, test, options, notes)
    train = _present_classes(train)
    test, unknown, missing = _match_classes(train, test, notes)
    if "group" in train.columns and "group" in test.columns:
        shared = set(train.columns["group"].tolist()) & set(test.columns["group"].tolist())
        if shared:
            notes.append(f"{len(shared):,} groups are in both training and test rows.")
    units = _units(train)
    folds = draw_folds(units, train.labels, options.folds, options.seed)
    return ProbeRows(train, test, units, folds, copies, unknown, missing, tuple(notes))


def concatenate(sets: list[EmbeddingSet]) -> EmbeddingSet:
    """Rows one after the other; classes are matched by name, and columns that all have are kept."""
    first = sets[0]
    names = tuple(dict.fromkeys(name for part in sets for name in part.class_names))
    for part in sets:
        _check_same_space(first, part)
    aligned = [align(part, first, names) for part in sets]
    shared = set(first.columns).intersection(*(part.columns for part in sets))
    outputs = "labels" if first.targets is None else "targets"
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in aligned])
        for name in ("rows", "ids", outputs)
    }
    columns = {name: np.concatenate([part.columns[name] for part in sets]) for name in shared}
    return replace(first, **arrays, class_names=names, weights=None, columns=columns)


def align(
    embeddings: EmbeddingSet, first: EmbeddingSet, class_names: tuple[str, ...]
) -> EmbeddingSet:
    """Rows with labels that number these class names, or with the targets that `first` has.

    Rows of other classes have the label -1.
    """
    if first.targets is None and embeddings.labels is not None:
        number = {name: position for position, name in enumerate(class_names)}
        table = [number.get(name, UNLABELED) for name in embeddings.class_names]
        labels = np.array([*table, UNLABELED], np.int64)[embeddings.labels]
        return replace(embeddings, labels=labels, class_names=class_names)
    if set(first.target_names) != set(embeddings.target_names) or embeddings.targets is None:
        raise MismatchError(
            f"{first.source} has {_outputs(first)}, {embeddings.source} has "
            f"{_outputs(embeddings)}. Give both the same."
        )
    order = [embeddings.target_names.index(name) for name in first.target_names]
    targets = embeddings.targets[:, order]
    return replace(embeddings, targets=targets, target_names=first.target_names)


def draw_folds(units: Indices, labels: Indices | None, count: int, seed: int) -> Indices | None:
    """A fold for every row, units whole, each class spread evenly; None for a single unit.

    Large units come first, the others in random order; each joins the fold with the fewest rows of
    its (most frequent) class, of these the one with the fewest rows.
    """
    size = int(units.max(initial=-1)) + 1
    count = min(count, size)
    if count < 2:
        return None
    classes = np.zeros(len(units), np.int64) if labels is None else labels
    width = int(classes.max()) + 1
    sizes = np.bincount(units)
    order = np.random.default_rng([seed, FOLD_STREAM]).permutation(size)
    order = order[np.argsort(-sizes[order], kind="stable")]
    rows_of_unit = np.split(np.argsort(units, kind="stable"), np.cumsum(sizes)[:-1])
    by_class = [[0] * count for _ in range(width)]
    totals = [0] * count
    chosen = np.empty(size, np.int64)
    for unit in order.tolist():
        members = Counter(classes[rows_of_unit[unit]].tolist())
        main = members.most_common(1)[0][0]
        level = by_class[main]
        fold = min(range(count), key=lambda number: (level[number], totals[number]))
        chosen[unit] = fold
        totals[fold] += int(sizes[unit])
        for label, number in members.items():
            by_class[label][fold] += number
    return chosen[units]


def _labeled(embeddings: EmbeddingSet, role: str, notes: list[str]) -> EmbeddingSet:
    labeled = embeddings.labeled()
    if (labeled.labels is None and labeled.targets is None) or not len(labeled):
        raise InputError(
            f"{embeddings.source} has no labels: none of its {len(embeddings)} {role} rows has "
            "one. Pass labels (--labels FILE, --label-column NAME)."
        )
    if len(labeled) < len(embeddings):
        dropped = len(embeddings) - len(labeled)
        notes.append(f"{dropped:,} {role} rows without a label were left out.")
    return labeled


def _check_same_space(train: EmbeddingSet, other: EmbeddingSet) -> None:
    if train.width != other.width or not train.encoding.same_space(other.encoding):
        raise MismatchError(
            f"{train.source} has rows of width {train.width} by {train.encoding.backbone}, "
            f"{other.source} of width {other.width} by {other.encoding.backbone}. Encode both with "
            "one backbone, view and preprocessing."
        )


def _outputs(embeddings: EmbeddingSet) -> str:
    if embeddings.targets is None:
        return "classes"
    return f"the targets {_listed(embeddings.target_names)}"


def _without_copies(
    train: EmbeddingSet, test: EmbeddingSet, options: ProbeOptions, notes: list[str]
) -> tuple[EmbeddingSet, int]:
    """The training rows, without copies of test rows where that is asked; how many there are."""
    in_test = np.isin(id_keys(train.ids), id_keys(test.ids))
    copies = int(in_test.sum())
    if not copies:
        return train, 0
    in_train = int(np.isin(id_keys(test.ids), id_keys(train.ids)).sum())
    counted = f"{in_train:,} of {len(test):,} test rows are copies of training rows"
    if not options.drop_copies:
        notes.append(f"{counted}: the numbers flatter. Leave them out with --drop-copies.")
        return train, copies
    if copies == len(train):
        raise InputError(
            f"All {copies} training rows are copies of test rows; nothing is left to train on. "
            "Pass other test rows (test=, --test)."
        )
    notes.append(f"{counted}; {copies:,} training rows were left out.")
    return train.take(np.flatnonzero(~in_test)), copies


def _present_classes(train: EmbeddingSet) -> EmbeddingSet:
    """Without classes that no row has."""
    if train.labels is None:
        return train
    present = np.unique(train.labels)
    if len(present) < 2:
        raise InputError(
            f"A probe needs training rows of two classes; all {len(train)} of {train.source} are "
            f"{train.class_names[int(present[0])]!r}. Check the labels (--label-column)."
        )
    return align(train, train, tuple(train.class_names[number] for number in present.tolist()))


def _match_classes(
    train: EmbeddingSet, test: EmbeddingSet, notes: list[str]
) -> tuple[EmbeddingSet, dict[str, int], tuple[str, ...]]:
    """Test rows with the training rows' class numbers; classes only they have come last."""
    names = tuple(dict.fromkeys((*train.class_names, *test.class_names)))
    test = align(test, train, names)
    if test.labels is None:
        return test, {}, ()
    counts = np.bincount(test.labels, minlength=len(names)).tolist()
    rows_by_class = dict(zip(names, counts, strict=True))
    missing = tuple(name for name in train.class_names if not rows_by_class[name])
    unknown = {name: rows_by_class[name] for name in names[len(train.class_names) :]}
    unknown = {name: count for name, count in unknown.items() if count}
    if len(missing) == len(train.class_names):
        raise MismatchError(
            f"Training and test rows share no class: found {_listed(train.class_names)} and "
            f"{_listed(tuple(unknown))}. Give both the same class names."
        )
    if unknown:
        notes.append(
            f"{sum(unknown.values()):,} test rows are of {len(unknown)} classes without training "
            f"rows ({_listed(tuple(unknown))}); they count as wrong."
        )
    if missing:
        notes.append(
            f"{len(missing)} of {len(train.class_names)} classes have no test rows: "
            f"{_listed(missing)}."
        )
    return align(test, train, (*train.class_names, *unknown)), unknown, missing


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN_CLASSES])
    return f"{shown}, ..." if len(names) > SHOWN_CLASSES else shown


def _units(train: EmbeddingSet) -> Indices:
    """Numbers of what must stay together: rows of one group, and copies of one sample."""
    samples = group_numbers(id_keys(train.ids))
    if "group" not in train.columns:
        return samples
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    groups = group_numbers(train.columns["group"])
    nodes = int(groups.max()) + 1
    size = nodes + int(samples.max()) + 1
    edges = coo_array((np.ones(len(groups)), (groups, nodes + samples)), shape=(size, size))
    _, components = connected_components(edges, directed=False)
    return group_numbers(components[groups])
