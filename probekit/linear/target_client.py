"""What a client with real targets sends: a root per pattern where its rows are few, else sums; and reading it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.roots import factor
from probekit.linear.statistics import columns_of
from probekit.linear.targets import (
    TargetDesign,
    TargetPart,
    TargetStats,
    checked_targets,
    known,
    patterns_of,
    target_statistics,
)
from probekit.values import Rows

ROWS, COUNT, ROOT, JOINT = "rows", "count-", "root-", "joint-"
"""The names of arrays in an answer: how many rows there are and, of every part, its rows and its root or joint Gram."""


def client_target_statistics(rows: Rows, targets: ArrayLike, design: TargetDesign) -> TargetStats:
    """Joint roots by pattern of known targets where all rows are few enough to take less room so, else sums."""
    matrix = checked_targets(targets, len(rows), design.classes)
    if not 0 < 2 * len(rows) < design.dimension + design.classes:
        return target_statistics(rows, matrix, design)
    columns, parts = columns_of(rows, design), {}
    for pattern, index in patterns_of(matrix).items():
        root = factor(np.hstack([columns[index], matrix[np.ix_(index, known(pattern))]]))
        with np.errstate(over="ignore", invalid="ignore"):
            usable = np.isfinite(np.vdot(root, root))
        if not usable:
            return target_statistics(rows, matrix, design)  # which names a row that cannot be used
        parts[pattern] = TargetPart(len(index), root, is_root=True)
    return TargetStats(design, parts, sum(part.count for part in parts.values()))


def arrays_of(stats: TargetStats) -> dict[str, NDArray[Any]]:
    """Statistics as an answer holds them."""
    found: dict[str, NDArray[Any]] = {ROWS: np.array([stats.count], np.int64)}
    for pattern, part in stats.parts.items():
        found[COUNT + pattern] = np.array([part.count], np.int64)
        found[(ROOT if part.is_root else JOINT) + pattern] = part.matrix
    return found


def stats_of(design: TargetDesign, arrays: Mapping[str, NDArray[Any]]) -> TargetStats:
    """The statistics in an answer; what cannot be read is refused."""
    parts = {}
    try:
        for name in arrays:
            if name.startswith((ROOT, JOINT)):
                kind, _, pattern = name.partition("-")
                count = int(arrays[COUNT + pattern][0])
                parts[pattern] = TargetPart(count, np.asarray(arrays[name], np.float64), is_root=kind == "root")
        if len(arrays) != 1 + 2 * len(parts):
            raise InputError("Statistics of real targets hold rows, counts and matrices, and nothing else.")
        return TargetStats(design, parts, int(arrays[ROWS][0]))
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"These are no statistics of real targets: {error}. Ask the client again.") from error


def fault_of(arrays: Mapping[str, NDArray[Any]], count: int, columns: int, targets: int) -> str:
    """What is wrong with the shapes of an answer; empty where nothing is."""
    try:
        design = TargetDesign(columns, targets, intercept="none")
        found = stats_of(design, arrays)
    except InputError as error:
        return str(error)
    for pattern, part in found.parts.items():
        if not part.is_root and not np.array_equal(part.matrix, part.matrix.T):
            return f"the joint Gram of {pattern} is not symmetric."
    most = max((part.count for part in found.parts.values()), default=0)
    least, together = min((part.count for part in found.parts.values()), default=0), found.class_counts.max(initial=0)
    if least < 0 or found.count != count or not max(most, together) <= count:
        return f"it counts other rows than the {count} that it speaks of."
    return ""


def design_of(plain: Mapping[str, Any]) -> Design:
    """A design from its plain values."""
    return TargetDesign(**plain) if "targets" in plain else Design(**plain)
