"""The most wrong rows by scores of rows left out."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.evaluation.left_out import most_wrong
from probekit.values import EmbeddingSet


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
