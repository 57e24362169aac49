"""From scores to probabilities: a softmax at the temperature of least log loss on held-out rows."""

from __future__ import annotations

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet

LOW_TEMPERATURE = 1e-6
HIGH_TEMPERATURE = 1e6
STEPS = 100
ACCURACY = 1e-10
FEW_ROWS = 10_000
STRIDE = 16


def best_temperature(scores: Array, labels: Indices, weights: Array | None = None) -> float:
    """The temperature of least log loss of softmax(scores / temperature), from 1e-6 to 1e6.

    The loss is convex in t = 1 / temperature, with slope E[s] - s_label and curvature Var[s] under
    the softmax. Newton's steps are taken in log t, inside the bracket that the slopes' signs give.
    Scores must be of rows that the head was not fitted to.
    """
    shares = np.ones(len(labels)) if weights is None else weights
    shares = shares / shares.sum()
    centered = scores - scores.max(axis=1, keepdims=True)
    labeled = np.take_along_axis(centered, labels[:, None], axis=1)[:, 0]
    if not labeled[shares > 0].any():  # every row is right: the surer, the better
        return LOW_TEMPERATURE
    low = np.log(1 / HIGH_TEMPERATURE)
    high = np.log(1 / LOW_TEMPERATURE)
    guess = float(np.std(scores)) or 1.0
    if len(scores) > FEW_ROWS:
        guess = best_temperature(scores[::STRIDE], labels[::STRIDE], shares[::STRIDE])
    log_t = float(np.clip(-np.log(guess), low, high))
    for _ in range(STEPS):
        slope, curvature = _derivatives(centered, labeled, shares, log_t)
        if slope < 0:
            low = log_t
        else:
            high = log_t
        following = (low + high) / 2
        if curvature > 0:
            newton = log_t - slope / (curvature * np.exp(log_t))
            following = newton if low < newton < high else following
        if abs(following - log_t) < ACCURACY:
            break
        log_t = following
    return float(np.exp(-log_t))


def left_out_temperature(scores: Array, embeddings: EmbeddingSet) -> float:
    """The temperature for scores of these rows in heads that were fitted without them.

    Several labels of 0 and 1 have one temperature, each label with the scores 1 - s and s.
    """
    if embeddings.labels is not None:
        return best_temperature(scores, embeddings.labels, embeddings.weights)
    pairs = np.stack([1 - scores.ravel(), scores.ravel()], axis=1)
    labels = embeddings.target_matrix.ravel().astype(np.int64)
    return best_temperature(pairs, labels, np.repeat(embeddings.row_weights, scores.shape[1]))


def _derivatives(
    centered: Array, labeled: Array, shares: Array, log_t: float
) -> tuple[float, float]:
    """Slope and curvature of the mean log loss in t."""
    probabilities = np.exp(centered * np.exp(log_t))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    mean = np.einsum("nk,nk->n", probabilities, centered)
    square = np.einsum("nk,nk,nk->n", probabilities, centered, centered)
    return float(shares @ (mean - labeled)), float(shares @ (square - mean**2))
