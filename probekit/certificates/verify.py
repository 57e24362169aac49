"""What is true of a head, from rows and by other arithmetic than the certificate's.

Blocks of few rows and columns are multiplied, and added with their rounding errors (Knuth's
two-sum), so that no bound grows with the rows. The least curvature comes from eigenvectors whose
defects are measured: if |H - V diag(s) V^T| <= r and |V^T V - 1| <= e, no eigenvalue of H is below
s_1 (1 - e) - r. Everything is enclosed from both sides: a claim is true above the upper end, false
below the lower end, and else not shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from probekit.arrays import Array
from probekit.certificates.bounds import gamma, summing_error
from probekit.embeddings import EmbeddingSet
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv, ridge_grid
from probekit.linear.solvers import conjugate_gradient
from probekit.linear.stats import SufficientStats, with_ones
from probekit.objective import Squares

ROWS = 32
COLUMNS = 16
"""What gradients are multiplied in: their bounds must be sharp."""
GRAM_ROWS = 256
ROUND_UP = 1 + 2.0**-20
ROUND_DOWN = 1 - 2.0**-20
TINY = 2.0**-1022
PRODUCTS = 30
NEAR = 1e-7
SOLVED = 1e-4
TIES = 1e-6
"""GCV errors that differ by this share, or by FLAT of the targets' squares, are equal."""
FLAT = 1e-12
EPSILON = float(np.finfo(np.float64).eps)


class DoubledSum:
    """A sum of arrays with about twice the digits of its terms."""

    def __init__(self, *shape: int) -> None:
        self._value = np.zeros(shape)
        self._error = np.zeros(shape)

    def add(self, term: Array) -> None:
        value = self._value + term
        moved = value - self._value
        self._error += (self._value - (value - moved)) + (term - moved)
        self._value = value

    @property
    def total(self) -> Array:
        return np.asarray(self._value + self._error)


