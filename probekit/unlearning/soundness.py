"""Statistics that no rows could have, refused: nobody has others' rows removed by lying about their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from probekit.errors import CorruptError, MismatchError
from probekit.linear.design import ClientStats, Design

ROOM = 1e3 * float(np.finfo(np.float64).eps)


def refuse_unsound(
    statistics: ClientStats, name: str, *, design: Design | None = None, digest: str = ""
) -> ClientStats:
    """The same statistics, if some rows could have them and (where given) design and hash are right."""
    if design is not None and statistics.design != design:
        raise MismatchError(
            f"Client {name}'s statistics are of another design: {statistics.design}, this run has {design}. "
            "Compute them with the run's options."
        )
    if digest and statistics.digest != digest:
        raise CorruptError(
            f"Client {name}'s statistics are not those it sent: sha256 {statistics.digest[:16]} instead of "
            f"{digest[:16]}. Ask the client again."
        )
    fault = _fault(statistics)
    if fault:
        raise CorruptError(f"Client {name}'s statistics {fault}: no rows have them. Ask the client again.")
    return statistics


def _positive(gram: NDArray[np.float64]) -> bool:
    """Whether no eigenvalue is below 0 by more than rounding; a factorisation is ten times as fast as they are."""
    diagonal = np.einsum("ii->i", gram)
    if (diagonal < 0).any():
        return False
    room = ROOM * max(float(diagonal.sum()), np.finfo(np.float64).tiny)
    try:
        linalg.cholesky(gram + room * np.eye(len(gram)), lower=True)
    except linalg.LinAlgError:
        return False
    return True


def _fault(statistics: ClientStats) -> str:
    """What is wrong with them, or nothing."""
    gram, moment, counts = statistics.gram, statistics.moment, statistics.class_counts
    if not (np.isfinite(gram).all() and np.isfinite(moment).all()):
        return "are not finite"
    if not np.array_equal(gram, np.swapaxes(gram, -1, -2)):
        return "are not symmetric"
    if (counts < 0).any():
        return "count fewer than no rows"
    total = statistics.total_gram
    if not _positive(total):
        return "are not positive"
    # |x_j . y_k|^2 <= |x_j|^2 |y_k|^2, and a one-hot column's square is its count
    allowed = np.outer(np.einsum("ii->i", total), counts.astype(np.float64))
    if (np.square(moment) > allowed * (1 + ROOM * statistics.count) + ROOM).any():
        return "have a moment larger than their Gram and counts allow"
    if statistics.design.intercept != "none" and not (
        total[-1, -1] == statistics.count and np.array_equal(moment[-1], counts.astype(np.float64))
    ):
        return "disagree about how many rows there are"
    return ""
