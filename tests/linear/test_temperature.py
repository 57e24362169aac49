"""Temperatures against the whole grid."""

from __future__ import annotations

import numpy as np

from probekit.linear.temperature import TEMPERATURES, grid_temperature, log_probabilities


def test_the_temperature_is_the_grids_best() -> None:
    drawn = np.random.default_rng(0)
    for scale in (1e-3, 0.2, 7.0):
        scores = scale * drawn.normal(size=(300, 4))
        chances = np.exp(log_probabilities(scores, scale / 2))
        labels = (chances.cumsum(axis=1) < drawn.random((300, 1))).sum(axis=1)
        losses = [-np.take_along_axis(log_probabilities(scores, t), labels[:, None], 1).sum() for t in TEMPERATURES]
        assert grid_temperature(scores, labels) == TEMPERATURES[int(np.argmin(losses))]
