"""Heads as scikit-learn estimators: drop-in for RidgeClassifier and LogisticRegression, and more.

Here, and only here, the ridge is called alpha (scaled by the sum, as there) and targets are -1 and 1.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from probekit.errors import InputError, MismatchError
from probekit.linear.design import ClientStats, Design, LinearFit
from probekit.linear.groups import leave_groups_out, left_out_scores
from probekit.linear.leaveout import choose_ridge
from probekit.linear.logistic import fit_logistic
from probekit.linear.path import RidgePath, Validation, decompose
from probekit.linear.ridge import penalty_of, recipe_of, solve
from probekit.linear.statistics import statistics
from probekit.linear.system import system_of
from probekit.linear.temperature import grid_temperature
from probekit.models.classifier_head import ClassifierHead
from probekit.models.serving import scores
from probekit.models.target_estimator import CLASSES, TargetHead
from probekit.values import Array, Indices

TARGETS = (-1.0, 1.0)


def _has_alpha(head: RidgeHead) -> bool:
    if head.alpha == "auto":
        raise AttributeError('alpha="auto" takes all rows at once, not partial_fit. Call fit, or give a number.')
    return True


def _has_probability(head: RidgeHead) -> bool:
    if not head.probability:
        raise AttributeError("A ridge head has chances only with probability=True.")
    return True


def _chosen(path: RidgePath, rows: NDArray[Any], labels: Indices, groups: ArrayLike | None) -> tuple[float, Validation]:
    if groups is None:
        return choose_ridge(path, rows, labels)
    found = leave_groups_out(path, rows, labels, groups=groups)
    return found.best(), found


class RidgeHead(TargetHead):
    """A ridge classifier from sufficient statistics, equal to scikit-learn's RidgeClassifier.

    A y of several columns are several labels (0, 1) or real targets, NaN where one is unknown: each is fitted to the
    rows that know it, as scikit-learn's Ridge would be. Scores of labels are counted from one half.

    alpha: the ridge: a number, or "auto" (chosen by exact leave-one-out).
    scaling: "sum" takes it as it is, "mean" multiplies it by the number of rows.
    fit_intercept: whether there is an intercept, which is not penalised.
    row_view: rows as they are ("raw") or divided by their norm ("l2").
    standardise: statistics as they are ("none"), or "centre" or "standardise".
    class_weight: as in scikit-learn.
    arithmetic: "float64", "fast" or "exact", the last with the step of its `grid`.
    probability: whether there is `predict_proba`: the softmax of scores at the temperature of least log loss on
    training rows (or groups) left out in turn. Rows that are added or taken out later leave it without one.
    targets: "classes", or "real": y are real numbers, also in one column, and the head is a regressor.
    """

    def __init__(
        self,
        alpha: float | str = 1.0,
        *,
        scaling: str = "sum",
        fit_intercept: bool = True,
        row_view: str = "raw",
        standardise: str = "none",
        class_weight: dict[Any, float] | str | None = None,
        arithmetic: str = "float64",
        grid: float = 0.0,
        probability: bool = False,
        targets: str = CLASSES,
    ) -> None:
        self.alpha = alpha
        self.scaling = scaling
        self.fit_intercept = fit_intercept
        self.row_view = row_view
        self.standardise = standardise
        self.class_weight = class_weight
        self.arithmetic = arithmetic
        self.grid = grid
        self.probability = probability
        self.targets = targets

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Fit to these rows alone; rows of a group are left out together where rows are left out."""
        if self._takes_targets(y):
            self._fit_targets(self._with_targets(X, y, reset=True), y, groups)
            return self
        rows, labels = self._checked(X, y, reset=True)
        self.classes_ = _two_or_more(np.unique(labels))
        numbers, alpha = self._numbers(labels), self.alpha
        self.stats_ = statistics(rows, numbers, self._design())
        path = None
        if alpha == "auto" or self.probability:
            path = decompose(self.stats_, scaling=self.scaling, **self._weighing)
        if alpha == "auto" and path is not None:
            alpha, self.validation_ = _chosen(path, rows, numbers, groups)
        self._solve(alpha)
        if self.probability and path is not None:
            left_out = left_out_scores(path, rows, numbers, ridge=self._fixed(), groups=groups)
            self.temperature_ = grid_temperature(left_out, numbers)
        return self

    @available_if(_has_probability)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Array:
        """The chance of each class; of several labels that each is 1."""
        rows = self._rows(X)
        if not hasattr(self, "temperature_"):
            raise InputError("Rows were added or taken out since the temperature was chosen. Call fit again.")
        if self._has_targets():
            return self._target_chances(rows)
        found = scores(self.head_, rows)
        return np.asarray(softmax(found / self.temperature_, axis=1))

    @available_if(_has_alpha)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add these rows: the head of one fit to all rows so far. The first call names all classes."""
        first = not hasattr(self, "stats_")
        if self._takes_targets(y):
            rows = self._with_targets(X, y, reset=first)
            if first:
                self._fit_targets(rows, y, None)
                return self
            self.stats_ = self.stats_ + self._target_sums(rows, y)
            return self._solve(self._fixed())
        rows, labels = self._checked(X, y, reset=first)
        if first:
            if classes is None:
                raise InputError("The first partial_fit needs all classes: rows to come may have others.")
            self.classes_ = _two_or_more(np.unique(np.asarray(classes)))
            self.stats_ = ClientStats.zero(self._design())
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise InputError(f"The classes are {list(self.classes_)}; found {list(np.asarray(classes))}.")
        self.stats_ = self.stats_ + statistics(rows, self._numbers(labels), self.stats_.design)
        return self._solve(self._fixed())

    def merge(self, other: RidgeHead) -> Self:
        """Add all rows that another head was fitted to."""
        check_is_fitted(self)
        check_is_fitted(other)
        if not self._has_targets() and not np.array_equal(self.classes_, other.classes_):
            raise MismatchError(
                f"Heads to merge need the same classes; found {list(self.classes_)} and "
                f"{list(other.classes_)}. Name all classes in the first partial_fit."
            )
        self.stats_ = self.stats_ + other.stats_
        return self._solve(self._fixed())

    def remove(self, X: ArrayLike | ClientStats, y: ArrayLike | None = None) -> Self:
        """Take rows (or the statistics of rows) out again: the head that a fit to the rest gives.

        To rounding with float64 statistics, bit by bit with arithmetic "exact".
        """
        check_is_fitted(self)
        if not isinstance(X, ClientStats):
            if y is None:
                raise InputError("Rows to remove need their labels: remove(X, y).")
            if self._has_targets():
                self.stats_ = self.stats_ - self._target_sums(self._with_targets(X, y, reset=False), y)
                return self._solve(self._fixed())
            rows, labels = self._checked(X, y, reset=False)
            X = statistics(rows, self._numbers(labels), self.stats_.design)
        self.stats_ = self.stats_ - X
        return self._solve(self._fixed())

    def _design(self) -> Design:
        intercept = "free" if self.fit_intercept else "none"
        seen = (self.row_view, intercept, self.arithmetic, self.class_weight is not None, self.grid)
        return Design(self.n_features_in_, len(self.classes_), *seen)

    @property
    def _weighing(self) -> dict[str, Any]:
        weight: Any = self.class_weight
        if not isinstance(weight, str | None):
            weight = compute_class_weight(weight, classes=self.classes_, y=self.classes_)
        return {"standardise": self.standardise, "class_weight": weight, "targets": TARGETS}

    def _fixed(self) -> float:
        """The alpha for rows that were added or taken out: as given, or as the fit chose it."""
        return float(self.alpha_ if self.alpha == "auto" else self.alpha)

    def _solve(self, alpha: float | str) -> Self:
        if hasattr(self, "temperature_"):
            del self.temperature_  # it belonged to other rows
        if self._has_targets():
            self._solve_targets(alpha)
            return self
        if isinstance(alpha, str):
            raise InputError(f'alpha must be a number or "auto"; found {alpha!r}.')
        system = system_of(self.stats_, **self._weighing)
        self.solution_ = solve(system, penalty_of(alpha, self.scaling, system.weight))
        self.alpha_, recipe = alpha, recipe_of(self.stats_, scaling=self.scaling, system=system)
        self._keep(LinearFit(system.lift(self.solution_.value), alpha, self.stats_.design, self.solution_, recipe))
        return self


class LogisticHead(ClassifierHead):
    """A multinomial logistic classifier with scikit-learn's objective. It cannot be unlearned exactly.

    C: the weight of the loss against the ridge of 1.
    fit_intercept: whether there is an intercept, which is not penalised.
    row_view: rows as they are ("raw") or divided by their norm ("l2").
    """

    def __init__(self, C: float = 1.0, *, fit_intercept: bool = True, row_view: str = "raw") -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.row_view = row_view

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to these rows alone."""
        rows, labels = self._checked(X, y, reset=True)
        self.classes_ = _two_or_more(np.unique(labels))
        intercept = "free" if self.fit_intercept else "none"
        design = Design(self.n_features_in_, len(self.classes_), view=self.row_view, intercept=intercept)
        found = fit_logistic(rows, self._numbers(labels), design, c=self.C)
        self.solution_ = found.solution
        self.n_iter_ = np.array([max(1, self.solution_.steps)])
        self._keep(found)
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """The chance of each class."""
        return np.asarray(softmax(self._scores(X), axis=1))

    def _one(self, pair: Array) -> Array:
        """What stands for two classes: the second's values less the first's."""
        return np.asarray(pair[1] - pair[0])


def _two_or_more(classes: NDArray[Any]) -> NDArray[Any]:
    if len(classes) < 2:
        raise InputError(f"A head needs at least two classes; found {len(classes)} class: {list(classes)}.")
    return classes
