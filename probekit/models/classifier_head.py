"""What heads as scikit-learn classifiers share: classes, scores and the way to a `LinearHead`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.errors import InputError
from probekit.linear.design import LinearFit
from probekit.models.heads import LinearHead, head_of
from probekit.models.serving import scores
from probekit.values import Array, Indices


class ClassifierHead(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What the two heads share: classes, scores and the way to a `LinearHead`."""

    head_: LinearHead
    classes_: NDArray[Any]

    def decision_function(self, X: ArrayLike) -> Array:
        """The score of each class; of the second alone where there are two."""
        found = self._scores(X)
        return self._one(found.T).T if len(self.classes_) == 2 else found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the highest score."""
        check_is_fitted(self)
        found = self.decision_function(X)
        chosen = (found > 0).astype(np.int64) if found.ndim == 1 else np.argmax(found, axis=1)
        return np.asarray(self.classes_[chosen])

    def _scores(self, X: ArrayLike) -> Array:
        rows = self._rows(X)
        return scores(self.head_, rows)

    def _rows(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=[np.float64, np.float32]))

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        rows, labels = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        return rows, np.asarray(labels)

    def _numbers(self, labels: NDArray[Any]) -> Indices:
        unknown = np.setdiff1d(labels, self.classes_)
        if unknown.size:
            raise InputError(f"The classes are {list(self.classes_)}; found {unknown[0]!r} among the labels.")
        return np.searchsorted(self.classes_, labels).astype(np.int64)

    def _keep(self, fit: LinearFit) -> None:
        self.head_ = head = head_of(fit, classes=tuple(map(str, self.classes_)))
        both = self._one(head.params.T) if len(self.classes_) == 2 else head.params.T
        self.coef_, self.intercept_ = np.atleast_2d(both[..., :-1]), np.atleast_1d(both[..., -1])

    def _one(self, pair: Array) -> Array:
        """What stands for two classes: the second's values."""
        return np.asarray(pair[1])