@dataclass(frozen=True)
class Interval:
    """A number is at least `least` and at most `most`."""

    least: float = 0.0
    most: float = math.inf

    def allows(self, claim: float) -> bool | None:
        """Whether the number is at most `claim`; None where that is not shown."""
        if self.most <= claim:
            return True
        return False if self.least > claim else None

    def reaches(self, claim: float) -> bool | None:
        """Whether the number is at least `claim`."""
        if self.least >= claim:
            return True
        return False if self.most < claim else None


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums over rows z = [x 1] with targets y: z z^T, z y^T, y^2; and z r^T, r = f'(W^T z, y).

    slope_square: at least the sum of |r|^2. longest: at least the norm of any z.
    """

    count: int
    gram: Array
    moment: Array
    target_squares: Array
    gradient: Array
    slope_square: float
    longest: float

    @classmethod
    def of(cls, rows: EmbeddingSet, params: Array, model: LinearModel) -> Self:
        p, k = model.shape
        sums = [DoubledSum(*shape) for shape in ((p, p), (p, k), (k,), (p, k))]
        slope_square = 0.0
        longest = 0.0
        for Z, Y in blocks(rows):
            terms = (Z.T @ Z, Z.T @ Y, np.square(Y).sum(axis=0))
            for total, term in zip(sums, terms, strict=False):
                total.add(term)
            longest = max(longest, float(np.square(Z).sum(axis=1).max()))
            slope = scores(Z, params)
            if not isinstance(model.loss, Squares):
                slope = shares(slope)
            slope = slope - Y
            slope_square += ROUND_UP * float(np.square(slope).sum())
            for start in range(0, len(Z), ROWS):
                part = slice(start, start + ROWS)
                sums[3].add(Z[part].T @ slope[part])
        gram, moment, target_squares, gradient = (total.total for total in sums)
        length = ROUND_UP * math.sqrt(longest)
        return cls(len(rows), gram, moment, target_squares, gradient, slope_square, length)


class Totals:
    """The sums of all clients."""

    def __init__(self, model: LinearModel) -> None:
        p, k = model.shape
        self._sums = [DoubledSum(*shape) for shape in ((p, p), (p, k), (k,), (p, k))]
        self._count = 0
        self._slope_square = 0.0
        self._longest = 0.0

    def add(self, part: RowSums) -> None:
        terms = (part.gram, part.moment, part.target_squares, part.gradient)
        for total, term in zip(self._sums, terms, strict=True):
            total.add(term)
        self._count += part.count
        self._slope_square += ROUND_UP * part.slope_square
        self._longest = max(self._longest, part.longest)

    @property
    def sums(self) -> RowSums:
        gram, moment, target_squares, gradient = (part.total for part in self._sums)
        return RowSums(
            self._count, gram, moment, target_squares, gradient, self._slope_square, self._longest
        )


def blocks(rows: EmbeddingSet) -> Iterator[tuple[Array, Array]]:
    """Some rows [x 1] at a time, with their targets."""
    for block in rows.blocks():
        Z = with_ones(np.asarray(block.rows))
        Y = block.target_matrix
        for start in range(0, len(Z), GRAM_ROWS):
            yield Z[start : start + GRAM_ROWS], Y[start : start + GRAM_ROWS]


def scores(Z: Array, params: Array) -> Array:
    """Z W, off by at most gamma(COLUMNS + 2) |z| |w|."""
    total = DoubledSum(len(Z), params.shape[1])
    for start in range(0, len(params), COLUMNS):
        total.add(Z[:, start : start + COLUMNS] @ params[start : start + COLUMNS])
    return total.total


def shares(scores: Array) -> Array:
    """The softmax of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Where the minimum is: within `drift` of params - step.

    residual: the gradient's norm. curvature: the least one. distance, excess_loss: of params from
    the minimum.
    """

    params: Array
    step: Array
    drift: float = math.inf
    residual: Interval = Interval()
    curvature: Interval = Interval()
    distance: Interval = Interval()
    excess_loss: Interval = Interval()

    def certified_rows(self, rows: EmbeddingSet) -> int:
        """How many rows have the same class by the parameters and by the minimum."""
        return sum(self._count(with_ones(np.asarray(block.rows))) for block in rows.blocks())

    @np.errstate(all="ignore")
    def _count(self, Z: Array) -> int:
        """Leads beyond rounding at both; a change of length t moves a lead by sqrt(2) |z| t."""
        current = scores(Z, self.params)
        top = current.argmax(axis=1)[:, None]
        lengths = ROUND_UP * np.linalg.norm(Z, axis=1, keepdims=True)
        size = float(np.linalg.norm(self.params) + np.linalg.norm(self.step))
        rounding = 4 * gamma(min(len(self.params), COLUMNS) + 4) * lengths * size
        margin = math.sqrt(2) * ROUND_UP * lengths * self.drift + rounding
        leads = np.take_along_axis(current, top, axis=1) - current
        moved = current - scores(Z, self.step)
        later = np.take_along_axis(moved, top, axis=1) - moved
        safe = (leads > rounding) & (later > margin)
        np.put_along_axis(safe, top, True, axis=1)
        return int((safe.all(axis=1) & np.isfinite(margin[:, 0])).sum())


@dataclass(frozen=True, eq=False)
class Minimum:
    """What is minimized: the mean loss over the clients' rows, and a ridge."""

    clients: Mapping[str, EmbeddingSet]
    model: LinearModel
    ridge: float

    @np.errstate(all="ignore")  # what is not finite shows nothing
    def enclose(self, params: Array, sums: RowSums) -> Enclosure:
        """Where it is, seen from parameters; sums: those of all rows at the parameters."""
        penalty = self.ridge * self.model.penalized * params
        gradient = sums.gradient / sums.count + penalty
        row_square = ROUND_UP * float(np.trace(sums.gram)) / sums.count
        target_square = ROUND_UP * float(sums.target_squares.sum()) / sums.count
        size = float(np.linalg.norm(params))
        row = math.sqrt(row_square)
        inner = min(len(params), COLUMNS) + 8
        slopes = gamma(inner) * (row * size + math.sqrt(target_square))
        if not isinstance(self.model.loss, Squares):
            slopes = 2 * gamma(inner) * row * size + gamma(params.shape[1] + 16)
        slope = math.sqrt(ROUND_UP * sums.slope_square / sums.count)
        norm = float(np.linalg.norm(gradient))
        allowance = row * (slopes + gamma(min(sums.count, ROWS) + 4) * (slope + slopes)) + TINY
        allowance += gamma(8) * (float(np.linalg.norm(penalty)) + norm)
        allowance *= ROUND_UP
        residual = Interval(max(0.0, norm - allowance), norm + allowance)
        start = Enclosure(params, np.zeros_like(params), residual=residual)
        if isinstance(self.model.loss, Squares):
            return self._of_squares(start, gradient, sums, allowance)
        return self._of_softmax(start, gradient, sums, allowance)

    def _of_squares(
        self, start: Enclosure, gradient: Array, sums: RowSums, allowance: float
    ) -> Enclosure:
        """With r = g - H s: w* = w - s - H^-1 r, and the excess is 1/2 <g, H^-1 g>."""
        p = len(gradient)
        hessian = sums.gram / sums.count + self.ridge * np.diagflat(self.model.penalized)
        error = gamma(min(sums.count, GRAM_ROWS) + 8) * float(np.trace(hessian)) + TINY
        try:
            values, vectors = np.linalg.eigh(hessian)
        except np.linalg.LinAlgError:
            return start
        total = float(np.abs(values).sum())
        skew = float(np.linalg.norm(vectors.T @ vectors - np.eye(p))) + gamma(p + 4) * 2 * p
        defect = float(np.linalg.norm(hessian - (vectors * values) @ vectors.T))
        defect = ROUND_UP * (defect + 2 * gamma(p + 4) * total) + error
        floor = self.ridge * float(self.model.penalized.min()) * (1 - gamma(4))
        least = max(float(values[0]) * (1 - skew) - defect, floor)
        first = float(values[0]) * (1 + 4 * skew) + total * skew * skew + defect
        largest = float(values[-1]) * (1 + skew) + defect
        if not least > 0 or not largest < math.inf:
            return start
        residual = start.residual
        step = vectors @ ((vectors.T @ gradient) / np.maximum(values, least)[:, None])
        length = float(np.linalg.norm(step))
        moved = hessian @ step
        size = float(np.linalg.norm(hessian))
        remainder = float(np.linalg.norm(gradient - moved)) + error * length
        remainder += 2 * gamma(p + 4) * (size * length + float(np.linalg.norm(gradient)))
        remainder += allowance
        drift = ROUND_UP * remainder / least
        energy = float((step * moved).sum())
        energy += (error + gamma(step.size + p + 8) * size) * length * length
        root = math.sqrt(max(0.0, energy)) + remainder / math.sqrt(least)
        return replace(  # max and min keep the first number where the second is NaN
            start,
            step=step,
            drift=drift,
            curvature=Interval(least, ROUND_UP * first / (1 - skew)),
            distance=Interval(
                ROUND_DOWN * max(residual.least / largest, length - drift),
                ROUND_UP * min(residual.most / least, length + drift),
            ),
            excess_loss=Interval(
                ROUND_DOWN * residual.least * residual.least / (2 * largest),
                ROUND_UP * min(residual.most * residual.most / least, root * root) / 2,
            ),
        )

    def _of_softmax(
        self, start: Enclosure, gradient: Array, sums: RowSums, allowance: float
    ) -> Enclosure:
        """|g| / c; and, where it is nearer, Bach's bound for a third derivative below the second.

        For any step s, with r = g - H s: <g, H^-1 g> = 2 <s, g> - <s, H s> + <r, H^-1 r>.
        """
        if not (self.model.penalized == 1).all() or not self.ridge > 0:
            return start
        params = start.params
        residual = start.residual
        row_square = ROUND_UP * float(np.trace(sums.gram)) / sums.count
        least = self.ridge * (1 - gamma(4))
        largest = ROUND_UP * (row_square / 2 + self.ridge)
        distance = residual.most / least
        excess = residual.most * distance / 2
        if distance > NEAR * float(np.linalg.norm(params)):
            step = self._newton_step(params, gradient, sums)
            moved = self._product(params, step)
            length = float(np.linalg.norm(step))
            growth = 1 + sums.longest * float(np.linalg.norm(params))
            operations = min(sums.count, GRAM_ROWS) + min(len(params), COLUMNS)
            operations += params.shape[1] + 32
            error = 8 * gamma(operations) * row_square * growth + gamma(8) * largest
            slack = error * length + allowance
            remainder = float(np.linalg.norm(gradient - moved)) + slack
            square = float((step * (2 * gradient - moved)).sum()) + 2 * slack * length
            square += gamma(2 * step.size) * length * 2 * (residual.most + largest * length)
            decrement = ROUND_UP * math.sqrt(max(0.0, square + remainder * remainder / least))
            reach = softmax_reach(decrement, longest=sums.longest, curvature=least)
            distance = min(distance, reach / math.sqrt(least))
            excess = min(excess, decrement * reach)
        distance = ROUND_UP * distance
        return replace(
            start,
            drift=distance,
            curvature=Interval(least, largest),
            distance=Interval(ROUND_DOWN * residual.least / largest, distance),
            excess_loss=Interval(
                ROUND_DOWN * residual.least * residual.least / (2 * largest), ROUND_UP * excess
            ),
        )

    def _newton_step(self, params: Array, gradient: Array, sums: RowSums) -> Array:
        """Any step will do; conjugate gradients come near the best."""
        curvature = sums.gram / (2 * sums.count) + self.ridge * np.eye(len(gradient))
        inverse = np.linalg.inv(curvature)
        solution = conjugate_gradient(
            lambda vector: self._product(params, vector.reshape(params.shape)).reshape(-1, 1),
            gradient.reshape(-1, 1),
            steps=PRODUCTS,
            tolerance=SOLVED,
            precondition=lambda vector: (inverse @ vector.reshape(params.shape)).reshape(-1, 1),
        )
        return solution.value.reshape(params.shape)

    def _product(self, params: Array, vector: Array) -> Array:
        """The curvature at the parameters times a vector."""
        total = DoubledSum(*params.shape)
        for rows in self.clients.values():
            for Z, _ in blocks(rows):
                weights = shares(scores(Z, params))
                moved = weights * scores(Z, vector)
                total.add(Z.T @ (moved - weights * moved.sum(axis=1, keepdims=True)))
        count = sum(map(len, self.clients.values()))
        return total.total / count + self.ridge * vector


