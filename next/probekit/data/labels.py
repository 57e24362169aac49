"""Labels of several splits as class numbers under one list of classes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
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
    arrays = {split: _as_array(column.values, source) for split, column in columns.items()}
    if any(_is_target(array) for array in arrays.values()):
        return _as_targets(columns, arrays, source)
    names: list[str | None] = []
    for split, column in columns.items():
        location = f"{source}[{split}]" if split else source
        names += _as_names(arrays[split], column.class_names, location)
    declared = dict.fromkeys(name for column in columns.values() for name in column.class_names)
    is_text = all(array.dtype == object for array in arrays.values())
    class_names = tuple(declared) or _class_names(set(filter(None, names)), is_text=is_text)
    numbers, class_names = number_labels(np.array(names, object), class_names)
    ends = np.cumsum([len(array) for array in arrays.values()])
    labels = dict(zip(columns, np.split(numbers, ends[:-1]), strict=True)) if columns else {}
    return NumberedLabels(labels, class_names)


def _as_array(values: NDArray[Any] | Sequence[Any], source: str) -> NDArray[Any]:
    """Numbers as a numeric array, NaN for missing ones; texts as objects, None for missing ones."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        return values
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    items = [None if is_missing(value) else value for value in items]
    present = [value for value in items if value is not None]
    is_text = any(isinstance(value, str) for value in present)
    for value in present:
        if not isinstance(value, str if is_text else int | float):
            raise InputError(
                f"{source}: labels must be all numbers or all texts; found {value!r}. Choose "
                "another column (--label-column), or several (--target-column)."
            )
    return np.array(items, np.float64 if present and not is_text else object)


def _is_target(array: NDArray[Any]) -> bool:
    return array.ndim == 2 or (array.dtype.kind == "f" and is_real(array[np.isfinite(array)]))


def _as_targets(
    columns: Mapping[str, LabelColumn], arrays: Mapping[str, NDArray[Any]], source: str
) -> NumberedLabels:
    if any(array.dtype == object for array in arrays.values()):
        raise InputError(f"{source}: labels are numbers in one split and texts in another.")
    targets = {
        split: np.asarray(array, np.float64).reshape(len(array), -1)
        for split, array in arrays.items()
    }
    column = next(iter(columns.values()))
    width = next(iter(targets.values())).shape[1]
    names = column.class_names
    if len(names) != width:
        names = (column.name,) if width == 1 else tuple(f"{column.name} {i}" for i in range(width))
    return NumberedLabels(targets=targets, target_names=names)


def _as_names(array: NDArray[Any], class_names: tuple[str, ...], location: str) -> list[str | None]:
    """The class of each row by name, None where it has none."""
    if array.dtype == object:
        return list(array)
    numbers = np.where(np.isfinite(array), array, np.int64(UNLABELED)).astype(np.int64)
    if not class_names:
        return [None if number == UNLABELED else str(number) for number in numbers.tolist()]
    wrong = np.flatnonzero((numbers < UNLABELED) | (numbers >= len(class_names)))
    if len(wrong):
        raise InputError(
            f"{location}, row {wrong[0]}: a label must be -1 (none) to {len(class_names) - 1}; "
            f"found {numbers[wrong[0]]}."
        )
    return [None if number == UNLABELED else class_names[number] for number in numbers.tolist()]


def _class_names(names: Collection[str], *, is_text: bool) -> tuple[str, ...]:
    """Names in order, whole numbers by value; class numbers count from 0 to the highest."""
    if not all(re.fullmatch(r"0|-?[1-9]\d*", name, re.ASCII) for name in names):
        return tuple(sorted(names))
    whole = sorted(map(int, names))
    if whole and not is_text and whole[0] >= 0 and whole[-1] <= MAX_CLASS_NUMBER:
        whole = list(range(whole[-1] + 1))
    return tuple(map(str, whole))


def as_target_matrix(columns: Mapping[str, Sequence[Any]], *, source: str) -> Array:
    """Target columns as (n, k); NaN where a row has none."""
    matrix = []
    for name, values in columns.items():
        try:
            numbers = [np.nan if is_missing(value) else float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{source}: the target {name!r} (--target-column) must hold numbers: {error}."
            ) from error
        matrix.append(np.array(numbers, np.float64))
    return np.stack(matrix, axis=1)
