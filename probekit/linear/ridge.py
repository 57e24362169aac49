"""Ridge regression from sums.

minimize over W, b   1/(2n) sum_i v_i |W^T x_i + b - y_i|^2 + ridge/2 |W|^2

n is the sum of the row weights v, which is the number of rows where they have none. The intercept b
is free, or "penalized": then |b|^2 joins |W|^2. scikit-learn's alpha is n * ridge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array
from probekit.embeddings import Rows
from probekit.errors import InputError, SolverError
from probekit.linear.stats import SufficientStats, with_ones
from probekit.records import record

Intercept = Literal["free", "penalized"]
INTERCEPTS = get_args(Intercept)
RESIDUAL_TOLERANCE = 1e-6
ALIKE = 1e-13
EPSILON = float(np.finfo(np.float64).eps)


def check_ridge(ridge: float | str) -> float:
    """A ridge as a float, if it is finite and not negative."""
    if isinstance(ridge, bool | str) or not 0 <= ridge < math.inf:
        raise InputError(
            f"ridge (--ridge) must be a finite number, 0 or more, or 'auto'; found {ridge!r}."
        )
    return float(ridge)


def check_C(C: float | str) -> float:  # noqa: N802
    """A C as a float, if it is finite and above 0."""
    if isinstance(C, bool | str) or not 0 < C < math.inf:
        raise InputError(f"C (--c) must be a finite number above 0, or 'auto'; found {C!r}.")
    return float(C)


def ridge_grid(mean_square: float) -> Array:
    """45 ridges from 1e-8 to 10 times the rows' mean squared norm, in even ratios.

    The norm is rounded to a power of two: the digits of a chosen ridge outlive the rows, and must
    not remember them.
    """
    if not 0 < mean_square < math.inf:
        raise InputError(
            f"A ridge cannot be chosen for rows with a variance of {mean_square:g}. "
            "Pass ridge as a number (--ridge)."
        )
    return np.geomspace(1e-8, 10.0, 45) * 2.0 ** round(math.log2(mean_square))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Rows and targets such that every column is penalized: a free intercept is centered out."""

    intercept: Intercept
    center: Array
    target_mean: Array

    @classmethod
    def of(cls, stats: SufficientStats, intercept: Intercept) -> Coordinates:
        if intercept not in INTERCEPTS:
            raise InputError(f"intercept must be 'free' or 'penalized'; found {intercept!r}.")
        if intercept == "penalized":
            return cls(intercept, np.zeros(stats.columns - 1), np.zeros(stats.targets))
        if stats.root is not None:
            ones = stats.root[:, stats.columns - 1]
            means = ones @ stats.root / stats.weight
            return cls(intercept, means[: stats.columns - 1], means[stats.columns :])
        return cls(intercept, stats.gram[-1, :-1] / stats.weight, stats.moment[-1] / stats.weight)

    @property
    def is_free(self) -> bool:
        return self.intercept == "free"

    def columns(self, rows: Rows) -> Array:
        """The design matrix of some rows."""
        if self.is_free:
            return np.asarray(rows, np.float64) - self.center
        return with_ones(np.asarray(rows))

    def normal_equations(self, stats: SufficientStats) -> tuple[Array, Array]:
        """The Gram and moment of the design."""
        if not self.is_free:
            return stats.gram, stats.moment
        n = stats.weight
        gram = np.outer(self.center, self.center)
        gram *= -n
        gram += stats.gram[:-1, :-1]
        moment = stats.moment[:-1] - n * np.outer(self.center, self.target_mean)
        return gram, moment

    def params(self, solution: Array) -> Array:
        """Weights above the intercept, (d + 1, k), that act on rows as they are."""
        if not self.is_free:
            return np.ascontiguousarray(solution)
        return np.vstack([solution, self.target_mean - self.center @ solution])


