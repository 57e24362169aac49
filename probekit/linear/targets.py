"""Targets that are real numbers, several to a row and some of them unknown (NaN): designs and statistics.

Rows whose known targets are the same are a part of the statistics: the joint Gram [X 1 | Y]^T [X 1 | Y] over these
targets or, where the rows are few, its triangular root. A target's own least-squares problem is over all parts that
know it. Where there are more patterns of known targets than targets, there is one part per target instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design, design_text
from probekit.linear.statistics import row_blocks
from probekit.values import LABELS, REAL, Array, Indices, Rows, target_kind

__all__ = ["LABELS", "REAL", "TargetDesign", "TargetPart", "TargetStats", "target_kind", "target_statistics"]


@dataclass(frozen=True)
class TargetDesign(Design):
    """A design whose `classes` are targets: "labels" (each 0 or 1) or "real" numbers, any of them unknown in a row."""

    targets: str = REAL

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets not in (LABELS, REAL):
            raise InputError(f"Targets are {LABELS!r} or {REAL!r}; found {self.targets!r}.")
        if self.arithmetic != "float64" or self.per_class:
            found = self.arithmetic if self.arithmetic != "float64" else "class weights"
            raise InputError(f"Several labels and real targets are summed in float64, unweighted; found {found}.")

    @property
    def everything(self) -> str:
        """The pattern of a row whose targets are all known."""
        return "1" * self.classes

    def zero(self) -> TargetStats:
        """The statistics of no rows."""
        return TargetStats(self, {}, 0)

    def width(self, pattern: str) -> int:
        """The columns of a part: those of the rows, and the known targets."""
        return self.columns + pattern.count("1")


@dataclass(frozen=True, eq=False)
class TargetPart:
    """The rows of one pattern: how many, and the joint Gram of columns and known targets, or its root."""

    count: int
    matrix: Array
    is_root: bool = False

    def __post_init__(self) -> None:
        self.matrix.setflags(write=False)

    @property
    def joint(self) -> Array:
        """The joint Gram."""
        return np.asarray(self.matrix.T @ self.matrix) if self.is_root else self.matrix

    def sum(self, other: TargetPart, sign: int = 1) -> TargetPart:
        """Both parts' rows, or those of one without the other's."""
        return TargetPart(self.count + sign * other.count, self.joint + sign * other.joint)


class TargetStats(ClientStats):
    """The statistics of rows with real targets, by pattern of known targets. A commutative monoid under `+`."""

    design: TargetDesign
    parts: Mapping[str, TargetPart]
    _count: int

    def __init__(self, design: TargetDesign, parts: Mapping[str, TargetPart], count: int) -> None:
        vars(self).update(design=design, parts=dict(sorted(parts.items())), _count=count)
        for pattern, part in self.parts.items():
            width = design.width(pattern)
            wanted = (part.count if part.is_root else width, width)
            if len(pattern) != design.classes or part.matrix.shape != wanted or "1" not in pattern:
                raise InputError(
                    f"A part of {part.count} rows that know {pattern.count('1')} of {design.classes} targets needs "
                    f"shape {wanted}; found pattern {pattern} and {part.matrix.shape}."
                )

    def __repr__(self) -> str:
        return f"TargetStats({self.count} rows, {len(self.parts)} parts, {self.design})"

    @property
    def count(self) -> int:
        """How many rows know a target."""
        return self._count

    @property
    def dense(self) -> TargetStats:
        """The same as sums."""
        if not any(part.is_root for part in self.parts.values()):
            return self
        parts = {pattern: TargetPart(part.count, part.joint) for pattern, part in self.parts.items()}
        return TargetStats(self.design, parts, self.count)

    @property
    def complete(self) -> TargetPart:
        """The only part, where every row knows every target."""
        if self.parts.keys() - {self.design.everything}:
            raise InputError("Some targets are unknown in some rows, so there is no one Gram. Go by label_groups.")
        width = self.design.width(self.design.everything)
        return self.parts.get(self.design.everything) or TargetPart(0, np.zeros((width, width)))

    @property
    def gram(self) -> Array:
        """X^T X, where every target is known."""
        return self.complete.joint[: self.design.columns, : self.design.columns]

    @property
    def total_gram(self) -> Array:
        """The same."""
        return self.gram

    @property
    def moment(self) -> Array:
        """X^T Y, where every target is known."""
        return self.complete.joint[: self.design.columns, self.design.columns :]

    @property
    def class_counts(self) -> Indices:
        """How many rows know each target."""
        counts = np.zeros(self.design.classes, np.int64)
        for pattern, part in self.parts.items():
            counts[known(pattern)] += part.count
        return counts

    @property
    def energy(self) -> Array:
        """The sum of squares of each target over the rows that know it."""
        found = np.zeros(self.design.classes)
        for pattern, part in self.parts.items():
            found[known(pattern)] += np.diagonal(part.joint)[self.design.columns :]
        return found

    @property
    def spread(self) -> Array:
        """The same around each target's mean, where there is a column of ones to know the mean by."""
        found, sums = self.energy, np.zeros(self.design.classes)
        if self.design.intercept != "none":
            for pattern, part in self.parts.items():
                sums[known(pattern)] += part.joint[self.design.dimension, self.design.columns :]
            found = np.maximum(found - sums**2 / np.maximum(self.class_counts, 1), 0.0)
        return found

    def label_groups(self) -> list[tuple[Indices, TargetStats]]:
        """Targets that the same rows know, with the statistics of these rows and targets alone: every target known."""
        if set(self.parts) == {self.design.everything}:
            return [(np.arange(self.design.classes), self)]
        alike: dict[tuple[str, ...], list[int]] = {}
        for label in range(self.design.classes):
            alike.setdefault(tuple(pattern for pattern in self.parts if pattern[label] == "1"), []).append(label)
        return [(np.array(labels), self._of(labels, some)) for some, labels in alike.items()]

    def _of(self, labels: list[int], patterns: Iterable[str]) -> TargetStats:
        design = replace(self.design, classes=len(labels))
        chosen = (_chosen(self.design, pattern, self.parts[pattern], labels) for pattern in patterns)
        complete = reduce(TargetPart.sum, chosen, design.zero().complete)
        return TargetStats(design, {design.everything: complete} if complete.count else {}, complete.count)

    def by_label(self) -> TargetStats:
        """The same with one part per target."""
        parts: dict[str, TargetPart] = {}
        for label in range(self.design.classes):
            one = self._of([label], [pattern for pattern in self.parts if pattern[label] == "1"])
            if one.count:
                parts["0" * label + "1" + "0" * (self.design.classes - label - 1)] = one.complete
        return TargetStats(self.design, parts, self.count)

    def compact(self) -> TargetStats:
        """The same by target, where there are more patterns than targets."""
        return self.by_label() if len(self.parts) > self.design.classes else self

    def __add__(self, other: ClientStats) -> TargetStats:
        return self._joined(other, "add", 1).compact()

    def __sub__(self, other: ClientStats) -> TargetStats:
        """The statistics without these rows, to rounding (better re-sum)."""
        return self._joined(other, "subtract", -1)

    def _joined(self, other: ClientStats, verb: str, sign: int) -> TargetStats:
        self._belongs(other, verb)
        other = other.loaded
        if not isinstance(other, TargetStats):
            raise InputError("Statistics of real targets and of classes cannot be joined. Use one kind.")
        if sign < 0 and other.parts.keys() - self.parts.keys():
            return self.by_label()._joined(other.by_label(), verb, sign) if set(self.parts) - units(self) else _alien()
        parts = dict(self.parts)
        for pattern, part in other.parts.items():
            mine = parts.get(pattern)
            parts[pattern] = part if mine is None else mine.sum(part, sign)
        if any(part.count < 0 for part in parts.values()):
            _alien()
        left = {pattern: part for pattern, part in parts.items() if part.count}
        return TargetStats(self.design, left, self.count + sign * other.count)

    @property
    def digest(self) -> str:
        """The sha256 of the parts and the design."""
        hasher = hashlib.sha256(f"targets {self.count} {design_text(self.design)}".encode())
        for pattern, part in self.parts.items():
            hasher.update(f"{pattern} {part.count} {part.is_root}".encode())
            hasher.update(np.ascontiguousarray(part.matrix).data)
        return hasher.hexdigest()


