"""How many threads a problem is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from probekit.linear.lapack import linalg

SMALL_COLUMNS = 1536
"""Up to so many columns one thread solves as fast as several, which on a shared machine wait for one another."""


@contextmanager
def threads_for(columns: int) -> Iterator[None]:
    """One BLAS thread meanwhile, where a problem of so many columns is small."""
    if columns > SMALL_COLUMNS:
        yield
        return
    with libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def libraries() -> ThreadpoolController:
    """Looked up once, with SciPy's BLAS loaded: that takes longer than the statistics of a small client."""
    linalg.cholesky(np.eye(1))
    return ThreadpoolController()
