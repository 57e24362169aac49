"""Whether statistics could be those of some rows: nobody has others' rows removed by lying about their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import ClientStats
from probekit.linear.lapack import linalg
from probekit.linear.roots import RootStats
from probekit.linear.targets import TargetStats, known
from probekit.values import LABELS

ROUNDING = {"float64": 1e-9, "exact": 1e-9, "fast": 1e-5}
"""How far sums may be off, relative to a Gram's diagonal, by arithmetic."""


def implausible(statistics: ClientStats, count: int | None = None) -> str:
    """Why no rows (no `count` rows, where given) have these statistics, as a clause; empty where some could."""
    statistics = statistics.loaded
    if isinstance(statistics, TargetStats):
        return _implausible_targets(statistics, count)
    design, counts = statistics.design, statistics.class_counts
    if counts.min(initial=0) < 0:
        return f"a class counts {counts.min()} rows"
    if count is not None and statistics.count != count:
        return f"the classes count {statistics.count} rows"
    if isinstance(statistics, RootStats):
        return _implausible_root(statistics)
    moment = statistics.moment
    if not (np.isfinite(statistics.gram).all() and np.isfinite(moment).all()):
        return "they hold NaN or infinity"
    grams = statistics.gram if design.per_class else statistics.gram[None]
    if not np.array_equal(grams, np.swapaxes(grams, 1, 2)):
        return "the Gram is not symmetric"
    rounding = ROUNDING[design.arithmetic]
    if not all(_positive(gram, rounding) for gram in grams):
        return "the Gram is not positive semidefinite"
    # |x_j . y_k|^2 <= |x_j|^2 |y_k|^2, and a one-hot column's square is its count
    diagonal = np.einsum("cii->i", grams)
    allowed = np.outer(diagonal + rounding * diagonal.max(initial=0.0), (1 + rounding) * counts)
    if (np.square(moment) > allowed).any():
        return "the moment is larger than Gram and class counts allow"
    return "" if design.intercept == "none" else _miscounted(statistics, grams, rounding)


def _implausible_root(statistics: RootStats) -> str:
    """A root is positive semidefinite by construction: what is left is its form, and what it counts."""
    design, columns, counts = statistics.design, statistics.design.columns, statistics.class_counts
    if not np.isfinite(np.vdot(statistics.root, statistics.root)):
        return "they hold NaN or infinity"
    rounding = ROUNDING["float64"] * statistics.count
    for own, root in statistics.parts():
        if np.tril(root[:, : len(root)], -1).any() or (np.diagonal(root) < 0).any():
            return "the root is not triangular with a diagonal of at least 0"
        seen = slice(columns - (design.intercept != "none"), None)
        wanted = np.diag(counts[own].astype(np.float64))
        if design.intercept != "none":
            wanted = np.block([[counts[own].sum(), counts[own]], [counts[own][:, None], wanted]])
        if np.abs(root[:, seen].T @ root[:, seen] - wanted).max() > rounding:
            return "the root counts other rows"
    return ""


def _implausible_targets(statistics: TargetStats, count: int | None) -> str:
    """A joint Gram is positive semidefinite, a root triangular, and both count their rows; labels are 0 or 1."""
    design, counts = statistics.design, statistics.class_counts
    parts = statistics.parts.values()
    fewest = max([*counts.tolist(), *(part.count for part in parts)], default=0)
    if (count is not None and statistics.count != count) or not fewest <= statistics.count <= sum(
        part.count for part in parts
    ):
        return f"the parts do not count {statistics.count if count is None else count} rows"
    for pattern, part in statistics.parts.items():
        if part.count < 1 or not np.isfinite(np.vdot(part.matrix, part.matrix)):
            return "they hold NaN or infinity, or a part without rows"
        if part.is_root and (np.tril(part.matrix[:, : part.count], -1).any() or (np.diagonal(part.matrix) < 0).any()):
            return "the root is not triangular with a diagonal of at least 0"
        joint, rounding = part.joint, ROUNDING["float64"]
        if not part.is_root and not (np.array_equal(joint, joint.T) and _positive(joint, rounding)):
            return "the joint Gram is not symmetric and positive semidefinite"
        rounding *= part.count
        if design.intercept != "none":
            ones, sums = joint[design.dimension, design.dimension], joint[design.dimension, design.columns :]
            squares = np.diagonal(joint)[design.columns :]
            if abs(ones - part.count) > rounding:
                return "the joint Gram counts other rows"
            if design.targets == LABELS and np.abs(sums - squares).max(initial=0.0) > rounding:
                return f"label {known(pattern)[int(np.abs(sums - squares).argmax())]} is not 0 or 1 throughout"
    return ""


def _miscounted(statistics: ClientStats, grams: NDArray[np.float64], rounding: float) -> str:
    """Where the column of ones disagrees with the rest."""
    counts, moment = statistics.class_counts, statistics.moment
    if not np.array_equal(grams[:, -1, -1], counts if statistics.design.per_class else [statistics.count]):
        return "the Gram's count of rows is another"
    if not np.array_equal(moment[-1], counts):
        return "the moment's class counts are others"
    sums, total = moment[:-1].sum(axis=1), grams[:, -1, :-1].sum(axis=0)
    scale = np.sqrt(statistics.count * np.einsum("cii->i", grams)[:-1]).max(initial=0.0)
    return "Gram and moment do not sum the same rows" if np.abs(sums - total).max() > rounding * scale else ""


def _positive(gram: NDArray[np.float64], rounding: float) -> bool:
    """Whether no eigenvalue is below 0 by more than rounding; a factorisation is ten times as fast as they are."""
    diagonal = np.einsum("ii->i", gram)
    if diagonal.min() < 0:
        return False
    try:
        linalg.cholesky(gram + (rounding * diagonal.max() or 1.0) * np.eye(len(gram)), check_finite=False)
    except linalg.LinAlgError:
        return False
    return True