def units(stats: TargetStats) -> set[str]:
    """The patterns of a single target."""
    return {pattern for pattern in stats.parts if pattern.count("1") == 1}


def _alien() -> TargetStats:
    raise InputError("Cannot take these rows out: they are not (all) in these statistics.")


def known(pattern: str) -> Indices:
    """The numbers of the targets that a pattern knows."""
    return np.flatnonzero(np.frombuffer(pattern.encode(), np.uint8) == ord("1"))


def _chosen(design: TargetDesign, pattern: str, part: TargetPart, labels: list[int]) -> TargetPart:
    """A part with these of its targets alone."""
    own = np.searchsorted(known(pattern), labels) + design.columns
    kept = np.concatenate([np.arange(design.columns), own])
    return TargetPart(part.count, np.ascontiguousarray(part.joint[np.ix_(kept, kept)]))


def patterns_of(targets: Array) -> dict[str, Indices]:
    """The row numbers of every pattern of known targets; rows that know none are left out."""
    seen = ~np.isnan(targets)
    if seen.all():
        return {"1" * targets.shape[1]: np.arange(len(targets))} if len(targets) else {}
    kinds, number = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)
    unpacked = np.unpackbits(kinds, axis=1, count=targets.shape[1])
    order = np.argsort(number, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(number.ravel()))[:-1])
    names = ("".join(map(str, kind)) for kind in unpacked.tolist())
    return {name: one.astype(np.int64) for name, one in zip(names, rows, strict=True) if "1" in name}


