"""Statistics of few rows as their joint root: the triangular factor of [X 1 | Y], which takes what the rows take.

With [X 1 | Y] = Q R the Gram is R_x^T R_x and the moment R_x^T R_y, where R_x are the first columns of R and R_y the
last, one for each class that the rows have: positive semidefinite by construction. The factor is canonical: its
diagonal is not negative. Below about d rows such statistics are the rows, up to a rotation. With a Gram per class there
is a root per class, one below the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design, design_text
from probekit.linear.statistics import checked_labels, columns_of, statistics
from probekit.values import Array, Indices, Rows

STACK_ROWS = 2048
"""How many rows of roots become one product. Not more in exact arithmetic: 2**11 rows of squares up to 2**39 steps of
the grid are at most 2**50, of which float64 loses an eighth of a step."""
EXACT_STACK = 128
"""How many roots of exact statistics become one product: their own errors add up to an eighth of a step."""
EXACT_MISS = 2.0**-10
"""By how much of a step a root's product may miss the exact sums."""


class RootStats(ClientStats):
    """The statistics of few rows as their joint root, (n, columns + classes that the rows have)."""

    root: Array
    _count: int

    def __init__(self, design: Design, root: Array, class_counts: Indices) -> None:
        vars(self).update(design=design, root=root, class_counts=class_counts, _count=int(class_counts.sum()))
        many = np.count_nonzero(class_counts) if class_counts.shape == (design.classes,) else -1
        wanted = (self.count, design.columns + (1 if design.per_class else many))
        if many < 0 or root.shape != wanted:
            raise InputError(
                f"A root of {design} with class counts {class_counts.shape} needs shape {wanted}; found {root.shape}."
            )
        for array in (root, class_counts):
            array.setflags(write=False)

    @property
    def count(self) -> int:
        """How many rows."""
        return self._count

    @property
    def dense(self) -> ClientStats:
        """The same as sums."""
        return ClientStats(self.design, **product([self]))

    @property
    def gram(self) -> Array:
        """R_x^T R_x, made anew every time: it takes far more room than the root."""
        return self.dense.gram

    @property
    def moment(self) -> Array:
        """R_x^T R_y."""
        return self.dense.moment

    @property
    def digest(self) -> str:
        """The sha256 of the root, the class counts and the design."""
        hasher = hashlib.sha256(f"root {design_text(self.design)}".encode())
        for array in (self.root, self.class_counts):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()

    def parts(self) -> Iterator[tuple[Indices, Array]]:
        """Classes and the root of their rows: all classes at once or, with a Gram per class, one after the other."""
        own = np.flatnonzero(self.class_counts)
        if not self.design.per_class:
            yield own, self.root
            return
        ends = np.cumsum(self.class_counts[own])
        for number, end in zip(own, ends.tolist(), strict=True):
            yield np.array([number]), self.root[end - int(self.class_counts[number]) : end]


def client_statistics(rows: Rows, labels: NDArray[Any], design: Design) -> ClientStats:
    """What a client sends of its rows: their joint root where they are few, else Gram, moment and class counts."""
    labels = checked_labels(labels, len(rows), design.classes)
    if not has_root(len(rows), len(np.unique(labels)), design):
        return statistics(rows, labels, design)
    found = root_of(columns_of(rows, design), labels, design)
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.isfinite(np.vdot(found.root, found.root))
    if usable and design.arithmetic != "exact":
        return found
    sums = statistics(rows, labels, design)  # which names a row that cannot be used
    return found if usable and _rounds_to(found, sums) else sums


def has_root(rows: int, classes: int, design: Design) -> bool:
    """Whether so many rows of so many classes are few enough for a root to take less room than sums."""
    return 0 < 2 * rows < design.dimension + classes


def root_of(columns: Array, labels: Indices, design: Design) -> RootStats:
    """The joint root of rows as the design sees them, column of ones included."""
    counts = np.bincount(labels, minlength=design.classes)
    own = np.flatnonzero(counts)
    if not design.per_class:
        targets = labels[:, None] == own
        return RootStats(design, factor(np.hstack([columns, targets])), counts)
    ones = np.ones((len(columns), 1))
    parts = [factor(np.hstack([columns, ones])[labels == number]) for number in own]
    return RootStats(design, np.vstack(parts), counts)


def product(roots: Sequence[RootStats]) -> dict[str, Any]:
    """Gram, moment and class counts of the rows of several roots, by one product (with a Gram per class: by one each).

    In exact arithmetic the sums are rounded to the grid that they lie on.
    """
    design = roots[0].design
    counts = np.sum([one.class_counts for one in roots], axis=0)
    parts = [part for one in roots for part in one.parts()]
    if design.per_class:
        gram, moment = np.zeros(design.shapes[0]), np.zeros(design.shapes[1])
        for number in np.flatnonzero(counts):
            some = [part for part in parts if part[0][0] == number]
            gram[number], own = _stacked(some, design, counts[number])
            moment[:, number] = own[:, number]
    else:
        gram, moment = _stacked(parts, design, counts.sum())
    if design.intercept != "none":
        moment[-1] = counts
    return {"gram": gram, "moment": moment, "class_counts": counts}


def _stacked(parts: Sequence[tuple[Indices, Array]], design: Design, count: np.int64) -> tuple[Array, Array]:
    columns, place = design.columns, 0
    seen = np.empty((sum(len(root) for _, root in parts), columns))
    targets = np.zeros((len(seen), design.classes))
    for own, root in parts:
        end = place + len(root)
        seen[place:end] = root[:, :columns]
        targets[place:end, own] = root[:, columns:]
        place = end
    gram, moment = seen.T @ seen, seen.T @ targets
    if design.grid:
        steps = _steps(design)
        gram, moment = np.rint(gram / steps / steps.T) * steps * steps.T, np.rint(moment / steps) * steps
    if design.intercept != "none":
        gram[-1, -1] = count
    return gram, moment


def _steps(design: Design) -> Array:
    """The grid of every column: a power of two, so that dividing by it loses nothing."""
    steps = np.ones((design.columns, 1))
    steps[: design.dimension] = design.grid
    return steps


def factor(matrix: Array) -> Array:
    """The triangular factor of a matrix with fewer rows than columns, its diagonal not negative."""
    root = np.linalg.qr(matrix, mode="r")
    return np.asarray(root * np.where(np.diagonal(root) < 0, -1.0, 1.0)[:, None])


def _rounds_to(found: RootStats, sums: ClientStats) -> bool:
    """Whether the root's products are the exact sums, by far less than half a step of the grid."""
    steps, columns = _steps(found.design), found.design.columns
    if len(found.root) > STACK_ROWS:
        return False
    moments = np.zeros_like(sums.moment)
    grams = np.zeros_like(sums.gram if found.design.per_class else sums.gram[None])
    for own, root in found.parts():
        grams[own[0] if found.design.per_class else 0] = root[:, :columns].T @ root[:, :columns]
        moments[:, own] = root[:, :columns].T @ root[:, columns:]
    miss = np.abs(grams - sums.gram) / steps / steps.T
    return max(float(miss.max()), float(np.abs((moments - sums.moment) / steps).max())) <= EXACT_MISS
