"""Reconstruction of the deleted from the heads before and after (Bertran et al., 2024).

With A' the retained curvature Z^T Z + penalty' I, both heads being minima of their ridge losses:
A' (W' - W) = sum over deleted rows of z (z^T W - y) + (penalty - penalty') W. Of one row that is an outer product: its
left factor is the row, and the column of ones tells its length and sign. Of many rows it is a sum of as many, of which
no more than the classes can be told apart. Who has no retained curvature takes that of public rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.evaluation.metrics import USUAL, Interval, Share, share
from probekit.values.plain import Result

SURE = 0.9
"""The centred cosine from which a row of many counts as found: rows of one class are alike, but not so alike."""
NOISE_STREAM = 63

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeadPair:
    """What an attacker has: the parameters before and after (columns, k), and the penalties of both losses.

    Penalties are what is added to a Gram's diagonal: a number, or one for each column, (columns, 1). `intercept`:
    whether the last column is one of ones, which tells length and sign. A linear term that both losses share cancels.
    """

    before: Array
    after: Array
    penalty_before: Array | float
    penalty_after: Array | float
    intercept: bool = True

    def __post_init__(self) -> None:
        if self.before.shape != self.after.shape:
            raise MismatchError(
                f"Both heads must have one shape; found {self.before.shape} and {self.after.shape}. Compare states of "
                "one run."
            )

    def noisy(self, scale: float, seed: int = 0) -> HeadPair:
        """The same with normal noise on every number of both heads."""
        generator = np.random.Generator(np.random.PCG64([seed, NOISE_STREAM]))
        before, after = (one + scale * generator.standard_normal(one.shape) for one in (self.before, self.after))
        return HeadPair(before, after, self.penalty_before, self.penalty_after, self.intercept)

    def rebuilt(self, gram: Array, *, rows: int = 1) -> Array:
        """The embeddings that the difference of the heads tells of, (at most rows, d), strongest first.

        gram: Z^T Z of the retained rows, or of public ones times (retained rows / public rows).
        """
        if gram.shape != (len(self.after),) * 2:
            raise MismatchError(f"The curvature must be square over {len(self.after)} columns; found {gram.shape}.")
        moved = gram @ (self.after - self.before) + self.penalty_after * self.after - self.penalty_before * self.before
        found = np.linalg.svd(moved, full_matrices=False)[0][:, : max(1, rows)].T
        if not self.intercept:
            return np.asarray(found)
        ones = found[:, -1:]
        return np.asarray(found[:, :-1] / np.where(np.abs(ones) > 0, ones, 1.0))


@dataclass(frozen=True)
class Reconstruction(Result):
    """How near what was rebuilt comes to what was deleted.

    `cosine`: of the best pair; `centred`: the same with the mean of the candidates taken off, which says more: a mean
    embedding alone is near to every row. `nearest`: whether the nearest candidate of the strongest reconstruction is a
    deleted row. `found`: deleted rows that are nearest to one and, where several were deleted, at least at `SURE`.
    """

    deleted: int
    rebuilt: int
    candidates: int
    cosine: float
    centred: float
    nearest: bool
    found: int


@dataclass(frozen=True)
class ReconstructionRate(Result):
    """Reconstructions of many requests together: the mean cosines, and the share of requests that were identified."""

    requests: int
    cosine: float
    centred: float
    identified: Share


@dataclass(frozen=True)
class RebuiltOutcome(Result):
    """A reconstruction with one curvature ("retained" or "public") and so much noise on both heads."""

    curvature: str
    noise: float
    found: Reconstruction


@dataclass(frozen=True)
class RebuiltRequest(Result):
    """What the heads before and after one request of a run tell of the rows that it took out."""

    state: int
    removed: str
    outcomes: tuple[RebuiltOutcome, ...]


def compared_with(rebuilt: Array, candidates: Array, deleted: Indices, *, signed: bool = True) -> Reconstruction:
    """What was rebuilt beside what was deleted: `deleted` are row numbers of the candidates.

    signed: whether the reconstruction knows its sign (without an intercept it does not).
    """
    if not len(deleted) or len(candidates) < 2 or rebuilt.shape[1] != candidates.shape[1]:
        raise InputError(
            "A reconstruction is compared with deleted rows among two or more candidates of its own length; found "
            f"{len(deleted)} deleted, {candidates.shape} and {rebuilt.shape}."
        )
    mean = candidates.mean(axis=0)
    plain = _cosines(rebuilt, candidates)
    if not signed:
        flip = np.sign(plain[np.arange(len(rebuilt)), np.abs(plain).argmax(axis=1)])[:, None]
        lengths = np.linalg.norm(candidates, axis=1).mean() / np.linalg.norm(rebuilt, axis=1, keepdims=True)
        rebuilt, plain = rebuilt * flip * lengths, plain * flip
    centred = _cosines(rebuilt - mean, candidates - mean)
    best = centred.argmax(axis=1)
    hit = np.isin(best, deleted)
    sure = hit & ((centred.max(axis=1) >= SURE) | (len(deleted) == 1))
    return Reconstruction(
        len(deleted),
        len(rebuilt),
        len(candidates),
        float(plain[:, deleted].max()),
        float(centred[:, deleted].max()),
        bool(hit[0]),
        len(np.unique(best[sure])),
    )


def rate_of(found: list[Reconstruction], *, interval: Interval = USUAL) -> ReconstructionRate:
    """Many requests together; one is identified if its strongest reconstruction is nearest to a deleted row."""
    if not found:
        raise InputError("A rate is over reconstructions; found none.")
    hits = np.array([one.found > 0 for one in found])
    cosine, centred = (float(np.mean([getattr(one, name) for one in found])) for name in ("cosine", "centred"))
    return ReconstructionRate(len(found), cosine, centred, share(hits, name="identified", interval=interval))


def _cosines(one: Array, two: Array) -> Array:
    first, second = (np.maximum(np.linalg.norm(rows, axis=1), 1e-300) for rows in (one, two))
    return np.asarray((one / first[:, None]) @ (two / second[:, None]).T)
