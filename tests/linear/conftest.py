"""Rows that look like embeddings: a large mean, scales over two decades, classes that overlap."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

Data = tuple[NDArray[np.float32], NDArray[np.int64]]


def embeddings(count: int, size: int, classes: int, *, seed: int = 0) -> Data:
    """Rows and labels; every class has at least one row where there are enough."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    scales = np.geomspace(1, 1e-2, size)
    centres = random.standard_normal((classes, size)) * scales
    rows = random.standard_normal((count, size)) * scales + centres[labels] + random.standard_normal(size)
    return rows.astype(np.float32), labels


@pytest.fixture
def data() -> Data:
    """300 rows of 12 numbers in 4 classes."""
    return embeddings(300, 12, 4)
