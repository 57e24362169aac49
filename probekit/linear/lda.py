"""Linear discriminant analysis and the nearest mean, from sums of rows.

score_c(x) = m_c^T S^-1 x - 1/2 m_c^T S^-1 m_c + log(n_c / n)
S = (1 - s) W / n + s tr(W / n) / d I

W is the scatter of the rows around the means m_c of their classes, s the shrinkage: the scores are
those of scikit-learn's LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s), less a number that
all classes of a row share. The nearest mean has S = I and no priors. n_c and n are weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probekit.arrays import Array, Indices, group_numbers, id_keys
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.linear.calibration import log_losses
from probekit.linear.folds import number_groups
from probekit.linear.ridge import ALIKE, EPSILON
from probekit.linear.stats import SufficientStats, sums_of_others, with_ones

RATIOS = np.geomspace(1e-5, 1e3, 17)
SHRINKAGES = np.append(RATIOS / (1 + RATIOS), 1.0)
FOLDS = 5
SAMPLE_ROWS = 10_000
SAMPLE_STREAM = 33
BLOCK_ELEMENTS = 1 << 21
SPARE = 1e-12
"""A row without which less than this share of the scatter in its direction stays is not left out:
rounding would decide."""
ABSENT = 40.0
"""How far the score of a class without rows stays below the best other one, at least."""


def check_shrinkage(shrinkage: float | str) -> float:
    """A shrinkage as a float, if it lies between 0 and 1."""
    if isinstance(shrinkage, bool | str) or not 0 <= shrinkage <= 1:
        raise InputError(
            f"shrinkage (--shrinkage) must lie between 0 and 1, or be 'auto'; found {shrinkage!r}."
        )
    return float(shrinkage)


@dataclass(frozen=True, eq=False)
class LdaChoice:
    """A shrinkage and how it was chosen: "manual", "leave-one-out", "leave-groups-out".

    "nearest mean": no class has two different rows, so there is no scatter and nothing to choose.
    shrinkages, accuracies: what it was chosen from; both empty where nothing was chosen.
    """

    value: float
    method: str
    shrinkages: Array
    accuracies: Array


@dataclass(frozen=True, eq=False)
class LdaPath:
    """All shrinkages from one eigendecomposition of the scatter, V diag(values) V^T.

    weights: of the classes, (k,); 0 where a class has no rows.
    center: the mean of all rows; means: of the classes, less the center, times V, (k, r).
    values: (r,); vectors: V, (d, r), whose span holds all training rows less the center.
    """

    weights: Array
    center: Array
    means: Array
    values: Array
    vectors: Array

    @classmethod
    def from_rows(cls, embeddings: EmbeddingSet) -> LdaPath:
        _labels(embeddings)
        return cls.of(SufficientStats.from_rows(embeddings))

    @classmethod
    def of(cls, stats: SufficientStats) -> LdaPath:
        """Of statistics of classes. Few rows (a root) cost an SVD of the root."""
        if stats.root is None:
            weights = stats.moment[-1].copy()
            center = stats.gram[-1, :-1] / stats.weight
            means = (stats.moment[:-1].T - np.outer(weights, center)) * _inverse(weights)[:, None]
            scatter = stats.gram[:-1, :-1] - stats.weight * np.outer(center, center)
            scatter -= (means.T * weights) @ means
            values, vectors = np.linalg.eigh(scatter)
            return cls(weights, center, means @ vectors, np.maximum(values, 0.0), vectors)
        ones = stats.root[:, stats.columns - 1]
        membership = stats.root[:, stats.columns :]
        weights = ones @ membership
        center = ones @ stats.root[:, : stats.columns - 1] / stats.weight
        rows = stats.root[:, : stats.columns - 1] - np.outer(ones, center)
        means = membership.T @ rows * _inverse(weights)[:, None]
        span = np.linalg.svd(rows, full_matrices=False)[2]
        _, singular, rotation = np.linalg.svd((rows - membership @ means) @ span.T)
        vectors = (rotation @ span).T
        return cls(weights, center, means @ vectors, np.square(singular), vectors)

    @property
    def width(self) -> int:
        return len(self.center)

    @property
    def trace(self) -> float:
        return float(self.values.sum())

    @property
    def rounding(self) -> float:
        """What of a trace may be rounding: it is a difference of sums of squares."""
        spread = float(self.weights @ np.square(self.means).sum(axis=1))
        total = float(self.weights.sum()) * float(self.center @ self.center)
        return ALIKE * (spread + total + self.trace)

    @property
    def has_scatter(self) -> bool:
        """Whether rows differ from the means of their classes."""
        return self.trace > self.rounding

    def params(self, shrinkage: float | None) -> Array:
        """Weights above the intercept, (d + 1, k); None, or no scatter: of the nearest mean."""
        if shrinkage == 0:
            self._check_rank()
        if shrinkage is None or not self.has_scatter:
            no_priors = np.where(self.weights > 0, 0.0, -np.inf)
            return self._params(np.ones_like(self.values), no_priors)
        check_shrinkage(shrinkage)
        shifted = (1 - shrinkage) * self.values + shrinkage * self.trace / self.width
        total = float(self.weights.sum())
        with np.errstate(divide="ignore"):
            return self._params(shifted / total, np.log(self.weights / total))

    def _params(self, variances: Array, priors: Array) -> Array:
        solved = self.means / variances
        intercept = priors - np.einsum("kr,kr->k", self.means, solved) / 2
        # the mean of m_c^T S^-1 (x - center) over the rows' classes is 0, so one is not negative
        present = self.weights > 0
        intercept[~present] = intercept[present].min() - ABSENT
        weights = self.vectors @ solved.T
        return np.vstack([weights, intercept - self.center @ weights])

    def _check_rank(self) -> None:
        floor = self.width * EPSILON * self.values.max(initial=0.0)
        rank = int(np.count_nonzero(self.values > floor))
        if rank < self.width or not self.has_scatter:
            raise InputError(
                f"Without shrinkage the rows must vary in all {self.width} dimensions around the "
                f"means of their classes; found rank {rank}. Pass a shrinkage above 0 "
                "(--shrinkage 0.01)."
            )


def _inverse(weights: Array) -> Array:
    """1 / weight, and 0 for classes without rows."""
    return np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """The scores (m, k) of some rows, each in the head of all others, at one of the shrinkages.

    position: of the shrinkage; rows: their numbers; weights: theirs and of their copies.
    """

    position: int
    rows: Indices
    weights: Array
    scores: Array


def search_shrinkage(
    path: LdaPath,
    embeddings: EmbeddingSet,
    shrinkage: float | str = "auto",
    *,
    groups: ArrayLike | None = None,
) -> LdaChoice:
    """A shrinkage for these embeddings: a number, or "auto", the most accurate on left-out rows.

    Of equally accurate ones that of least log loss. groups: as in `left_out`.
    """
    nothing = np.zeros(0)
    if shrinkage != "auto":
        return LdaChoice(check_shrinkage(shrinkage), "manual", nothing, nothing)
    hits = np.zeros(len(SHRINKAGES))
    losses = np.zeros(len(SHRINKAGES))
    totals = np.zeros(len(SHRINKAGES))
    for part in left_out(path, embeddings, SHRINKAGES.tolist(), groups=groups):
        labels = _labels(embeddings)[part.rows]
        hits[part.position] += part.weights @ (part.scores.argmax(axis=1) == labels)
        losses[part.position] += part.weights @ log_losses(part.scores, labels)
        totals[part.position] += part.weights.sum()
    if not totals.all() or not path.has_scatter:
        return LdaChoice(1.0, "nearest mean", nothing, nothing)
    accuracies = hits / totals
    best = int(np.lexsort((losses / totals, -accuracies))[0])
    method = "leave-one-out" if groups is None else "leave-groups-out"
    return LdaChoice(float(SHRINKAGES[best]), method, SHRINKAGES, accuracies)


def left_out(
    path: LdaPath,
    embeddings: EmbeddingSet,
    shrinkages: Sequence[float | None],
    *,
    groups: ArrayLike | None = None,
) -> Iterator[LeftOut]:
    """Rows left out in turn at each shrinkage; None: with the nearest mean.

    groups: rows of one group are left out together, in five folds. By default copies (equal ids of
    one class) are, in closed form; those that are all of their class, or all of the scatter in a
    direction, are not. Of many rows SAMPLE_ROWS are left out.
    """
    if groups is None:
        yield from _left_out_rows(path, embeddings, shrinkages)
    else:
        yield from _left_out_folds(embeddings, shrinkages, groups)


def _left_out_rows(
    path: LdaPath, embeddings: EmbeddingSet, shrinkages: Sequence[float | None]
) -> Iterator[LeftOut]:
    labels = _labels(embeddings)
    copies = np.stack([group_numbers(id_keys(embeddings.ids)), labels], axis=1)
    _, first, number = np.unique(copies, axis=0, return_index=True, return_inverse=True)
    weights = np.bincount(number.ravel(), weights=embeddings.row_weights).astype(np.float64)
    sample = _sample(len(first))
    length = max(1, BLOCK_ELEMENTS // (path.width + len(path.weights)))
    for block in np.array_split(sample, 1 + len(sample) // length):
        rows = first[block]
        rotated = (np.asarray(embeddings.rows[rows], np.float64) - path.center) @ path.vectors
        members = _Members.of(path, rows, rotated, labels[rows], weights[block])
        if len(members.numbers):
            for position, shrinkage in enumerate(shrinkages):
                scores = members.scores(path, shrinkage)
                finite = np.isfinite(scores[:, 0])
                yield LeftOut(
                    position, members.numbers[finite], members.weights[finite], scores[finite]
                )


@dataclass(frozen=True, eq=False)
class _Members:
    """Rows to be left out one by one, and what is then left of the weights and scatter.

    numbers: of the rows in their set; rows: less the center, times V.
    offsets: u, from the means of their classes; gains: n_c v / (n_c - v), v a row's weight, as the
    scatter without a row is W - gain u u^T; traces: of that scatter.
    """

    numbers: Indices
    rows: Array
    labels: Indices
    weights: Array
    offsets: Array
    gains: Array
    traces: Array

    @classmethod
    def of(
        cls, path: LdaPath, numbers: Indices, rows: Array, labels: Indices, weights: Array
    ) -> _Members:
        """Those of the rows that can be left out."""
        class_weights = path.weights[labels]
        others = class_weights - weights
        has_others = others > ALIKE * class_weights
        gains = class_weights * weights / np.where(has_others, others, 1.0)
        offsets = rows - path.means[labels]
        traces = path.trace - gains * np.square(offsets).sum(axis=1)
        usable = has_others & (traces > path.rounding)
        arrays = (numbers, rows, labels, weights, offsets, gains, traces)
        return cls(*(array[usable] for array in arrays))

    def scores(self, path: LdaPath, shrinkage: float | None) -> Array:
        """(m, k), each row's by all others; NaN where rounding would decide.

        With A = (1 - s) W + s trace' / d I, which differs by row, q_e = (x - m_e)^T A^-1 u, q = q_c
        and g = (1 - s) gain, the distance by A - g u u^T to the mean of another class is
        |x - m_e|^2_A + g q_e^2 / (1 - g q), to the mean of the row's own class, which moves,
        (gain / v)^2 q / (1 - g q). S is A - g u u^T divided by n - v.
        """
        weight = float(path.weights.sum()) - self.weights
        shifted = np.ones((1, len(path.values)))
        gains = np.zeros_like(self.gains)
        if shrinkage is not None:
            shifts = shrinkage * self.traces / path.width
            shifted = (1 - shrinkage) * path.values + shifts[:, None]
            gains = (1 - shrinkage) * self.gains
        solved = self.offsets / shifted
        products = np.einsum("mr,mr->m", solved, self.rows)[:, None] - solved @ path.means.T
        weighted = self.rows / shifted
        distances = np.einsum("mr,mr->m", weighted, self.rows)[:, None]
        distances = distances - 2 * weighted @ path.means.T
        distances += (1 / shifted) @ np.square(path.means).T
        index = np.arange(len(self.labels))
        own = np.einsum("mr,mr->m", solved, self.offsets)
        spare = 1 - gains * own
        spare[spare < SPARE] = np.nan
        distances += (gains / spare)[:, None] * np.square(products)
        distances[index, self.labels] = np.square(self.gains / self.weights) * own / spare
        class_weights = np.repeat(path.weights[None], len(self.labels), axis=0)
        class_weights[index, self.labels] -= self.weights
        scores = -distances / 2
        if shrinkage is not None:
            with np.errstate(divide="ignore"):
                scores = scores * weight[:, None] + np.log(class_weights / weight[:, None])
        present = path.weights > 0
        scores[:, ~present] = scores[:, present].min(axis=1, keepdims=True) - ABSENT
        return np.asarray(scores)


def _left_out_folds(
    embeddings: EmbeddingSet, shrinkages: Sequence[float | None], groups: ArrayLike
) -> Iterator[LeftOut]:
    """Whole groups in five folds, the heads from the sums of the other folds."""
    number = number_groups(groups, len(embeddings))
    generator = np.random.default_rng(SAMPLE_STREAM)
    fold = (generator.permutation(int(number.max()) + 1) % FOLDS)[number]
    is_drawn = np.zeros(len(embeddings), bool)
    is_drawn[_sample(len(embeddings))] = True
    members = [np.flatnonzero(fold == position) for position in np.unique(fold)]
    stats = [SufficientStats.from_rows(embeddings.take(rows)) for rows in members]
    for rows, others in zip(members, sums_of_others(stats), strict=True):
        path = LdaPath.of(others)
        drawn = rows[is_drawn[rows]]
        matrix = with_ones(np.asarray(embeddings.rows[drawn]))
        for position, shrinkage in enumerate(shrinkages):
            scores = matrix @ path.params(shrinkage)
            yield LeftOut(position, drawn, embeddings.row_weights[drawn], scores)


def _sample(count: int) -> Indices:
    """The numbers of all rows, or of some drawn at random, in order."""
    if count <= SAMPLE_ROWS:
        return np.arange(count)
    generator = np.random.default_rng(SAMPLE_STREAM)
    return np.sort(generator.choice(count, SAMPLE_ROWS, replace=False))


def _labels(embeddings: EmbeddingSet) -> Indices:
    if embeddings.labels is None:
        raise InputError(
            f"LDA and the nearest mean are of classes; {embeddings.source} has targets. Use the "
            "ridge head (--head ridge)."
        )
    return embeddings.labels
