"""Leaving whole groups out (patients, users, videos), in closed form for every ridge.

The scores of a group's rows in the head of all others are Y - (I - H)^-1 (Y - F): F their scores in the head of all
rows, H their block of the hat matrix, both at the penalty that the others have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats
from probekit.linear.folds import sums_of_others
from probekit.linear.path import Array, RidgePath, Validation, decompose
from probekit.linear.statistics import checked_labels, row_blocks, statistics
from probekit.linear.system import System
from probekit.values import Indices, Rows

BLOCK_ELEMENTS = 2**22
LONE = 1e-9
"""A group whose hat matrix has an eigenvalue this close to 1 decides its own scores alone: it cannot be left out."""


class Truth(Protocol):
    """What is known of rows: their targets, their weights, and sums of some of them."""

    def targets(self, held: Indices) -> Array: ...
    def weights(self, held: Indices) -> Array: ...
    def sums(self, rows: Rows, part: Indices) -> ClientStats: ...


@dataclass(frozen=True, eq=False)
class ClassTruth:
    """Of rows with a class each."""

    labels: Indices
    system: System

    def targets(self, held: Indices) -> Array:
        """The upper target for a row's own class, the lower one for others."""
        low, high = self.system.targets
        own = self.labels[held][..., None]
        return np.where(np.arange(self.system.design.classes) == own, high, low).astype(np.float64)

    def weights(self, held: Indices) -> Array:
        """That of its class."""
        return np.asarray(self.system.class_weights[self.labels[held]])

    def sums(self, rows: Rows, part: Indices) -> ClientStats:
        """The statistics of some rows."""
        return statistics(rows[part], self.labels[part], self.system.design)


def group_rows(groups: ArrayLike, count: int) -> list[Indices]:
    """The row numbers of every group, in the order of the groups' first rows."""
    names = np.asarray(groups)
    if names.shape != (count,):
        raise InputError(f"Each of the {count} rows needs one group; found shape {names.shape}.")
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(number))[:-1])
    return [parts[i].astype(np.int64) for i in np.argsort(first)]


def leave_groups_out(
    path: RidgePath, rows: Rows, labels: NDArray[Any], *, groups: ArrayLike, ridges: Array | None = None
) -> Validation:
    """The error on each group of the head of all others, for every ridge. Rows are those the path was made from."""
    ridges = path.grid() if ridges is None else np.asarray(ridges, dtype=np.float64)
    system = path.system
    labels = checked_labels(labels, len(rows), system.design.classes)
    squared, wrong = np.zeros(len(ridges)), np.zeros(len(ridges))
    truth = ClassTruth(labels, system)
    for held, scores in leave_out(path, rows, truth, group_rows(groups, len(rows)), ridges):
        own, weights = labels[held], truth.weights(held)
        errors = scores - truth.targets(held)
        squared += np.einsum("rgmk,rgmk,gm->r", errors, errors, weights)
        wrong += np.einsum("rgm,gm->r", (scores.argmax(axis=3) != own).astype(np.float64), weights)
    total = system.weight
    return Validation("leave-one-group-out", ridges, squared / (total * system.design.classes), wrong / total)


def left_out_scores(
    path: RidgePath, rows: Rows, labels: NDArray[Any], *, ridge: float, groups: ArrayLike | None = None
) -> Array:
    """Every row's scores in the head of the rows of other groups (without groups: of all other rows)."""
    truth = ClassTruth(checked_labels(labels, len(rows), path.system.design.classes), path.system)
    return scores_left_out(path, rows, truth, ridge=ridge, groups=groups)


def scores_left_out(
    path: RidgePath, rows: Rows, truth: Truth, *, ridge: float, groups: ArrayLike | None = None
) -> Array:
    """The same for any targets."""
    found = np.empty((len(rows), path.system.design.classes))
    if groups is None and (path.system.class_weights == 1).all():
        for held, scores in _each_left_out(path, rows, truth, ridge):
            found[held] = scores
        return found
    parts = group_rows(np.arange(len(rows)) if groups is None else groups, len(rows))
    for held, scores in leave_out(path, rows, truth, parts, np.array([ridge])):
        found[held.ravel()] = scores.reshape(-1, found.shape[1])
    return found


def _each_left_out(path: RidgePath, rows: Rows, truth: Truth, ridge: float) -> Iterator[tuple[Indices, Array]]:
    """The scores of rows that weigh the same, each in the head of all others, some rows at a time."""
    system = path.system
    if len(rows) < 2:
        raise InputError(f"Leaving one row out needs two rows or more; found {len(rows)}.")
    base, mean = (1 / system.weight, system.mean_target) if system.design.intercept == "free" else (0.0, 0.0)
    inverse = 1 / (path.values + path.penalties(np.array([ridge]), weight=system.weight - 1))
    head, half = (path.vectors * inverse) @ path.rotated, path.vectors * np.sqrt(inverse)
    for numbers, block in row_blocks(rows, system.design):
        seen, held = system.columns(block), numbers[:, None]
        turned = seen @ half
        spare = 1 - (np.einsum("nd,nd->n", turned, turned) + base)
        _refuse_lone(spare, held, ridge)
        aims = truth.targets(held)[:, 0]
        yield numbers, aims - (aims - (seen @ head + mean)) / spare[:, None]


