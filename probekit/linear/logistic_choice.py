"""The choice of C by rows that are held out, in folds or as validation rows.

All rows are rotated once. In every fold, held-out rows have weight 0, and the paths of all folds go
up together, C by C, until the best is some steps behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace, device

from probekit.arrays import Array
from probekit.errors import InputError, SolverError
from probekit.linear.likelihood import likelihood_of
from probekit.linear.logistic import (
    CS,
    TOLERANCE,
    LogisticFit,
    check_Cs,
    checked_targets,
    fit_next,
    solve_path,
)
from probekit.linear.newton import Problem, Shortcuts
from probekit.linear.ridge import Intercept
from probekit.linear.rotation import AnyArray, RotatedRows, row_blocks
from probekit.progress import Progress, Step, silent

Grid = tuple[float, ...]
Criterion = Literal["log loss", "accuracy"]
CRITERIA = get_args(Criterion)
PATIENCE = 4
MARGIN = 1e-3
"""Errors within this share of the best are as good: a plateau is no reason to stop."""
FOLD_TOLERANCE = 1e-5
EXTENSION = 8
"""C's by which a grid grows whose first or last one is the best."""
DEFAULT_C = 1.0
"""Where no held-out row has a class that other rows have: scikit-learn's default."""


@dataclass(frozen=True, eq=False)
class LogisticChoice:
    """A C and how it was chosen: "manual", "folds", "validation" or "default".

    Cs, errors: what it was chosen from: log losses, or shares of wrong rows; empty if set by hand.
    gaps: the largest certified gap of the fits for each C.
    gap: that of the fit that was returned.
    extended: whether the grid was continued, as its first or last C was the best.
    uncertified: the least C of the grid whose solution could not be certified, nor those above.
    """

    value: float
    method: str
    Cs: Array
    errors: Array
    gaps: Array
    gap: float
    extended: bool = False
    uncertified: float | None = None

    @property
    def at_grid_edge(self) -> bool:
        return len(self.Cs) > 1 and self.value in (self.Cs[0], self.Cs[-1])


def choose_fit(
    X: Any,
    y: AnyArray,
    folds: AnyArray,
    *,
    Cs: Sequence[float] | None = None,
    criterion: Criterion = "log loss",
    refit: bool = True,
    patience: int | None = PATIENCE,
    outputs: int | None = None,
    sample_weight: AnyArray | None = None,
    intercept: Intercept = "free",
    tolerance: float = TOLERANCE,
    progress: Progress = silent,
) -> tuple[LogisticFit, LogisticChoice]:
    """The fit at the C with the least error on held-out rows, and how it was chosen.

    X, y, outputs, sample_weight, intercept, tolerance: as in `fit_path`.
    folds: (n,), the fold that each row is held out in, -1 for none. Validation rows are one fold.
    Cs: by default the grid CS, continued once where its first or last C is the best.
    criterion: the log loss, or the share of wrong rows; of equal C's the smallest is chosen.
    refit: to all rows at the end; without, the fit to the rows outside of the only fold.
    patience: stop so many C's past the best, where the error has grown; None tries all.
    """
    targets, weights, k = checked_targets(X, y, sample_weight, outputs)
    grid = check_Cs(CS if Cs is None else Cs, tolerance)
    numbers = _fold_numbers(folds, criterion, refit)
    rows = RotatedRows.of(X, weights, intercept)
    buffer = rows.xp.empty(rows.count * k, dtype=rows.xp.float32, device=device(weights))
    parts = [_fold(rows, targets, k, weights, folds == number, buffer) for number in numbers]
    usable = [part for part in parts if part is not None]
    method = "validation" if len(numbers) == 1 else f"{len(numbers)} folds"
    trials: list[_Trial] = []
    uncertified: float | None = None
    C = DEFAULT_C
    start = []
    if usable:
        search = _Search(usable, criterion, FOLD_TOLERANCE if refit else tolerance, progress)
        trials, uncertified = search.run(grid, patience, extends=Cs is None)
        best = best_of(trials)
        C = best.C
        start = _start(best, k)
    else:
        method = "default"
    if refit or not usable:
        problem = Problem.of(rows, *likelihood_of(targets, k), weights, buffer)
        smaller = [trial.C for trial in trials if trial.C < C]
        for candidate in (C, *sorted(smaller, reverse=True)):
            try:
                fit = fit_next(problem, start, candidate, float(rows.xp.sum(weights)), tolerance)
                break
            except SolverError:  # the folds' tolerance is larger
                if candidate == min(smaller, default=C):
                    raise
                uncertified = candidate
        C = fit.C
    else:
        (fit,) = best.fits
        if fit.params.shape[1] != k:
            raise InputError(
                f"Without a refit every class needs rows that are not held out; found "
                f"{fit.params.shape[1]} of {k}. Pass refit=True."
            )
    choice = LogisticChoice(
        value=C,
        method=method,
        Cs=np.array([trial.C for trial in trials]),
        errors=np.array([trial.error for trial in trials]),
        gaps=np.array([trial.gap for trial in trials]),
        gap=fit.gap,
        extended=any(not grid[0] <= trial.C <= grid[-1] for trial in trials),
        uncertified=uncertified,
    )
    return fit, choice


