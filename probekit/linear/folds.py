"""Folds of training rows, each held out while a head is fitted to the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from probekit.arrays import Array, Indices, group_numbers
from probekit.errors import InputError

FOLDS = 5
FOLD_STREAM = 11


def draw_folds(
    units: Indices, labels: Indices | None, seed: int, *, weights: Array | None = None
) -> Indices:
    """A fold for every row, units whole and each class spread evenly.

    Units are dealt out in turn, ordered by the rarest class that they have and by their size. So
    of one class the folds differ by a unit at most, and by no more rows than a unit has. A row of
    weight 3 counts as three.
    """
    sizes = np.bincount(units, weights)
    if len(sizes) < 2:
        raise InputError(
            f"Folds need two groups or more; all {len(units)} rows are of one group, or copies "
            "of one sample. Pass other groups, or test rows (test=, --test)."
        )
    rarest = np.zeros(len(sizes), np.int64)
    if labels is not None:
        frequency = np.argsort(np.argsort(np.bincount(labels, weights)))
        rarest += len(frequency)
        np.minimum.at(rarest, units, frequency[labels])
    random = np.random.default_rng([seed, FOLD_STREAM]).random(len(sizes))
    folds = np.empty(len(sizes), np.int64)
    folds[np.lexsort((random, -sizes, rarest))] = np.arange(len(sizes)) % FOLDS
    return folds[units]


def number_groups(groups: ArrayLike, count: int) -> Indices:
    """The groups of so many rows as numbers, in the order of their first rows."""
    values = np.asarray(groups)
    if values.shape != (count,):
        raise InputError(
            f"groups needs one value for each of the {count} rows; found shape {values.shape}."
        )
    numbers = group_numbers(values)
    if not numbers.any():
        raise InputError(
            "Leaving groups out needs two or more; found 1. Pass other groups (--group)."
        )
    return numbers