def leave_out(
    path: RidgePath, rows: Rows, truth: Truth, parts: list[Indices], ridges: Array
) -> Iterator[tuple[Indices, Array]]:
    """For some groups of equal size the row numbers (groups, size) and the scores (ridges, groups, size, classes)."""
    if len(parts) < 2:
        raise InputError(f"Leaving one group out needs two groups or more; found {len(parts)}. Name other groups.")
    classes = path.system.design.classes
    sizes = np.array([len(part) for part in parts])
    large = sizes > path.system.design.columns
    if large.any():
        yield from _refitted(path, rows, truth, [parts[i] for i in np.flatnonzero(large)], ridges)
    for size in np.unique(sizes[~large]):
        same = np.stack([parts[i] for i in np.flatnonzero(sizes == size)])
        elements = size * (max(size, classes) * len(ridges) + len(path.values))
        for some in np.array_split(same, max(1, round(same.shape[0] * elements / BLOCK_ELEMENTS))):
            if len(some):
                yield some, _scores(path, rows, truth, some, ridges)


def _refitted(
    path: RidgePath, rows: Rows, truth: Truth, parts: list[Indices], ridges: Array
) -> Iterator[tuple[Indices, Array]]:
    """Groups of more rows than columns: an eigendecomposition of the others' sums costs less than the hat matrix."""
    system = path.system
    rest = np.setdiff1d(np.arange(len(rows)), np.concatenate(parts))
    sums = [truth.sums(rows, part) for part in ([*parts, rest] if len(rest) else parts)]
    weight = system.class_weights if system.design.per_class else None
    for part, others in zip(parts, sums_of_others(sums), strict=False):
        options: Any = {"standardise": system.standardisation, "class_weight": weight, "targets": system.targets}
        without = decompose(others, scaling=path.scaling, **options)
        seen = np.concatenate([without.system.columns(one) for _, one in row_blocks(rows[part], system.design)])
        inverse = 1 / (without.values[:, None] + without.penalties(ridges))
        values = without.vectors @ (inverse.T[:, :, None] * without.rotated)
        mean = without.system.mean_target if system.design.intercept == "free" else 0.0
        yield part[None], (seen @ values + mean)[:, None]


def _scores(path: RidgePath, rows: Rows, truth: Truth, held: Indices, ridges: Array) -> Array:
    system = path.system
    base, mean = (1 / system.weight, system.mean_target) if system.design.intercept == "free" else (0.0, 0.0)
    count, size = held.shape
    blocks = [system.columns(block) for _, block in row_blocks(rows[held.ravel()], system.design)]
    rotated = np.concatenate(blocks) @ path.vectors
    weights, aims = truth.weights(held), truth.targets(held)
    found = np.empty((len(ridges), *aims.shape))
    kept = np.unique(system.weight - weights.sum(axis=1)) if (weights == 1).all() else system.weight - weights.sum(1)
    for number in np.argsort(ridges):
        penalties = np.array([path.penalties(ridges[[number]], weight=one)[0] for one in kept])
        inverse = np.repeat(1 / (path.values + penalties[:, None]), len(rotated) // len(kept), axis=0)
        filtered = rotated * inverse
        errors = aims - ((filtered @ path.rotated) + mean).reshape(aims.shape)
        if size == 1:
            spare = 1 - (np.einsum("nd,nd->n", filtered, rotated) + base) * weights[:, 0]
            _refuse_lone(spare, held, ridges[number])
            found[number] = aims - errors / spare[:, None, None]
            continue
        hat = filtered.reshape(count, size, -1) @ rotated.reshape(count, size, -1).transpose(0, 2, 1) + base
        if ridges[number] == ridges.min():  # leverages fall as the ridge grows
            root = np.sqrt(weights)
            _refuse_lone(1 - np.linalg.eigvalsh(hat * root[:, :, None] * root[:, None, :])[:, -1], held, ridges.min())
        found[number] = aims - np.linalg.solve(np.eye(size) - hat * weights[:, None, :], errors)
    return found


def _refuse_lone(spare: Array, held: Indices, ridge: float) -> None:
    if spare.min() < LONE:
        row = held[int(np.argmin(spare)), 0]
        raise InputError(f"The group of row {row} cannot be left out at ridge {ridge:g} (leverage 1). Try larger ones.")
