"""What the grid of exact arithmetic costs: bounded, and small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import InputError
from probekit.linear.design import GRID_REACH, Design
from probekit.linear.grid import grid_bound, grid_change, step_for
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from tests.linear.conftest import Data, embeddings


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), bits=st.integers(2, 10), ridge=st.floats(1e-3, 10))
def test_the_bound_is_never_exceeded(seed: int, bits: int, ridge: float) -> None:
    rows, labels = embeddings(80, 5, 3, seed=seed)
    exact, plain = Design(5, 3, arithmetic="exact", grid=2.0**-bits), Design(5, 3)
    stats = statistics(rows, labels, exact)
    head = fit(stats, ridge)
    true = fit(statistics(rows, labels, plain), ridge)
    moved = np.linalg.norm(head.params - true.params)
    assert 0 < moved <= grid_bound(stats, head.params, penalty=80 * ridge)


def test_the_change_is_small_at_the_default_step_and_grows_with_it(data: Data) -> None:
    rows, labels = data
    fine = grid_change(rows, labels, Design(12, 4, view="l2", arithmetic="exact"), ridge=1e-3)
    coarse = grid_change(rows, labels, Design(12, 4, view="l2", arithmetic="exact", grid=2**-7), ridge=1e-3)
    assert 0 < fine < 1e-3 < coarse


@given(largest=st.floats(1e-6, 1e6), headroom=st.floats(1, 100))
def test_a_step_holds_its_rows_with_headroom_and_is_the_finest(largest: float, headroom: float) -> None:
    step = step_for(np.array([[0.0, -largest]]), headroom=headroom)
    assert headroom * largest <= step * GRID_REACH * (1 + 1e-12)
    assert headroom * largest > step / 2 * GRID_REACH * (1 - 1e-12)
    Design(2, 2, arithmetic="exact", grid=step)


@pytest.mark.parametrize("rows", [np.zeros((2, 2)), np.array([[np.nan, 1.0]]), np.array([[np.inf, 1.0]])])
def test_rows_without_a_scale_have_no_step(rows: np.ndarray) -> None:
    with pytest.raises(InputError, match="finite rows"):
        step_for(rows)
