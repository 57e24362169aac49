"""Targets that are no classes: several labels of 0 or 1, or real numbers, NaN where one is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.values.identity import Array, Indices

UNLABELLED = -1
LABELS, REAL = "labels", "real"
"""Targets that are all 0 or 1, and any others."""
TARGET = "target "
"""What a target's column is called in a table, before its name."""


def target_kind(targets: Array) -> str:
    """What the known targets are: "labels" of 0 or 1, or "real" numbers."""
    return LABELS if bool((np.isnan(targets) | (targets == 0) | (targets == 1)).all()) else REAL


def real_targets(labels: NDArray[Any]) -> Array | None:
    """A matrix of targets, or a column of fractions or with unknown ones, as float64; None: these are classes."""
    if labels.ndim > 2 or (labels.ndim == 2 and labels.dtype.kind not in "iubf"):
        raise InputError(f"Targets must be a matrix of numbers, one row per vector; found {labels.dtype}.")
    whole = labels.dtype.kind != "f" or np.array_equal(labels, np.rint(labels))
    if labels.ndim < 2 and whole:
        return None
    found = np.array(labels, np.float64).reshape(len(labels), -1)
    if np.isinf(found).any():
        row = int(np.argmax(np.isinf(found).any(axis=1)))
        raise InputError(f"Row {row} has an infinite target. Give a number, or NaN where it is unknown.")
    if not found.shape[1]:
        raise InputError("Targets need at least one column; found none.")
    found[np.isnan(found)] = np.nan  # one NaN of the many there are: equal targets have equal bytes
    return found + 0.0


def known_rows(targets: Array) -> Indices:
    """What stands in place of a class: 0 where a row knows a target, else -1."""
    return np.where(np.isnan(targets).all(axis=1), UNLABELLED, 0).astype(np.int64)


def check_targets(targets: Array, names: Sequence[str], rows: int) -> None:
    """Refuse targets that are no matrix with a row each and a name per column."""
    if targets.shape != (rows, len(names)):
        raise InputError(
            f"Targets of {rows} rows and {len(names)} names must have shape {(rows, len(names))}; found "
            f"{targets.shape}. Give each column a name (`class_names`)."
        )
    targets.setflags(write=False)