def _fold_numbers(folds: AnyArray, criterion: str, refit: bool) -> list[int]:
    if criterion not in CRITERIA:
        raise InputError(f"criterion must be of {', '.join(CRITERIA)}; found {criterion!r}.")
    values = array_namespace(folds).unique_values(folds)
    numbers = [int(number) for number in values if int(number) >= 0]
    if not numbers or (not refit and len(numbers) != 1):
        raise InputError(
            "C is chosen by folds or, without a refit, by the one fold of validation rows; found "
            f"{len(numbers)} folds and refit={refit}. Hold rows out, or pass C."
        )
    return numbers


@dataclass(frozen=True, eq=False)
class _Fold:
    """The problem of the rows outside of a fold, and the rows inside.

    total: the weight of the rows outside.
    inside: numbers of rows whose class the problem has; weights: of all rows.
    """

    problem: Problem
    total: float
    inside: AnyArray
    weights: AnyArray

    @property
    def weight(self) -> float:
        """Of the errors of the rows inside."""
        outputs = self.problem.targets.shape[1] if self.problem.targets.ndim == 2 else 1
        xp = self.problem.rows.xp
        return outputs * float(xp.sum(xp.take(self.weights, self.inside, axis=0)))

    def error(self, fit: LogisticFit, criterion: Criterion) -> float:
        """The weighted sum of the errors of the rows inside."""
        rows = self.problem.rows
        xp = rows.xp
        likelihood = self.problem.likelihood
        theta = xp.astype(rows.theta(likelihood.gather(fit.params)), xp.float32)
        error = 0.0
        for block in row_blocks(self.inside.shape[0], max(theta.shape)):
            members = self.inside[block]
            scores = xp.take(rows.rotated, members, axis=0) @ theta[:-1, :] + theta[-1, :]
            targets = xp.take(self.problem.targets, members, axis=0)
            if criterion == "accuracy":
                errors = likelihood.mistakes(scores, targets)
            else:
                errors = likelihood.losses(scores, targets)[0]
            error += float(xp.sum(xp.astype(errors, xp.float64) * self.weights[members]))
        return error


