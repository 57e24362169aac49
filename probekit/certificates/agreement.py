"""What a bound on the head's distance means for its scores: the rows whose class retraining cannot change.

The class of a row is certain if its score leads every other by more than both scores can be off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.certificates.bounds import Known
from probekit.certificates.margins import examined
from probekit.errors import MismatchError
from probekit.models.heads import Head
from probekit.values import EmbeddingSet


@dataclass(frozen=True)
class Agreement:
    """On how many rows of a set retraining provably gives the same class, by each form of the bound.

    `plain` uses |x| |g_k| / curvature, `curved` sqrt(x H^-1 x) sqrt(g_k H^-1 g_k) (None: needs statistics);
    `certified` the better of the two on each row. `largest_bound` and `median_bound` are of scores.
    """

    set_digest: str
    rows: int
    certified: int
    plain: int
    curved: int | None
    median_bound: float
    largest_bound: float

    @property
    def rate(self) -> float:
        """The certified share of the rows."""
        return self.certified / self.rows if self.rows else 0.0


def agreement(head: Head, embeddings: EmbeddingSet, *, known: Known, problem: Any = None) -> Agreement:
    """The rows of a set whose class is certain to be the retrained head's."""
    if head.spec_digest and embeddings.spec.untriggered().digest != head.spec_digest:
        raise MismatchError("The head belongs to another encoding than these embeddings. Use the run's own.")
    certified = plain = curved = 0
    bends, sizes = False, [np.zeros(0)]
    for block in examined(head, embeddings, known=known, problem=problem):
        certified += int((block.leads > block.better).all(axis=1).sum())
        plain += int((block.leads > block.plain).all(axis=1).sum())
        if block.curved is not None:
            bends, curved = True, curved + int((block.leads > block.curved).all(axis=1).sum())
        sizes.append(block.doubt)
    every = np.concatenate(sizes)
    middle, largest = (float(np.median(every)), float(every.max())) if len(every) else (0.0, 0.0)
    return Agreement(embeddings.digest, len(embeddings), certified, plain, curved if bends else None, middle, largest)
