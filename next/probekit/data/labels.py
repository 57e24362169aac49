"""Labels of several splits as class numbers under one list of classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices
from probekit.embeddings import UNLABELED, is_real, number_labels
from probekit.errors import InputError

MAX_CLASS_NUMBER = 100_000
"""Whole numbers beyond are names of classes (zip codes, ids), not class numbers."""


@dataclass(frozen=True)
class LabelColumn:
    """Labels as they were read: class numbers or names, None where a row has none; or targets.

    values: (n,), or targets (n, k).
    class_names: what the source declares them to be; numbers count in them.
    """

    values: NDArray[Any] | Sequence[Any]
    class_names: tuple[str, ...] = ()
    name: str = "label"


@dataclass(frozen=True)
class NumberedLabels:
    """By split: class numbers under one list of classes, or real targets (n, k)."""

    labels: Mapping[str, Indices] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    targets: Mapping[str, Array] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()


def is_missing(value: object) -> bool:
    return value is None or (isinstance(value, str | float) and (value == "" or value != value))


def number_splits(columns: Mapping[str, LabelColumn], *, source: str) -> NumberedLabels:
    """Texts are numbered in sorted order; declared classes keep theirs; fractions are targets.

    Classes of all splits are united by name, so that a class that one of them lacks does no harm.
    """
    if not columns:
        return NumberedLabels()
    arrays = [_names_or_numbers(column, source) for column in columns.values()]
    if len({(array.dtype == object, array.shape[1:]) for array in arrays}) > 1:
        raise InputError(
            f"{source}: labels are numbers in one split, and texts or targets in another. Read "
            "one of them (--split)."
        )
    joined = np.concatenate(arrays)
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    if joined.ndim == 2 or (joined.dtype != object and is_real(joined[np.isfinite(joined)])):
        targets = joined.reshape(len(joined), -1).astype(np.float64)
        names = _target_names(next(iter(columns.values())), targets.shape[1])
        by_split = dict(zip(columns, np.split(targets, ends), strict=True))
        return NumberedLabels(targets=by_split, target_names=names)
    declared = dict.fromkeys(name for column in columns.values() for name in column.class_names)
    numbers, class_names = _number(joined, tuple(declared))
    return NumberedLabels(dict(zip(columns, np.split(numbers, ends), strict=True)), class_names)


def _names_or_numbers(column: LabelColumn, source: str) -> NDArray[Any]:
    """Names as objects, None where there is none; numbers, NaN where there is none."""
    array = _as_array(column.values, source)
    if not column.class_names or array.dtype == object or array.ndim == 2:
        return array
    numbers = _class_numbers(array)
    last = len(column.class_names) - 1
    wrong = np.flatnonzero((numbers < UNLABELED) | (numbers > last))
    if len(wrong):
        raise InputError(
            f"{source}, row {wrong[0]}: a label must be -1 (none) to {last}; found "
            f"{numbers[wrong[0]]}. Correct it."
        )
    return np.array([*column.class_names, None], object)[numbers]


def _as_array(values: NDArray[Any] | Sequence[Any], source: str) -> NDArray[Any]:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        return values
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    items = [None if is_missing(value) else value for value in items]
    examples = {type(value): value for value in items if value is not None}
    if examples and all(issubclass(kind, int | float) for kind in examples):
        return np.array(items, np.float64)
    if not examples.keys() <= {str}:
        raise InputError(
            f"{source}: labels must be all numbers or all texts; found {list(examples.values())}. "
            "Choose another column (--label-column), or several (--target-column)."
        )
    return np.array(items, object)


def _class_numbers(array: NDArray[Any]) -> Indices:
    return np.where(np.isfinite(array), array, np.int64(UNLABELED)).astype(np.int64)


def _number(labels: NDArray[Any], declared: tuple[str, ...]) -> tuple[Indices, tuple[str, ...]]:
    """Class numbers count from 0 to the highest; names are sorted, whole numbers by value."""
    if labels.dtype != object:
        numbers = _class_numbers(labels)
        if numbers.min() >= UNLABELED and numbers.max() <= MAX_CLASS_NUMBER:
            return number_labels(numbers)
        texts = [None if number == UNLABELED else str(number) for number in numbers.tolist()]
        labels = np.array(texts, object)
    names = {name for name in labels.tolist() if name is not None}
    is_whole = all(re.fullmatch(r"0|-?[1-9]\d*", name, re.ASCII) for name in names)
    return number_labels(labels, declared or tuple(sorted(names, key=int if is_whole else str)))


def _target_names(column: LabelColumn, width: int) -> tuple[str, ...]:
    if len(column.class_names) == width:
        return column.class_names
    if width == 1:
        return (column.name,)
    return tuple(f"{column.name} {position}" for position in range(width))


def as_target_matrix(columns: Mapping[str, Sequence[Any]], *, source: str) -> Array:
    """Target columns as (n, k); NaN where a row has none."""
    rows = [[np.nan if is_missing(value) else value for value in row] for row in columns.values()]
    try:
        return np.array(rows, np.float64).T
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{source}: targets (--target-column) must be numbers: {error}. Choose other columns."
        ) from error
