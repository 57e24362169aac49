"""Certain rows against trying every change that the uncertainty allows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probekit.linear.margins import closest_rivals, needed_leads


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 5))
def test_a_row_is_certain_if_no_allowed_change_lets_another_class_win(seed: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    scores, off = random.normal(size=(20, classes)), random.uniform(0, 0.6, size=(20, classes))
    lead, needed = closest_rivals(scores, needed_leads(scores, off))
    for row in range(20):
        top = int(scores[row].argmax())
        worst = scores[row] + off[row]
        worst[top] = scores[row, top] - off[row, top]
        assert (lead[row] > needed[row]) == (int(worst.argmax()) == top)
        gaps = [(scores[row, top] - scores[row, k], off[row, top] + off[row, k]) for k in range(classes) if k != top]
        assert np.allclose(min(gaps, key=lambda gap: gap[0] - gap[1]), (lead[row], needed[row]))


def test_one_class_alone_is_certain() -> None:
    scores = np.ones((3, 1))
    lead, needed = closest_rivals(scores, needed_leads(scores, scores))
    assert (lead > needed).all()
