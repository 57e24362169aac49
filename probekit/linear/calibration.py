"""From scores to probabilities: a softmax at the temperature of least log loss on held-out rows."""

from __future__ import annotations

import numpy as np

from probekit.arrays import Array, Indices
from probekit.embeddings import EmbeddingSet

LOW_TEMPERATURE = 1e-6
HIGH_TEMPERATURE = 1e6
ACCURACY = 1e-10
"""Relative, of a temperature."""


def best_temperature(scores: Array, labels: Indices, weights: Array | None = None) -> float:
    """The temperature of least log loss of softmax(scores / temperature), from 1e-6 to 1e6.

    The loss is convex in t = 1 / temperature, with slope E[s] - s_label under the softmax.
    Scores must be of rows that the head was not fitted to.
    """
    from scipy.optimize import brentq

    shares = np.ones(len(labels)) if weights is None else weights
    shares = shares / shares.sum()
    centered = scores - scores.max(axis=1, keepdims=True)
    labeled = np.take_along_axis(centered, labels[:, None], axis=1)[:, 0]

    def slope(log_t: float) -> float:
        probabilities = np.exp(centered * np.exp(log_t))
        mean = np.einsum("nk,nk->n", probabilities, centered) / probabilities.sum(axis=1)
        return float(shares @ (mean - labeled))

    low = -np.log(HIGH_TEMPERATURE)
    high = -np.log(LOW_TEMPERATURE)
    if slope(high) <= 0:  # every row is right: the surer, the better
        return LOW_TEMPERATURE
    if slope(low) >= 0:
        return HIGH_TEMPERATURE
    return float(np.exp(-brentq(slope, low, high, xtol=ACCURACY)))


def left_out_temperature(scores: Array, embeddings: EmbeddingSet) -> float:
    """The temperature for scores of these rows in heads that were fitted without them.

    Several labels of 0 and 1 have one temperature, each label with the scores 1 - s and s.
    """
    if embeddings.labels is not None:
        return best_temperature(scores, embeddings.labels, embeddings.weights)
    pairs = np.stack([1 - scores.ravel(), scores.ravel()], axis=1)
    labels = embeddings.target_matrix.ravel().astype(np.int64)
    return best_temperature(pairs, labels, np.repeat(embeddings.row_weights, scores.shape[1]))


def log_losses(scores: Array, labels: Indices) -> Array:
    """-log softmax(scores) of each row's label, (n,)."""
    centered = scores - scores.max(axis=1, keepdims=True)
    labeled = np.take_along_axis(centered, labels[:, None], axis=1)[:, 0]
    return np.asarray(np.log(np.exp(centered).sum(axis=1)) - labeled)
