"""Slow answers by other means than the library's: no Gram, no eigenvectors, one refit at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def random_rows(
    count: int, width: int, classes: int, *, seed: int = 0, signal: float = 0.5
) -> tuple[NDArray[np.float32], Labels]:
    """Rows around a center for each class, all away from zero as embeddings are."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    labels[: min(classes, count)] = np.arange(min(classes, count))
    centers = signal * generator.standard_normal((classes, width))
    rows = generator.standard_normal((count, width)) + centers[labels] + 0.7
    return rows.astype(np.float32), labels


def random_set(
    count: int, width: int, classes: int, *, seed: int = 0, signal: float = 0.5
) -> EmbeddingSet:
    rows, labels = random_rows(count, width, classes, seed=seed, signal=signal)
    names = [f"class {number}" for number in range(classes)]
    return EmbeddingSet.from_numpy(rows, labels, class_names=names)


def one_hot(labels: Labels, classes: int) -> Array:
    return np.eye(classes)[labels]


def with_ones(rows: NDArray[np.floating]) -> Array:
    return np.hstack([np.asarray(rows, np.float64), np.ones((len(rows), 1))])


def ridge_by_lstsq(
    rows: NDArray[np.floating],
    targets: Array,
    ridge: float,
    *,
    intercept: str = "free",
    weights: Array | None = None,
) -> Array:
    """Ridge as least squares with rows for the penalty (an SVD), (d + 1, k)."""
    matrix = with_ones(rows)
    weights = np.ones(len(matrix)) if weights is None else weights
    root = np.sqrt(weights)[:, None]
    penalty = np.sqrt(weights.sum() * ridge) * np.eye(matrix.shape[1])
    if intercept == "free":
        penalty[-1] = 0
    stacked = np.vstack([root * matrix, penalty])
    right = np.vstack([root * targets, np.zeros((len(penalty), targets.shape[1]))])
    return np.asarray(np.linalg.lstsq(stacked, right, rcond=None)[0])


def refitted_scores(
    rows: NDArray[np.floating],
    targets: Array,
    ridge: float,
    groups: NDArray,
    *,
    intercept: str = "free",
    weights: Array | None = None,
) -> Array:
    """The scores of every row in the head of the rows of other groups, by fitting all heads."""
    scores = np.empty_like(targets)
    for group in np.unique(groups):
        inside = groups == group
        head = ridge_by_lstsq(
            rows[~inside],
            targets[~inside],
            ridge,
            intercept=intercept,
            weights=None if weights is None else weights[~inside],
        )
        scores[inside] = with_ones(rows[inside]) @ head
    return scores


def gcv_error(
    rows: NDArray[np.floating],
    targets: Array,
    ridge: float,
    *,
    intercept: str = "free",
    weights: Array | None = None,
) -> float:
    """(RSS / n) / (1 - tr H / rows)^2 with the hat matrix of all rows, column by column."""
    identity = np.eye(len(rows))
    weights = np.ones(len(rows)) if weights is None else weights
    hat = with_ones(rows) @ ridge_by_lstsq(
        rows, identity, ridge, intercept=intercept, weights=weights
    )
    residuals = targets - hat @ targets
    mean = float((weights[:, None] * np.square(residuals)).sum() / weights.sum())
    return mean / (1 - float(np.trace(hat)) / len(rows)) ** 2


def cosine(left: NDArray[np.floating], right: NDArray[np.floating]) -> float:
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    product = sum(x * y for x, y in pairs)
    norms = sum(x * x for x, _ in pairs) * sum(y * y for _, y in pairs)
    return float(product / np.sqrt(norms))


def relative_error(found: NDArray, expected: NDArray) -> float:
    """The Frobenius distance over the norm of what was expected."""
    return float(np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected))