def checked_targets(targets: ArrayLike, count: int, labels: int) -> Array:
    """The targets as a matrix, one row per row; a single target may come as a column."""
    found = np.asarray(targets, np.float64)
    found = found[:, None] if found.ndim == 1 else found
    if found.shape != (count, labels):
        raise InputError(f"Each of the {count} rows needs {labels} targets (NaN: unknown); found shape {found.shape}.")
    if np.isinf(found).any():
        row = int(np.argmax(np.isinf(found).any(axis=1)))
        raise InputError(f"Row {row} has an infinite target. Give a number, or NaN where it is unknown.")
    return found


def target_statistics(rows: Rows, targets: ArrayLike, design: TargetDesign) -> TargetStats:
    """The sums of these rows by pattern of known targets or, where those are more than the targets, by target."""

    def joint(index: Indices, pattern: str) -> TargetPart:
        return TargetPart(len(index), _joint(rows, matrix[:, known(pattern)], design, index))

    matrix = checked_targets(targets, len(rows), design.classes)
    return _by_part(matrix, design, joint)


def _by_part(matrix: Array, design: TargetDesign, part: Callable[[Indices, str], TargetPart]) -> TargetStats:
    index = patterns_of(matrix)
    count = sum(map(len, index.values()))
    if len(index) > design.classes:
        names = ["0" * label + "1" + "0" * (design.classes - label - 1) for label in range(design.classes)]
        index = {name: np.flatnonzero(~np.isnan(matrix[:, label])) for label, name in enumerate(names)}
    parts = {pattern: part(some, pattern) for pattern, some in index.items() if len(some)}
    return TargetStats(design, parts, count)


def _joint(rows: Rows, targets: Array, design: Design, index: Indices) -> Array:
    """[X 1 | Y]^T [X 1 | Y] of some rows, a block at a time."""
    every = None if len(index) == len(rows) else index
    total = np.zeros((design.columns + targets.shape[1],) * 2)
    for numbers, block in row_blocks(rows, design, index=every):
        ones = np.ones((len(block), design.columns - design.dimension))
        beside: NDArray[Any] = np.hstack([block, ones, targets[numbers]])
        total += beside.T @ beside
        if not np.isfinite(np.einsum("ii->i", total)).all():
            bad = ~np.isfinite(block).all(axis=1)
            what = f"row {numbers[np.argmax(bad)]} holds NaN or infinity" if bad.any() else "the rows' squares overflow"
            raise InputError(f"These rows cannot be summed: {what}. Leave them out, or scale them down.")
    return (total + total.T) / 2
