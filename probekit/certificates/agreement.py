"""What a bound on the head's distance means for its scores: the rows whose class retraining cannot change.

The class of a row is certain if its score leads every other by more than both scores can be off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.bounds import Factor, Quadratic, Residual, gamma
from probekit.errors import MismatchError
from probekit.linear.design import Design
from probekit.linear.statistics import row_blocks
from probekit.models.heads import Head, NetworkHead
from probekit.values import EmbeddingSet

Array = NDArray[np.float64]


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


def agreement(
    head: Head,
    embeddings: EmbeddingSet,
    *,
    design: Design,
    gradient: Residual,
    curvature: float,
    loss: Quadratic | None = None,
) -> Agreement:
    """The rows of a set whose class is certain to be the retrained head's."""
    if head.spec_digest and embeddings.spec.untriggered().digest != head.spec_digest:
        raise MismatchError("The head belongs to another encoding than these embeddings. Use the run's own.")
    if isinstance(head, NetworkHead):
        return _network_agreement(head, embeddings, gradient.bound / curvature)
    reach = _Reach.of(loss, gradient, curvature, head.params[: design.columns])
    seen = Design(design.dimension, design.classes, view=head.view, intercept=design.intercept)
    plain = curved = certified = 0
    sizes: list[Array] = []
    for _, block in row_blocks(embeddings.embeddings, seen):
        rows = block.astype(np.float64) if loss is None or loss.centre is None else block - loss.centre
        if design.intercept != "none":
            rows = np.hstack([rows, np.ones((len(rows), 1))])
        scores = rows @ head.params[: design.columns]
        simple = np.outer(np.linalg.norm(rows, axis=1), gradient.class_bounds / curvature)
        doubt = gamma(design.columns + 4) * np.outer(np.linalg.norm(rows, axis=1), np.linalg.norm(head.params, axis=0))
        better = simple
        sure = _certain(scores, simple + doubt)
        plain += int(sure.sum())
        if reach is not None:
            close = reach.bounds(rows)
            curved += int(_certain(scores, close + doubt).sum())
            better = np.minimum(simple, close)
            sure = _certain(scores, better + doubt)
        certified += int(sure.sum())
        sizes.append(better.max(axis=1))
    every = np.concatenate(sizes) if sizes else np.zeros(1)
    return Agreement(
        embeddings.digest,
        len(embeddings),
        certified,
        plain,
        curved if reach is not None else None,
        float(np.median(every)),
        float(every.max(initial=0.0)),
    )


def _network_agreement(head: NetworkHead, embeddings: EmbeddingSet, bound: float) -> Agreement:
    from probekit.unlearning.network import certain

    sure, sizes = certain(head, embeddings, bound=bound)
    count, every = int(sure.sum()), sizes if len(sizes) else np.zeros(1)
    middle, largest = float(np.median(every)), float(every.max())
    return Agreement(embeddings.digest, len(embeddings), count, count, None, middle, largest)


@dataclass(frozen=True, eq=False)
class _Reach:
    """sqrt(x H^-1 x) sqrt(g_k H^-1 g_k) for rows x."""

    factor: Factor
    classes: Array

    @classmethod
    def of(cls, loss: Quadratic | None, gradient: Residual, curvature: float, params: Array) -> _Reach | None:
        factor = None if loss is None else Factor.of(loss, curvature)
        if loss is None or factor is None:
            return None
        roots = np.sqrt(factor.forms(loss.curvature @ params - loss.linear))
        return cls(factor, roots + np.array(gradient.rounding_by_class) / np.sqrt(curvature))

    def bounds(self, rows: Array) -> Array:
        """How far each score of each row can be off."""
        return np.outer(np.sqrt(self.factor.forms(rows.T)), self.classes)


def _certain(scores: Array, off: Array) -> NDArray[np.bool_]:
    """Rows whose best score leads each other by more than both can be off."""
    every = np.arange(len(scores))
    top = np.argmax(scores, axis=1)
    lead = scores[every, top][:, None] - scores - off - off[every, top][:, None]
    lead[every, top] = np.inf
    return np.asarray(lead.min(axis=1) > 0)
