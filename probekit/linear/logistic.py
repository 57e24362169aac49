"""Logistic regression for many C's, each solution with a certified gap.

minimize over W, b   1/2 |W|^2 + C sum_i s_i loss(W^T x_i + b)

is scikit-learn's objective: of classes the softmax's log loss, of two classes the binary one in
w = W[:, 1] - W[:, 0], of several labels of 0 and 1 the sum over the labels. The intercept b is
free, or "penalized": then |b|^2 joins |W|^2. A ridge on the mean loss is 1 / (C sum_i s_i).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from probekit.errors import InputError, SolverError
from probekit.linear.likelihood import likelihood_of
from probekit.linear.newton import Iterate, Problem, Shortcuts, evaluate, minimize
from probekit.linear.ridge import Intercept
from probekit.linear.rotation import AnyArray, RotatedRows, squared_norm
from probekit.progress import Progress, Step, silent

CS = tuple(10 ** (-6 + 11 * step / 44) for step in range(45))
"""10**linspace(-6, 5, 45), as DINOv2 and DINOv3 sweep C."""
TOLERANCE = 1e-6
SMALLEST_TOLERANCE = 1e-13


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """The solution for one C.

    params: weights above the intercept, (d + 1, k); of two classes -w/2 and w/2.
    gap: (F - F*) / F is at most this, F* the minimum.
    shortcuts: that the next C starts with.
    """

    C: float
    params: AnyArray
    objective: float
    gap: float
    steps: int
    shortcuts: Shortcuts


def fit_path(
    X: Any,
    y: AnyArray,
    Cs: Iterable[float] = CS,
    *,
    outputs: int | None = None,
    sample_weight: AnyArray | None = None,
    intercept: Intercept = "free",
    tolerance: float = TOLERANCE,
    finished: Sequence[LogisticFit] = (),
    progress: Progress = silent,
) -> Iterator[LogisticFit]:
    """A fit for every C, each given as soon as its gap is at most the tolerance.

    X: (n, d), NumPy or torch, or anything that slices to NumPy arrays (a memory map is read in
        blocks); y: class numbers (n,), or labels of 0 and 1 (n, k), of NumPy or on torch's device.
    outputs: the number of classes; by default one more than the largest.
    finished: fits of this function for the first C's, as from a run that was interrupted.

    Memory: a float32 copy of X, most of another during a step, and (n, k) float32.
    """
    targets, weights, outputs = checked_targets(X, y, sample_weight, outputs)
    rows = RotatedRows.of(X, weights, intercept)
    likelihood, targets = likelihood_of(targets, outputs)
    xp = rows.xp
    size = rows.count * likelihood.outputs
    buffer = xp.empty(size, dtype=xp.float32, device=device(weights))
    problem = Problem.of(rows, likelihood, targets, weights, buffer)
    total = float(xp.sum(weights))
    return solve_path(problem, Cs, total, tolerance, finished=finished, progress=progress)


def checked_targets(
    X: Any, y: AnyArray, sample_weight: AnyArray | None, outputs: int | None
) -> tuple[AnyArray, AnyArray, int]:
    """Targets as numbers, weights in float64, and the number of classes or labels."""
    xp = array_namespace(y)
    count = int(X.shape[0])
    if len(X.shape) != 2 or y.shape[0] != count or y.ndim > 2 or not count:
        raise InputError(
            "X must be (n, d) and y (n,) or (n, k), with n of 1 or more; found "
            f"{tuple(X.shape)} and {tuple(y.shape)}."
        )
    place = {"dtype": xp.float64, "device": device(y)}
    if sample_weight is None:
        weights = xp.ones(count, **place)
    else:
        weights = xp.asarray(sample_weight, **place)
    usable = bool(xp.all(xp.isfinite(weights) & (weights >= 0)))
    if weights.shape != (count,) or not usable or not bool(xp.any(weights > 0)):
        raise InputError(
            f"sample_weight must be finite, 0 or more, not all 0, and of shape ({count},); found "
            f"shape {tuple(weights.shape)}."
        )
    if y.ndim == 1:
        y = xp.astype(y, xp.int64)
        if int(xp.min(y)) < 0:
            raise InputError(f"Class numbers must be 0 or more; found {int(xp.min(y))}.")
        return y, weights, int(xp.max(y)) + 1 if outputs is None else outputs
    if not bool(xp.all((y == 0) | (y == 1))):
        raise InputError("Several labels must be 0 or 1; found others. Fit numbers by ridge.")
    return y, weights, int(y.shape[1]) if outputs is None else outputs


def check_Cs(Cs: Iterable[float], tolerance: float) -> tuple[float, ...]:  # noqa: N802
    values = tuple(float(C) for C in Cs)
    is_increasing = all(low < high for low, high in itertools.pairwise(values))
    if not values or not is_increasing or not 0 < values[0] <= values[-1] < math.inf:
        raise InputError(f"C's must be above 0, finite and increase; found {list(values)}.")
    if not SMALLEST_TOLERANCE <= tolerance < 1:
        raise InputError(
            f"The tolerance must be {SMALLEST_TOLERANCE:g} or more and below 1, what float64 can "
            f"certify; found {tolerance:g}."
        )
    return values


def solve_path(
    problem: Problem,
    Cs: Iterable[float],
    total: float,
    tolerance: float,
    *,
    finished: Sequence[LogisticFit] = (),
    progress: Progress = silent,
) -> Iterator[LogisticFit]:
    """total: the sum of the weights, by which F is divided while it is minimized."""
    values = check_Cs(Cs, tolerance)
    for fit, C in zip(finished, values, strict=False):
        if fit.C != C or fit.gap > tolerance:
            raise InputError(
                f"Finished fits must be those of the first C's with a gap of {tolerance:g}; found "
                f"C = {fit.C:g} with {fit.gap:.1g} for {C:g}. Start anew without them."
            )
    return _continue_path(problem, values, total, tolerance, list(finished), progress)


def _continue_path(
    problem: Problem,
    Cs: tuple[float, ...],
    total: float,
    tolerance: float,
    fits: list[LogisticFit],
    progress: Progress,
) -> Iterator[LogisticFit]:
    yield from fits
    for number in range(len(fits), len(Cs)):
        fit = fit_next(problem, fits[-3:], Cs[number], total, tolerance)
        fits.append(fit)
        note = f"C = {fit.C:.3g}, gap {fit.gap:.1g}"
        progress(Step("logistic regression", number + 1, len(Cs), note))
        yield fit
        del fits[:-3]


def fit_next(
    problem: Problem, fits: Sequence[LogisticFit], C: float, total: float, tolerance: float
) -> LogisticFit:
    """The fit for one C, started from those of smaller C's."""
    shortcuts = fits[-1].shortcuts if fits else Shortcuts()
    start = start_of(problem, fits, C, total, shortcuts)
    minimum = minimize(problem, start, tolerance, shortcuts)
    objective = minimum.iterate.objective
    gap = minimum.gap / objective
    if not gap <= tolerance:
        raise SolverError(
            f"A relative gap of {tolerance:.1g} was expected at C = {C:.3g}; found {gap:.1g} after "
            f"{minimum.steps} Newton steps. Scale the rows (--normalize l2), take smaller C's, or "
            "raise the tolerance."
        )
    params = problem.likelihood.spread(problem.rows.params(minimum.iterate.theta))
    return LogisticFit(C, params, C * total * objective, gap, minimum.steps, minimum.shortcuts)


