"""What a bound on the head's distance means for its scores: the rows whose class retraining cannot change.

The class of a row is certain if its score leads every other by more than both scores can be off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.bounds import Factor, Known, gamma
from probekit.certificates.rounds import RoundsBound
from probekit.errors import InputError, MismatchError
from probekit.linear.norms import column_norms
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.values import EmbeddingSet

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExaminedRows:
    """Of some rows: how far each class lies behind the first (itself: infinity), and how far that must be.

    `plain` by the distance of parameters, `curved` by the curvature (None: needs statistics), `better` by the smaller
    of both; `doubt` is the scores' largest uncertainty.
    """

    leads: Array
    plain: Array
    curved: Array | None
    better: Array
    doubt: Array


def examined(
    head: Head, embeddings: EmbeddingSet, *, known: Known, problem: Any = None, rounds: RoundsBound | None = None
) -> Iterator[ExaminedRows]:
    """The rows of a set, some at a time, against what is known of the retained loss at the head.

    `rounds`: what measured products say besides.
    """
    if known.curvature is None:
        raise InputError("Without a sure curvature no score is bounded. Use a ridge above 0, or keep statistics.")
    problem, curvature, loss = problem or problem_of(head), known.curvature.value, known.loss
    factor = None if loss is None else Factor.of(loss, curvature)
    roots = None
    if loss is not None and factor is not None:
        params = problem.params(head)
        roots = np.sqrt(factor.forms(loss.curvature @ params - loss.linear))
        roots += np.array(known.residual.rounding_by_class) / np.sqrt(curvature)
    for block in problem.scored(head, embeddings, centre=None if loss is None else loss.centre):
        every, top = np.arange(len(block.scores)), np.argmax(block.scores, axis=1)
        leads = block.scores[every, top][:, None] - block.scores
        leads[every, top] = np.inf
        if block.rows is None:
            bound = known.residual.bound / curvature
            needs = block.apart * bound
            least = needs if rounds is None else np.minimum(needs, rounds.needed(block))
            yield ExaminedRows(leads, needs, None, least, block.norms.max(axis=1) * bound)
            continue
        norms = column_norms(block.rows.T)
        rounding = gamma(block.rows.shape[1] + 4) * np.outer(norms, column_norms(head.params))
        better = simple = np.outer(norms, known.residual.class_bounds / curvature)
        curved = None
        if factor is not None and roots is not None:
            close = np.outer(np.sqrt(factor.forms(block.rows.T)), roots)
            better, curved = np.minimum(simple, close), needed_leads(block.scores, close + rounding)
        plain, least = (needed_leads(block.scores, one + rounding) for one in (simple, better))
        if rounds is not None:
            least = np.minimum(least, rounds.needed(block) + needed_leads(block.scores, rounding))
        yield ExaminedRows(leads, plain, curved, least, better.max(axis=1))


def needed_leads(scores: Array, uncertainty: Array) -> Array:
    """The lead of each row's best score over each other that makes it certain: what both can be off, added."""
    top = np.argmax(scores, axis=1)
    return np.asarray(uncertainty + np.take_along_axis(uncertainty, top[:, None], axis=1))


@dataclass(frozen=True, eq=False)
class Margins:
    """By how much each row's best score leads the rival that comes closest, and the lead that makes it certain."""

    lead: NDArray[np.float64]
    needed: NDArray[np.float64]

    @property
    def certified(self) -> int:
        """The rows whose class retraining cannot change."""
        return int((self.lead > self.needed).sum())


def margins(
    head: Head, embeddings: EmbeddingSet, *, known: Known, problem: Any = None, rounds: RoundsBound | None = None
) -> Margins:
    """Of each row, the class that comes closest: how far it lies behind, and how far that must be to be certain."""
    parts = [(np.zeros(0), np.zeros(0))]
    for block in examined(head, embeddings, known=known, problem=problem, rounds=rounds):
        place, rival = np.arange(len(block.leads)), np.argmin(block.leads - block.better, axis=1)
        parts.append((block.leads[place, rival], block.better[place, rival]))
    leads, needs = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return Margins(leads, needs)


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


@dataclass(frozen=True)
class RoundsAgreement:
    """The same counted with the products that gradient rounds measured: rows certified by them or by the plain bound.

    `directions` of them were used, each off by at most `error` in the curvature; `products` is the sha256 of all.
    """

    version: int
    set_digest: str
    rows: int
    certified: int
    plain: int
    directions: int
    error: float
    products: str


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
