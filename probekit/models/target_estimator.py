"""What a scikit-learn head does with several labels or real targets: every one on the rows that know it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, validate_data

from probekit.errors import InputError
from probekit.linear.ridge import fit
from probekit.linear.target_path import TargetPaths
from probekit.linear.targets import TargetDesign, TargetStats, target_statistics
from probekit.linear.temperature import label_chances, label_temperatures
from probekit.models.classifier_head import ClassifierHead
from probekit.models.heads import head_of
from probekit.models.serving import HALF, scores
from probekit.values import LABELS, REAL, Array, target_kind
from probekit.values.targets import real_targets

CLASSES = "classes"
"""What `RidgeHead(targets=...)` says of y that are classes, or a matrix of several labels."""


def _has_scores(head: TargetHead) -> bool:
    if head.targets == REAL:
        raise AttributeError("A regressor has no scores besides what it predicts.")
    return True


class TargetHead(ClassifierHead):
    """A head that may hold statistics of several labels or real targets in `stats_`."""

    alpha: Any
    scaling: str
    fit_intercept: bool
    row_view: str
    standardise: str
    class_weight: Any
    arithmetic: str
    probability: bool
    targets: str
    n_features_in_: int
    stats_: Any
    alpha_: Any
    solution_: Any
    coef_: Any
    intercept_: Any
    validation_: Any
    _one_column: bool

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.class_weight is None
        if self.targets == REAL:
            tags.estimator_type, tags.classifier_tags, tags.regressor_tags = "regressor", None, RegressorTags()
        return tags

    @available_if(_has_scores)  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Array:
        """The score of each class, of the second alone where there are two; of several labels that of each."""
        return self._target_scores(self._rows(X)) if self._has_targets() else super().decision_function(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the highest score; of several labels 0 or 1 for each; real targets themselves."""
        return self._target_guesses(self._rows(X)) if self._has_targets() else super().predict(X)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy; of several labels the share of known ones that are right; of real targets their mean R2."""
        if self._has_targets():
            return self._target_score(self._rows(X), y)
        return float(super().score(X, y, sample_weight))

    def _with_targets(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> NDArray[Any]:
        rows = np.asarray(validate_data(self, X, reset=reset, dtype=[np.float64, np.float32]))
        if y is not None:
            check_consistent_length(rows, y)
        return rows

    def _has_targets(self) -> bool:
        return isinstance(getattr(self, "stats_", None), TargetStats)

    def _takes_targets(self, y: Any) -> bool:
        """Whether y is no column of classes: real numbers are asked for, or there is more than one column."""
        if self.targets not in (CLASSES, REAL):
            raise InputError(f"`targets` are {CLASSES!r} (or a matrix of labels) or {REAL!r}; found {self.targets!r}.")
        if y is None:
            return False
        given = np.asarray(y)
        return self.targets == REAL or (given.ndim == 2 and given.shape[1] > 1)

    def _matrix(self, y: ArrayLike) -> tuple[Array, bool]:
        """The targets as a matrix, and whether they came as one column."""
        given = np.asarray(y)
        if given.dtype.kind not in "iubf":
            try:
                given = given.astype(np.float64)
            except (ValueError, TypeError) as error:
                raise InputError(f"Unknown label type: targets must be numbers; found {given.dtype}.") from error
        found = real_targets(given.reshape(len(given), -1) if given.ndim == 1 else given)
        assert found is not None
        return found, given.ndim == 1

    def _fit_targets(self, rows: NDArray[Any], y: ArrayLike, groups: ArrayLike | None) -> None:
        matrix, self._one_column = self._matrix(y)
        kind = REAL if self.targets == REAL else target_kind(matrix)
        intercept = "free" if self.fit_intercept else "none"
        if self.class_weight is not None:
            raise InputError("Class weights belong to classes; these are several labels or real targets.")
        self.stats_ = target_statistics(rows, matrix, self._target_design(matrix.shape[1], intercept, kind))
        alpha, paths = self.alpha, None
        chances = self.probability and kind == LABELS
        if alpha == "auto" or chances:
            paths = TargetPaths.of(self.stats_, scaling=self.scaling, standardise=self.standardise)
        if alpha == "auto" and paths is not None:
            alpha, self.validation_ = paths.choose(rows, matrix, groups=groups)
        self._solve_targets(alpha)
        if chances and paths is not None:
            left_out = paths.left_out_scores(rows, matrix, ridge=float(self.alpha_), groups=groups)
            self.temperature_: Any = np.array(label_temperatures(left_out, matrix))

    def _target_design(self, targets: int, intercept: str, kind: str) -> TargetDesign:
        return TargetDesign(self.n_features_in_, targets, self.row_view, intercept, self.arithmetic, targets=kind)

    def _target_sums(self, rows: NDArray[Any], y: ArrayLike) -> TargetStats:
        """The statistics of further rows with the same targets."""
        return target_statistics(rows, self._matrix(y)[0], self.stats_.design)

    def _solve_targets(self, alpha: Any) -> None:
        if isinstance(alpha, str):
            raise InputError(f'alpha must be a number or "auto"; found {alpha!r}.')
        found = fit(self.stats_, float(alpha), scaling=self.scaling, standardise=self.standardise)
        self.alpha_, self.solution_ = alpha, found.solution
        self.head_ = head = head_of(found)
        threshold = HALF if self._kind == LABELS else 0.0
        self.coef_, self.intercept_ = head.params[:-1].T, head.params[-1] - threshold
        if self._one_column:
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        if self._kind == LABELS:
            self.classes_ = np.array([0, 1])

    @property
    def _kind(self) -> str:
        return str(self.stats_.design.targets)

    def _target_scores(self, rows: NDArray[Any]) -> Array:
        """Real numbers as they are; labels less the half that parts 0 from 1."""
        found = scores(self.head_, rows) - (HALF if self._kind == LABELS else 0.0)
        return found[:, 0] if self._one_column else found

    def _target_guesses(self, rows: NDArray[Any]) -> NDArray[Any]:
        found = self._target_scores(rows)
        return found if self._kind == REAL else (found > 0).astype(np.int64)

    def _target_chances(self, rows: NDArray[Any]) -> Array:
        return label_chances(scores(self.head_, rows), self.temperature_)

    def _target_score(self, rows: NDArray[Any], y: ArrayLike) -> float:
        """The mean R2 of real targets, or the share of known labels that are right."""
        truth, guesses = self._matrix(y)[0], self._target_guesses(rows).reshape(len(rows), -1)
        seen = ~np.isnan(truth)
        if self._kind == LABELS:
            return float((guesses == truth)[seen].mean())
        errors = np.where(seen, truth - guesses, 0.0)
        around = np.where(seen, truth - np.nanmean(truth, axis=0), 0.0)
        spread = np.square(around).sum(axis=0)
        return float(1 - (np.square(errors).sum(axis=0) / np.where(spread > 0, spread, np.nan)).mean())