def start_of(
    problem: Problem, fits: Sequence[LogisticFit], C: float, total: float, shortcuts: Shortcuts
) -> Iterate:
    """Lagrange's polynomial in log C through the last fits, or the last one where it is better."""
    penalty = 1 / (C * total * problem.rows.variance)
    in_float64 = not shortcuts.float32_gradients
    if not fits:
        return evaluate(problem, problem.start(), penalty=penalty, in_float64=in_float64)
    points = [math.log(fit.C) for fit in fits]
    solutions = [problem.rows.theta(problem.likelihood.gather(fit.params)) for fit in fits]
    theta = problem.rows.xp.zeros_like(solutions[-1])
    for number, (point, solution) in enumerate(zip(points, solutions, strict=True)):
        others = points[:number] + points[number + 1 :]
        factors = [(math.log(C) - other) / (point - other) for other in others]
        theta = theta + math.prod(factors) * solution
    start = evaluate(problem, theta, penalty=penalty, in_float64=in_float64)
    last = fits[-1]
    square = squared_norm(solutions[-1][:-1, :]) / problem.rows.variance
    loss = (last.objective - 0.5 * square) / (last.C * total)
    if len(fits) > 1 and start.objective > loss + 0.5 * square / (C * total):
        return evaluate(problem, solutions[-1], penalty=penalty, in_float64=in_float64)
    return start
