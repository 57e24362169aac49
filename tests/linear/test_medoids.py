"""Representative rows on groups that are known."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.linear.medoids import representatives


def test_representatives_are_different_deterministic_and_one_per_group() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(6, 5)) * 30
    group = np.repeat(np.arange(6), [50, 40, 30, 20, 10, 5])
    rows = (centres[group] + generator.normal(size=(155, 5))).astype(np.float32)
    found = representatives(rows, 6, seed=3)
    assert sorted(group[found].tolist()) == [0, 1, 2, 3, 4, 5]
    assert found.tolist() == representatives(rows, 6, seed=3).tolist()
    for row in found.tolist():
        own = rows[group == group[row]]
        nearest = np.argmin(((own - own.mean(axis=0)) ** 2).sum(axis=1))
        assert np.array_equal(own[nearest], rows[row])
    repeated = representatives(np.ones((9, 3), np.float32), 4)
    assert len(set(repeated.tolist())) == 4
    assert representatives(rows, 155).tolist() == list(range(155))
    with pytest.raises(InputError, match="found 156"):
        representatives(rows, 156)