def solve_ridge(stats: SufficientStats, ridge: float, intercept: Intercept = "free") -> Array:
    """The minimum: weights above the intercept, (d + 1, k)."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    penalty = stats.weight * check_ridge(ridge)
    coordinates = Coordinates.of(stats, intercept)
    gram, moment = coordinates.normal_equations(stats)
    if penalty == 0:
        _check_rank(np.asarray(np.linalg.eigvalsh(gram), np.float64), len(gram))
    system = gram.copy()
    system[np.diag_indices(len(gram))] += penalty
    try:
        factor = cho_factor(system.T, lower=True)  # LAPACK wants columns; it is symmetric
    except LinAlgError as error:
        raise InputError(
            f"The sums of {stats.count} rows are singular at ridge {ridge:g}. Raise it (--ridge)."
        ) from error
    solution = cho_solve(factor, moment)
    residual = float(np.linalg.norm(system @ solution - moment))
    scale = float(np.linalg.norm(moment))
    if residual > RESIDUAL_TOLERANCE * scale:
        raise SolverError(
            f"A relative residual of at most {RESIDUAL_TOLERANCE:g} was expected; found "
            f"{residual / scale:.1g} at ridge {ridge:g}. Raise it (--ridge)."
        )
    return coordinates.params(np.ascontiguousarray(solution))


def varying_directions(eigenvalues: Array) -> NDArray[np.bool_]:
    """Which eigenvalues are not rounding error."""
    floor = len(eigenvalues) * EPSILON * eigenvalues.max(initial=0.0)
    return np.asarray(eigenvalues > floor)


def _check_rank(eigenvalues: Array, columns: int) -> None:
    rank = int(np.count_nonzero(varying_directions(eigenvalues)))
    if rank < columns:
        raise InputError(
            f"Without a ridge the rows must span all {columns} columns; found rank {rank}. "
            "Pass a ridge above 0 (--ridge 1e-6)."
        )


@dataclass(frozen=True, eq=False)
class RidgePath:
    """All ridges from one eigendecomposition: the Gram is Q diag(s) Q^T, a ridge adds to s.

    values: s, (r,); directions where the rows do not vary may be missing.
    vectors: Q, (columns, r).
    rotated: Q^T moment, (r, k).
    target_squares: of the centered targets, summed.
    """

    coordinates: Coordinates
    count: int
    weight: float
    values: Array
    vectors: Array
    rotated: Array
    target_squares: float

    @classmethod
    def of(cls, stats: SufficientStats, intercept: Intercept = "free") -> RidgePath:
        """Few rows (a root) cost an SVD of the root, else d x d eigenvectors are computed."""
        coordinates = Coordinates.of(stats, intercept)
        if stats.root is not None:
            values, vectors, rotated, squares = _decompose_root(stats, coordinates)
        else:
            gram, moment = coordinates.normal_equations(stats)
            values, vectors = np.linalg.eigh(gram)
            values = np.maximum(values, 0.0)
            rotated = vectors.T @ moment
            means = stats.weight * np.square(coordinates.target_mean)
            squares = float((stats.target_squares - means).sum())
        return cls(coordinates, stats.count, stats.weight, values, vectors, rotated, squares)

    @property
    def mean_square(self) -> float:
        """The mean squared norm of the (centered) rows."""
        return float(self.values.sum()) / self.weight

    def grid(self) -> Array:
        """The ridges to choose from; rows that are all alike but for rounding are refused."""
        size = self.mean_square
        center = self.coordinates.center
        return ridge_grid(size if size > ALIKE * float(center @ center) else 0.0)

    def params(self, ridge: float) -> Array:
        """The minimum at one ridge, (d + 1, k): that of `solve_ridge` up to rounding."""
        shifted = self.values + self.weight * check_ridge(ridge)
        if ridge == 0:
            _check_rank(self.values, len(self.vectors))
        return self.coordinates.params(self.vectors @ (self.rotated / shifted[:, None]))

    def gcv_errors(self, ridges: Array) -> Array:
        """Generalized cross-validation errors (RSS / n) / (1 - dof / rows)^2, from the sums alone.

        With b_i = |q_i^T moment|^2 and a = n ridge: RSS = |Y|^2 - sum b_i / s_i, what no head
        explains, plus sum b_i a^2 / (s_i (s_i + a)^2), and
        rows - dof = rows - rank + sum a / (s_i + a).
        A free intercept is one more degree of freedom.
        """
        varying = varying_directions(self.values)
        values = self.values[varying]
        energies = np.square(self.rotated[varying]).sum(axis=1)
        spare_rows = self.count - len(values) - int(self.coordinates.is_free)
        unexplained = max(0.0, self.target_squares - float((energies / values).sum()))
        if spare_rows <= 0:  # every target is fitted exactly; what is left is rounding
            spare_rows = 0
            unexplained = 0.0
        penalties = self.weight * ridges[:, None]
        shifted = values + penalties
        residuals = unexplained + (energies / values * np.square(penalties / shifted)).sum(axis=1)
        freedom = spare_rows + (penalties / shifted).sum(axis=1)
        return np.asarray(residuals / self.weight / np.square(freedom / self.count))


def _decompose_root(
    stats: SufficientStats, coordinates: Coordinates
) -> tuple[Array, Array, Array, float]:
    """Eigenpairs of the Gram from the root: P R_x = U s V^T, P projects the column of ones away."""
    assert stats.root is not None
    Z = stats.root[:, : stats.columns]
    Y = stats.root[:, stats.columns :]
    if coordinates.is_free:
        ones = Z[:, -1:]
        Y = Y - ones * coordinates.target_mean
        Z = Z[:, :-1] - ones * coordinates.center
    U, singular, Vt = np.linalg.svd(Z, full_matrices=False)
    rotated = singular[:, None] * (U.T @ Y)
    return np.square(singular), Vt.T, rotated, float(np.square(Y).sum())


class RidgeRule(Protocol):
    """How a ridge follows from the sums of rows, so that it can be chosen again without some."""

    def choose(self, stats: SufficientStats, intercept: Intercept) -> float: ...


@record("ridge/gcv")
@dataclass(frozen=True)
class Gcv:
    """The ridge of least generalized cross-validation error, of `ridges` or of the rows' grid."""

    ridges: tuple[float, ...] = ()

    def choose(self, stats: SufficientStats, intercept: Intercept) -> float:
        path = RidgePath.of(stats, intercept)
        ridges = np.array(self.ridges) if self.ridges else path.grid()
        return float(ridges[int(np.argmin(path.gcv_errors(ridges)))])


@record("ridge/c")
@dataclass(frozen=True)
class InverseC:
    """The ridge 1 / (C n) of logistic regression with a given C, n the weight of the rows.

    Of two classes it is 2 / (C n): scikit-learn penalizes the difference of their weights, which is
    twice either of them.
    """

    C: float

    def __post_init__(self) -> None:
        check_C(self.C)

    def choose(self, stats: SufficientStats, intercept: Intercept) -> float:
        return self.of(stats.weight, stats.targets)

    def of(self, weight: float, classes: int) -> float:
        return (2 if classes == 2 else 1) / (self.C * weight)


@record("ridge/choice")
@dataclass(frozen=True)
class RidgeChoice:
    """A ridge, the rule that chose it (None: by hand), and whether its rows are all retained.

    stale: rows that the rule saw have been forgotten since, and it was not applied again.
    """

    value: float
    rule: RidgeRule | None = None
    stale: bool = False

    @property
    def setting(self) -> float | RidgeRule:
        """What to train with, to repeat the choice."""
        return self.value if self.rule is None else self.rule
