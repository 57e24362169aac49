"""Temperatures and most wrong rows by scores of rows left out."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.evaluation.left_out import TEMPERATURES, grid_temperature, most_wrong
from probekit.evaluation.metrics import log_probabilities
from probekit.values import EmbeddingSet


def test_the_temperature_is_the_grids_best() -> None:
    drawn = np.random.default_rng(0)
    for scale in (1e-3, 0.2, 7.0):
        scores = scale * drawn.normal(size=(300, 4))
        chances = np.exp(log_probabilities(scores, scale / 2))
        labels = (chances.cumsum(axis=1) < drawn.random((300, 1))).sum(axis=1)
        losses = [-np.take_along_axis(log_probabilities(scores, t), labels[:, None], 1).sum() for t in TEMPERATURES]
        assert grid_temperature(scores, labels) == TEMPERATURES[int(np.argmin(losses))]


def test_the_most_wrong_rows_come_first_and_right_ones_never() -> None:
    vectors = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    rows = EmbeddingSet.from_numpy(vectors, ["a", "b", "b", "a"])
    scores = np.array([[1.0, 0.0], [0.9, 0.0], [0.3, 0.0], [0.0, 0.1]])
    found = most_wrong(scores, rows, count=2)
    assert [(one.row, one.label, one.given) for one in found] == [(1, "b", "a"), (2, "b", "a")]
    assert found[0].margin == pytest.approx(0.9)
    assert [one.row for one in most_wrong(scores, rows)] == [1, 2, 3]
    with pytest.raises(InputError, match="4 rows"):
        most_wrong(scores[:2], rows)
