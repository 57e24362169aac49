"""Certain rows against trying every change that the uncertainty allows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probekit.certificates.agreement import needed_leads


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 5))
def test_a_row_is_certain_if_no_allowed_change_lets_another_class_win(seed: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    scores, off = random.normal(size=(20, classes)), random.uniform(0, 0.6, size=(20, classes))
    needed = needed_leads(scores, off)
    for row in range(20):
        top = int(scores[row].argmax())
        worst = scores[row] + off[row]
        worst[top] = scores[row, top] - off[row, top]
        certain = all(scores[row, top] - scores[row, k] > needed[row, k] for k in range(classes) if k != top)
        assert certain == (int(worst.argmax()) == top)
