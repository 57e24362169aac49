"""Training and test rows made ready: one list of classes, copies counted, folds drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.arrays import Indices, group_numbers, id_keys, texts
from probekit.embeddings import UNLABELED, EmbeddingSet
from probekit.errors import InputError, MismatchError
from probekit.evaluation.intervals import Sampling
from probekit.heads import Task, task_of
from probekit.linear.folds import draw_folds
from probekit.probing.options import ProbeOptions
from probekit.rows import concatenate_rows

if TYPE_CHECKING:
    from probekit.extraction.sources import RowSplits

FOLD_INFLATION = 2.0
"""Of the variance of metrics over folds; see `Sampling`."""
SHOWN_CLASSES = 5
MANY_COPIES = 0.01
"""Where more training rows than this share are copies, intervals count a sample once."""


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Rows to fit heads on and rows to evaluate them on.

    train: its labels are numbers of classes that have training rows. The column "split" says which
        are "validation" rows, where there are some and test rows too.
    test: None where training rows are evaluated in folds; its further classes come last.
    units: training rows that must not be separated (of one group, or copies of one sample).
    folds: the fold of every training row, where there are no test rows.
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
    sets = [_labeled(splits.train, "training", notes)]
    if splits.validation is not None:
        sets.append(_labeled(splits.validation, "validation", notes))
        joined = f"{len(sets[1]):,} validation rows joined {len(sets[0]):,} training rows"
        if splits.test is None:
            notes.append(f"{joined}.")
        elif options.refit:
            notes.append(f"{joined} after C was chosen by them.")
    if splits.test is None:
        return _rows_in_folds(sets, notes, options)
    return _rows_to_test(sets, _labeled(splits.test, "test", notes), notes, options)


def _rows_in_folds(sets: list[EmbeddingSet], notes: list[str], options: ProbeOptions) -> ProbeRows:
    train = _concatenate(_align(sets))
    train, units = _with_units(train)
    copies = len(train) - len(np.unique(id_keys(train.ids)))
    if copies:
        notes.append(
            f"{copies:,} of {len(train):,} training rows are copies of others; copies are kept "
            "in one fold."
        )
    folds = draw_folds(units, train.labels, options.seed)
    _check_folds(train, folds, notes)
    return ProbeRows(train, None, units, folds, copies, notes=tuple(notes))


def _check_folds(train: EmbeddingSet, folds: Indices, notes: list[str]) -> None:
    """Refuse folds that leave one class to fit to; count rows that no fold can predict."""
    if train.labels is None:
        return
    alone = np.zeros(len(train), bool)
    for fold in np.unique(folds):
        outside = np.unique(train.labels[folds != fold])
        if len(outside) < 2:
            raise InputError(
                "Without test rows, a head is fitted to the rows outside of each fold, which must "
                f"be of two classes; outside of one, {np.sum(folds != fold)} rows are all of class "
                f"{train.class_names[outside[0]]!r}. Pass test rows (test=, --test)."
            )
        alone |= (folds == fold) & ~np.isin(train.labels, outside)
    if alone.all():
        raise InputError(
            f"Without test rows, a class needs rows in two folds; each class of the {len(train)} "
            "rows is a single row, group or sample. Pass test rows (test=, --test)."
        )
    if alone.any():
        names = tuple(train.class_names[label] for label in np.unique(train.labels[alone]))
        notes.append(
            f"{alone.sum():,} rows of {len(names)} classes ({_listed(names)}) have no row of their "
            "class outside of their fold; they count as wrong."
        )


def _rows_to_test(
    sets: list[EmbeddingSet], test: EmbeddingSet, notes: list[str], options: ProbeOptions
) -> ProbeRows:
    copied = [np.isin(id_keys(part.ids), id_keys(test.ids)) for part in sets]
    copies = int(sum(map(np.sum, copied)))
    if copies and options.drop_copies:
        sets = [part.take(np.flatnonzero(~rows)) for part, rows in zip(sets, copied, strict=True)]
        notes.append(f"{copies:,} training rows are copies of test rows and were left out.")
    elif copies:
        notes.append(
            f"{copies:,} training rows are copies of some of the {len(test):,} test rows: the "
            "numbers flatter. Leave them out with --drop-copies."
        )
    *sets, test = _align([*sets, test])
    train = _concatenate(sets)
    if len(sets) > 1:
        roles = np.repeat(["train", "validation"], [len(part) for part in sets])
        train = replace(train, columns={**train.columns, "split": texts(roles.tolist())})
    if "group" in train.columns and "group" in test.columns:
        shared = set(train.columns["group"].tolist()) & set(test.columns["group"].tolist())
        if shared:
            notes.append(f"{len(shared):,} groups are in both training and test rows.")
    unknown, missing = _compare_classes(train, test, notes)
    train, units = _with_units(train)
    return ProbeRows(train, test, units, None, copies, unknown, missing, tuple(notes))


def _align(sets: list[EmbeddingSet]) -> list[EmbeddingSet]:
    """Sets with class numbers, or an order of targets, that mean the same in all of them.

    Classes that have rows are numbered in the order of the sets.
    """
    first = sets[0]
    present = [[part.class_names[label] for label in _classes(part)] for part in sets]
    names = tuple(dict.fromkeys(name for part in present for name in part))
    number = {name: position for position, name in enumerate(names)}
    aligned = []
    for part in sets:
        if part.width != first.width or not part.encoding.same_space(first.encoding):
            raise MismatchError(
                f"{first.source} has rows of width {first.width} by {first.encoding.backbone}, "
                f"{part.source} of width {part.width} by {part.encoding.backbone}. Encode both "
                "with one backbone, view and preprocessing."
            )
        if sorted(part.target_names) != sorted(first.target_names):
            raise MismatchError(
                f"{first.source} has {_listed(first.target_names) or 'classes'}, {part.source} has "
                f"{_listed(part.target_names) or 'classes'}. Give both the same targets."
            )
        if part.targets is not None:
            order = [part.target_names.index(name) for name in first.target_names]
            part = replace(part, targets=part.targets[:, order], target_names=first.target_names)
        elif part.labels is not None:
            table = np.array([number.get(name, UNLABELED) for name in part.class_names], np.int64)
            part = replace(part, labels=table[part.labels], class_names=names)
        aligned.append(part)
    return aligned


def _concatenate(sets: list[EmbeddingSet]) -> EmbeddingSet:
    """Training rows, without classes that only test rows have; columns that all sets have."""
    train = sets[0]
    if "split" in train.columns:
        columns = {name: column for name, column in train.columns.items() if name != "split"}
        train = replace(train, columns=columns)
    if len(sets) > 1:
        shared = set(train.columns).intersection(*(part.columns for part in sets))
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in sets])
            for name in ("ids", "labels", "targets")
            if getattr(train, name) is not None
        }
        arrays["rows"] = concatenate_rows([part.rows for part in sets])
        columns = {name: np.concatenate([part.columns[name] for part in sets]) for name in shared}
        train = replace(train, **arrays, weights=None, columns=columns)
    if train.labels is None:
        return train
    names = train.class_names[: len(_classes(train))]
    if len(names) < 2:
        raise InputError(
            f"A probe needs training rows of two classes; the {len(train)} of {train.source} have "
            f"{len(names)}: {names}. Check the labels (--label-column) or test rows (--test)."
        )
    return replace(train, class_names=names)


def _classes(embeddings: EmbeddingSet) -> list[int]:
    """The classes that have rows."""
    labels = embeddings.labels
    return [] if labels is None else list(np.unique(labels).tolist())


def _labeled(embeddings: EmbeddingSet, role: str, notes: list[str]) -> EmbeddingSet:
    if not len(embeddings):
        raise InputError(f"{embeddings.source} has no {role} rows. Pass others.")
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


def _compare_classes(
    train: EmbeddingSet, test: EmbeddingSet, notes: list[str]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Rows by class of the test rows that no training row has; classes without test rows."""
    if test.labels is None:
        return {}, ()
    trained = len(train.class_names)
    counts = np.bincount(test.labels, minlength=trained).tolist()
    unknown = dict(zip(test.class_names[trained:], counts[trained:], strict=True))
    missing = tuple(
        name for name, count in zip(train.class_names, counts, strict=False) if not count
    )
    if len(missing) == trained:
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
        notes.append(f"{len(missing)} of {trained} classes have no test rows: {_listed(missing)}.")
    return unknown, missing


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN_CLASSES])
    return f"{shown}, ..." if len(names) > SHOWN_CLASSES else shown


def _with_units(train: EmbeddingSet) -> tuple[EmbeddingSet, Indices]:
    """The rows, their groups joined where they share a copy; numbers of what stays together."""
    samples = group_numbers(id_keys(train.ids))
    if "group" not in train.columns:
        return train, samples
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    groups = group_numbers(train.columns["group"])
    nodes = int(groups.max()) + 1
    size = nodes + int(samples.max()) + 1
    edges = coo_array((np.ones(len(groups)), (groups, nodes + samples)), shape=(size, size))
    _, components = connected_components(edges, directed=False)
    units = group_numbers(components[groups])
    return replace(train, columns={**train.columns, "group": texts(units)}), units