def softmax_reach(decrement: float, *, longest: float, curvature: float) -> float:
    """At least |w - w*| in the Hessian's norm, where <g, H^-1 g> is at most decrement^2.

    The third derivative along h is at most sqrt(2) R |h| times the second, so that
    t = |h|_H has 1 - exp(-M t) <= M decrement, with M = R sqrt(2 / curvature).
    """
    growth = longest * math.sqrt(2 / curvature)
    if not growth * decrement < 1:
        return math.inf
    return -math.log1p(-growth * decrement) / growth


def is_sum(stats: SufficientStats, sums: RowSums) -> bool:
    """Whether statistics are those of these rows, up to the rounding of sums."""
    count = sums.count
    if (stats.count, stats.weight, stats.columns) != (count, count, len(sums.gram)):
        return False
    relative = summing_error([stats]) + gamma(min(count, GRAM_ROWS) + 16)
    scale = np.sqrt(np.diag(sums.gram))[:, None]
    outputs = np.sqrt(sums.target_squares)
    pairs = (
        (stats.gram, sums.gram, scale * scale.T),
        (stats.moment, sums.moment, scale * outputs),
        (stats.target_squares, sums.target_squares, sums.target_squares),
    )
    return all(
        kept.shape == summed.shape
        and bool((np.abs(kept - summed) <= 2 * relative * size + count * TINY).all())
        for kept, summed, size in pairs
    )


