"""Rows whose class is certain: the best score leads every other by more than the scores can be off."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Array = NDArray[np.float64]


def needed_leads(scores: Float64[np.ndarray, "n k"], uncertainty: Float64[np.ndarray, "n k"]) -> Array:
    """The lead of each row's best score over each other that makes it certain: what both can be off, added.

    A score is off by its uncertainty at most.
    """
    top = np.argmax(scores, axis=1)
    return np.asarray(uncertainty + np.take_along_axis(uncertainty, top[:, None], axis=1))


def closest_rivals(
    scores: Float64[np.ndarray, "n k"], needed: Float64[np.ndarray, "n k"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Of each row, the lead of its best score over the class that comes closest to overtaking, and the lead needed.

    needed: as `needed_leads` gives it, or sharper. A row is certain where lead > needed.
    """
    top = np.argmax(scores, axis=1)[:, None]
    lead = np.take_along_axis(scores, top, axis=1) - scores
    np.put_along_axis(lead, top, np.inf, axis=1)
    rival = np.argmin(lead - needed, axis=1)[:, None]
    return np.take_along_axis(lead, rival, axis=1)[:, 0], np.take_along_axis(needed, rival, axis=1)[:, 0]
