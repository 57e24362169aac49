"""Temperatures against a fine grid of them."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.embeddings import EmbeddingSet
from probekit.linear import calibration
from probekit.linear.calibration import best_temperature, left_out_temperature


def log_loss(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, t: float) -> float:
    scaled = scores / t
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    logs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return -float(weights @ logs[np.arange(len(labels)), labels])


@pytest.mark.parametrize("scale", [1e-3, 0.2, 7.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_temperature_of_a_grid_is_better(scale: float, weighted: bool) -> None:
    generator = np.random.default_rng(0)
    scores = scale * generator.normal(size=(300, 4))
    chances = np.exp(2 * scores / scale)
    chances /= chances.sum(axis=1, keepdims=True)
    labels = (chances.cumsum(axis=1) < generator.random((300, 1))).sum(axis=1)
    weights = generator.uniform(0, 2, 300) if weighted else np.ones(300)
    temperature = best_temperature(scores, labels, weights if weighted else None)
    loss = log_loss(scores, labels, weights, temperature)
    grid = scale * np.geomspace(1e-2, 1e2, 401)
    assert loss <= min(log_loss(scores, labels, weights, t) for t in grid) + 1e-9
    assert scale / 4 < temperature < scale


def test_rows_that_are_all_right_are_as_sure_as_can_be_and_noise_is_unsure() -> None:
    scores = np.eye(3)[[0, 1, 2, 0]]
    assert best_temperature(scores, np.array([0, 1, 2, 0])) == calibration.LOW_TEMPERATURE
    assert best_temperature(scores, np.array([1, 2, 0, 1])) > 1e5


def test_several_labels_share_a_temperature() -> None:
    generator = np.random.default_rng(1)
    scores = generator.uniform(-0.5, 1.5, (500, 3))
    chances = 1 / (1 + np.exp(-(2 * scores - 1) / 0.4))
    targets = (generator.random(scores.shape) < chances).astype(float)
    embeddings = EmbeddingSet.from_numpy(np.zeros((500, 1)), targets)
    assert left_out_temperature(scores, embeddings) == pytest.approx(0.4, rel=0.15)
