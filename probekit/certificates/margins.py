"""Each row's lead against what both scores can be off: which rows keep their class for certain.

The same comparison as `probekit.certificates.agreement.agreement` counts, told row by row so that it can be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.bounds import Factor, gamma
from probekit.certificates.certify import Known
from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.linear.statistics import row_blocks
from probekit.models.heads import Head, NetworkHead
from probekit.values import EmbeddingSet

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Margins:
    """By how much each row's best score leads the rival that comes closest, and the lead that makes it certain."""

    lead: NDArray[np.float64]
    needed: NDArray[np.float64]

    @property
    def certified(self) -> int:
        """The rows whose class retraining cannot change."""
        return int((self.lead > self.needed).sum())


def margins(head: Head, embeddings: EmbeddingSet, *, design: Design, known: Known) -> Margins:
    """Of each row, the class that comes closest: how far it lies behind, and how far that must be to be certain."""
    if known.curvature is None:
        raise InputError("Without a sure curvature no score is bounded. Use a ridge above 0, or keep statistics.")
    if isinstance(head, NetworkHead):
        from probekit.unlearning.network import closest

        return Margins(*closest(head, embeddings, bound=known.residual.bound / known.curvature.value))
    params, curvature, loss = head.params[: design.columns], known.curvature.value, known.loss
    factor = None if loss is None else Factor.of(loss, curvature)
    by_class = known.residual.class_bounds
    seen = Design(design.dimension, design.classes, view=head.view, intercept=design.intercept)
    parts: list[tuple[Array, Array]] = []
    for _, block in row_blocks(embeddings.embeddings, seen):
        rows = block.astype(np.float64) if loss is None or loss.centre is None else block - loss.centre
        if design.intercept != "none":
            rows = np.hstack([rows, np.ones((len(rows), 1))])
        norms = np.linalg.norm(rows, axis=1)
        off = np.outer(norms, by_class / curvature)
        if factor is not None and loss is not None:
            roots = np.sqrt(factor.forms(loss.curvature @ params - loss.linear))
            roots += np.array(known.residual.rounding_by_class) / np.sqrt(curvature)
            off = np.minimum(off, np.outer(np.sqrt(factor.forms(rows.T)), roots))
        off += gamma(design.columns + 4) * np.outer(norms, np.linalg.norm(head.params, axis=0))
        parts.append(_closest(rows @ params, off))
    leads, needs = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return Margins(leads, needs)


def _closest(scores: Array, off: Array) -> tuple[Array, Array]:
    """The lead over the class that comes closest to overtaking, and the lead that rules it out."""
    every = np.arange(len(scores))
    top = np.argmax(scores, axis=1)
    lead = scores[every, top][:, None] - scores
    need = off + off[every, top][:, None]
    slack = lead - need
    slack[every, top] = np.inf
    rival = np.argmin(slack, axis=1)
    return lead[every, rival], need[every, rival]
