"""Choosing the ridge from statistics alone: k folds, or one client left out at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.path import Array, RidgePath, Validation, decompose
from probekit.linear.statistics import statistics
from probekit.values import Rows

FOLD_STREAM = 23


def client_folds(
    rows: Rows, labels: NDArray[Any], design: Design, *, folds: int, seed: int, name: str
) -> list[ClientStats]:
    """The statistics of k parts of one client's rows; which part a row is in follows from seed and name alone."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    parts = np.array_split(np.random.default_rng([seed, FOLD_STREAM, number]).permutation(len(rows)), folds)
    return [
        statistics(rows[part], labels[part], design) if len(part) else ClientStats.zero(design)
        for part in map(np.sort, parts)
    ]


def cross_validate(parts: Sequence[ClientStats], *, ridges: Array, **options: Any) -> Validation:
    """The squared error on each part (fold or client) of the head of all others, for every ridge.

    The others are summed anew, never subtracted, and each sum its own standardisation and class weights.
    options: those of `decompose`.
    """
    parts = [part for part in parts if part.count]
    if len(parts) < 2:
        raise InputError(f"Leaving one part out needs at least two parts with rows; found {len(parts)}.")
    if not (ridges > 0).all():
        raise InputError(f"Ridges to choose from must lie above 0; found {ridges.min():g}.")
    squared, weight = np.zeros(len(ridges)), 0.0
    for others, part in zip(sums_of_others(parts), parts, strict=True):
        errors, held = _held_out(decompose(others, **options), part, ridges)
        squared += errors
        weight += held
    classes = parts[0].design.classes
    return Validation(f"{len(parts)} parts left out in turn", ridges, squared / (weight * classes))


def sums_of_others(parts: Sequence[ClientStats]) -> list[ClientStats]:
    """For each part the sum of all others: a sum of those before it and those after it."""
    zero = ClientStats.zero(parts[0].design)
    before, after = (list(accumulate(some, initial=zero)) for some in (parts[:-1], parts[:0:-1]))
    return [one + other for one, other in zip(before, reversed(after), strict=True)]


def _held_out(path: RidgePath, part: ClientStats, ridges: Array) -> tuple[Array, float]:
    """The squared error on a part, for all ridges at once, and the part's weight.

    |X V - Y|^2 = tr V^T G V - 2 tr V^T C + |Y|^2 with V = Q D B, D = diag(1 / (s + penalty)): the first is
    D^T ((Q^T G Q) o (B B^T)) D, so a ridge costs d^2.
    """
    held = path.system.of(part)
    inverse = 1 / (path.values[:, None] + path.penalties(ridges))
    inner = (path.vectors.T @ held.gram @ path.vectors) * (path.rotated @ path.rotated.T)
    linear = ((path.vectors.T @ held.moment) * path.rotated).sum(axis=1)
    squares = np.einsum("dr,dr->r", inverse, inner @ inverse)
    return squares - 2 * linear @ inverse + held.energy, held.weight