def is_gradient(gradient: Array, sums: RowSums, params: Array) -> bool:
    """Whether a gradient is the sum of these rows' gradients, up to rounding."""
    square = float(np.trace(sums.gram))
    targets = math.sqrt(square * max(float(sums.target_squares.sum()), sums.count))
    size = 2 * (square * float(np.linalg.norm(params)) + targets)
    error = gamma(2 * sum(sums.moment.shape) + 2 * sums.count + 64) * size
    return gradient.shape == sums.gradient.shape and bool(
        np.linalg.norm(gradient - sums.gradient) <= error + TINY
    )


def is_best_ridge(
    ridge: float, rule: Gcv, clients: Mapping[str, EmbeddingSet], model: LinearModel, sums: RowSums
) -> bool | None:
    """Whether generalized cross-validation chooses this ridge, from rows that are centered first.

    None where rounding decides: for fewer rows than columns, far from zero.
    """
    free = model.intercept == "free"
    n = sums.count
    center = np.zeros(model.dimension)
    means = np.zeros(model.classes)
    if free:
        center = sums.gram[-1, :-1] / n
        means = sums.moment[-1] / n
    values, energies, target_square = _decomposed(clients, center, means, free=free)
    varying = values > len(values) * EPSILON * values.max(initial=0.0)
    spare = n - int(varying.sum()) - int(free)
    blur = EPSILON * n * float(center @ center)
    is_blurred = spare <= 0 and blur > EPSILON * float(values.max(initial=0.0))
    energies = energies[varying]
    values = values[varying]
    unexplained = max(target_square - float((energies / values).sum()), 0.0) if spare > 0 else 0.0
    ridges = set(rule.ridges) or _grids(float(values.sum()) / n)
    if ridge not in ridges:
        return None if is_blurred else False

    def error(ridge: float) -> tuple[float, float]:
        """The error, and how much of it may be rounding."""
        shrunk = n * ridge / (values + n * ridge)
        squares = unexplained + float((energies / values * shrunk * shrunk).sum())
        freedom = (max(spare, 0) + float(shrunk.sum())) ** 2
        return squares / freedom, FLAT * target_square / freedom

    chosen, noise = error(ridge)
    is_best = all(
        chosen <= (1 + TIES) * other + other_noise + noise
        for other, other_noise in map(error, ridges)
    )
    return True if is_best else None if is_blurred else False


def _decomposed(
    clients: Mapping[str, EmbeddingSet], center: Array, means: Array, *, free: bool
) -> tuple[Array, Array, float]:
    """Eigenvalues of the centered Gram, |q_i^T moment|^2, and the centered targets' squares."""
    p = len(center) + (0 if free else 1)
    gram = DoubledSum(p, p)
    moment = DoubledSum(p, len(means))
    squares = DoubledSum()
    for rows in clients.values():
        for Z, Y in blocks(rows):
            X = Z[:, :-1] - center if free else Z
            gram.add(X.T @ X)
            moment.add(X.T @ (Y - means))
            squares.add(np.square(Y - means).sum())
    values, vectors = np.linalg.eigh(gram.total)
    energies = np.square(vectors.T @ moment.total).sum(axis=1)
    return np.maximum(values, 0.0), energies, float(squares.total)


def _grids(mean_square: float) -> set[float]:
    """The ridges to choose from; two grids where rounding decides between them."""
    sizes = (mean_square * (1 - TIES), mean_square * (1 + TIES))
    return {ridge for size in sizes if 0 < size < math.inf for ridge in ridge_grid(size).tolist()}
