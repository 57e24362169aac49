"""From scores to chances: a softmax at the temperature of least log loss on rows that the head does not know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.lapack import special

SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-6, 1e6
TEMPERATURE_STEPS, TEMPERATURE_ACCURACY = 100, 1e-10
FEW_ROWS, SAMPLED = 10_000, 16
"""Of more rows than this, one in so many says where to look first."""
TEMPERATURES = 2.0 ** (np.arange(-160, 161) / 8)
"""The temperatures to choose from: a fixed grid, so that sums over clients lead to the same one whoever is asked."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def log_probabilities(scores: Array, temperature: float) -> Array:
    """The logarithm of the softmax of the scores divided by the temperature."""
    if not temperature > 0:
        raise InputError(f"A temperature must be above 0; found {temperature}.")
    return np.asarray(special.log_softmax(scores / temperature, axis=1))


def best_temperature(scores: Array, labels: Indices, *, begin: float | None = None) -> float:
    """The temperature of least log loss on these rows, between 1e-6 and 1e6. `begin`: where to look first.

    The loss is convex in t = 1 / temperature; its slope is the mean of E[s] - s_label, its curvature that of Var[s]
    under the softmax. Newton's steps in log t, kept inside the bracket that the slopes' signs give.
    """
    below = scores - scores.max(axis=1, keepdims=True)
    own = np.take_along_axis(below, labels[:, None], axis=1)[:, 0]

    def derivatives(log_t: float) -> tuple[float, float]:
        shares = np.exp(below * np.exp(log_t))
        total = shares.sum(axis=1)
        shares *= below
        mean = shares.sum(axis=1) / total
        square = np.einsum("nk,nk->n", shares, below) / total
        return float(np.mean(mean - own)), float(np.mean(square - mean**2))

    low, high = np.log(1 / LARGEST_TEMPERATURE), np.log(1 / SMALLEST_TEMPERATURE)
    if not own.any():  # every row is right: the surer, the better
        return SMALLEST_TEMPERATURE
    if begin is None and len(scores) > FEW_ROWS:
        begin = best_temperature(scores[::SAMPLED], labels[::SAMPLED])
    log_t = float(np.clip(-np.log(begin or np.std(scores) or 1.0), low, high))
    for _ in range(TEMPERATURE_STEPS):
        slope, curvature = derivatives(log_t)
        low, high = (log_t, high) if slope < 0 else (low, log_t)
        step = -slope / (curvature * np.exp(log_t)) if curvature > 0 else np.inf
        following = log_t + step if low < log_t + step < high else (low + high) / 2
        if abs(following - log_t) < TEMPERATURE_ACCURACY:
            break
        log_t = following
    return float(np.exp(-log_t))


def grid_temperature(scores: Array, labels: Indices) -> float:
    """The temperature of the grid with the least summed log loss on these rows.

    The loss is convex in 1 / temperature, so it is one of the two neighbours of the best of all temperatures.
    """
    place = int(np.searchsorted(TEMPERATURES, best_temperature(scores, labels)))
    near = TEMPERATURES[max(0, place - 1) : place + 1]
    losses = [-np.take_along_axis(log_probabilities(scores, float(t)), labels[:, None], 1).sum() for t in near]
    return float(near[int(np.argmin(losses))])


def label_temperatures(scores: Array, targets: Array) -> tuple[float, ...]:
    """The temperature of every label, by the scores of the rows that know it: regressions on 0 and 1, (n, k)."""
    found = []
    for own, truth in zip(scores.T, targets.T, strict=True):
        seen = ~np.isnan(truth)
        both = np.stack([1 - own[seen], own[seen]], axis=1)
        found.append(grid_temperature(both, truth[seen].astype(np.int64)))
    return tuple(found)


def label_chances(scores: Array, temperatures: Sequence[float]) -> Array:
    """The chance that each label is 1: the softmax of its scores for 0 and 1 at its temperature."""
    return np.asarray(special.expit((2 * scores - 1) / np.asarray(temperatures)))
