"""How often predictions of some confidence are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array


@dataclass(frozen=True)
class ConfidenceBin:
    """Rows predicted with confidences in (low, high]: their mean confidence, and who is right."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def confidence_bins(confidences: Array, hits: NDArray[np.bool_]) -> tuple[ConfidenceBin, ...]:
    """Those of ten bins of equal width that have rows."""
    bins = 10
    number = np.clip(np.ceil(confidences * bins).astype(np.int64) - 1, 0, bins - 1)
    return tuple(
        ConfidenceBin(
            low=int(position) / bins,
            high=(int(position) + 1) / bins,
            rows=int(np.count_nonzero(number == position)),
            confidence=float(confidences[number == position].mean()),
            accuracy=float(hits[number == position].mean()),
        )
        for position in np.unique(number)
    )