def _fold(
    rows: RotatedRows,
    targets: AnyArray,
    k: int,
    weights: AnyArray,
    is_inside: AnyArray,
    buffer: AnyArray,
) -> _Fold | None:
    """None if the rows outside have less than two classes, or no row inside has a class of them."""
    xp = rows.xp
    outside = xp.where(is_inside, xp.zeros_like(weights), weights)
    is_inside = is_inside & (weights > 0)
    has_weight = outside > 0
    if targets.ndim == 1:
        present = xp.unique_values(targets[has_weight])
        number = xp.full(k, -1, dtype=xp.int64, device=device(targets))
        number[present] = xp.arange(present.shape[0], device=device(targets))
        targets = number[targets]
        is_inside = is_inside & (targets >= 0)
        targets = xp.clip(targets, 0, None)
        columns = int(present.shape[0])
        is_usable = columns > 1
    else:
        positive = targets[has_weight, :] > 0
        varies = xp.any(positive, axis=0) & ~xp.all(positive, axis=0)
        targets = targets[:, varies]
        columns = int(targets.shape[1])
        is_usable = columns > 0
    if not is_usable or not bool(xp.any(is_inside)):
        return None
    problem = Problem.of(rows, *likelihood_of(targets, columns), outside, buffer)
    inside = xp.nonzero(is_inside)[0]
    return _Fold(problem, float(xp.sum(outside)), inside, weights)


@dataclass(frozen=True, eq=False)
class _Trial:
    """A C, the mean error of held-out rows, the largest gap; fits of all folds, if it is best."""

    C: float
    error: float
    gap: float
    fits: tuple[LogisticFit, ...]


@dataclass(frozen=True, eq=False)
class _Search:
    """The paths of all folds, C by C."""

    parts: list[_Fold]
    criterion: Criterion
    tolerance: float
    progress: Progress

    def run(
        self, grid: Grid, patience: int | None, *, extends: bool
    ) -> tuple[list[_Trial], float | None]:
        """Trials for increasing C's, and the first of the grid that could not be certified."""
        steps = range(1, EXTENSION + 1) if extends else range(0)
        ratio = grid[-1] / grid[-2] if extends else 1.0
        above = tuple(grid[-1] * ratio**step for step in steps)
        trials: list[_Trial] = []
        uncertified: float | None = None
        try:
            for trial in self._trials((*grid, *above), len(grid)):
                trials = _with_best([*trials, trial])
                best = best_of(trials)
                behind = len(trials) - 1 - trials.index(best)
                is_over = len(trials) >= len(grid) and (behind > 0 or not extends)
                is_worse = trial.error > (1 + MARGIN) * best.error
                if is_over or (patience is not None and behind >= patience and is_worse):
                    break
        except SolverError:  # of separable rows
            if not trials:
                raise
            if len(trials) < len(grid):  # C's beyond it were not asked for
                uncertified = grid[len(trials)]
        if extends and best_of(trials) is trials[0]:
            below = tuple(grid[0] / ratio**step for step in reversed(steps))
            trials = _with_best([*self._trials(below, len(below)), *trials])
        return trials, uncertified

    def _trials(self, Cs: Grid, expected: int) -> Iterator[_Trial]:
        paths = [solve_path(part.problem, Cs, part.total, self.tolerance) for part in self.parts]
        weight = sum(part.weight for part in self.parts)
        for number, fits in enumerate(zip(*paths, strict=True), 1):
            errors = [
                part.error(fit, self.criterion) for part, fit in zip(self.parts, fits, strict=True)
            ]
            trial = _Trial(fits[0].C, sum(errors) / weight, max(fit.gap for fit in fits), fits)
            note = f"C = {trial.C:.3g}, {self.criterion} {trial.error:.4g}"
            self.progress(Step("choosing C", number, max(number, expected), note))
            yield trial


def best_of(trials: Sequence[_Trial]) -> _Trial:
    """Of equals the first."""
    return min(trials, key=lambda trial: trial.error)


def _with_best(trials: list[_Trial]) -> list[_Trial]:
    """Fits of the best alone: they are as large as the rows may be."""
    best = best_of(trials)
    return [trial if trial is best else replace(trial, fits=()) for trial in trials]


def _start(trial: _Trial, k: int) -> list[LogisticFit]:
    """The mean of the folds' fits, which is near the fit to all rows."""
    whole = [fit for fit in trial.fits if fit.params.shape[1] == k]
    if not whole:
        return []
    mean = sum(fit.params for fit in whole) / len(whole)
    return [replace(whole[0], params=mean, shortcuts=Shortcuts())]
