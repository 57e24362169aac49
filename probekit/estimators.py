"""Heads fitted to embeddings, as functions and as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from probekit.arrays import Array, Indices, Json, group_numbers, id_keys
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.heads import Head, task_of
from probekit.linear.calibration import best_temperature, left_out_temperature
from probekit.linear.folds import draw_folds, number_groups
from probekit.linear.knn import Weighting, knn_votes
from probekit.linear.lda import LdaChoice, LdaPath, left_out, search_shrinkage
from probekit.linear.leave_one_out import RidgeSearch, left_out_sample, search_ridge
from probekit.linear.logistic import TOLERANCE, fit_path
from probekit.linear.logistic_choice import PATIENCE, Criterion, LogisticChoice, choose_fit
from probekit.linear.ridge import Intercept, RidgePath, check_C, solve_ridge
from probekit.linear.stats import SufficientStats, check_training_rows, normalized
from probekit.progress import Progress, silent

Ridge = float | str
"""A number, "auto" or "auto:loo" (exact leave-one-out), or "auto:gcv" (from sums alone)."""
AUTO = ("auto", "auto:loo")


def fit_ridge(
    embeddings: EmbeddingSet,
    *,
    ridge: Ridge = "auto",
    intercept: Intercept = "free",
    normalize: str = "none",
    groups: ArrayLike | None = None,
) -> tuple[Head, RidgeSearch]:
    """A ridge head, and how its ridge was chosen.

    groups: rows of one group are left out together, for the ridge and for the temperature of
    `predict_proba`. By default copies are. Numbers are fitted in units of their deviations, so that
    the choice of the ridge does not depend on their units.
    """
    task = task_of(embeddings)
    train = normalized(embeddings, normalize)
    scale = np.ones(train.outputs)
    if task == "numbers":
        assert train.targets is not None
        deviations = train.targets.std(axis=0)
        scale = np.where(deviations > 0, deviations, 1.0)
        train = replace(train, targets=train.targets / scale)
    stats = SufficientStats.from_rows(train)
    path = RidgePath.of(stats, intercept)
    if train.labels is not None and np.bincount(train.labels).max() == 1 and ridge in AUTO:
        # of no left-out row do the others know the class
        choice = RidgeSearch(path.mean_square, "mean square", np.zeros(0), np.zeros(0))
    else:
        choice = search_ridge(path, train, ridge, groups=groups)
    temperature = None
    if task != "numbers":
        try:
            rows, scores = left_out_sample(path, train, choice.value, groups=groups)
            temperature = left_out_temperature(scores, train.take(rows))
        except InputError:  # a row that alone decides its score, or one group only
            pass
    head = Head.from_params(
        solve_ridge(stats, choice.value, intercept) * scale,
        embeddings,
        normalize=normalize,
        temperature=temperature,
        fit={"ridge": choice.value, "ridge_choice": choice.method},
    )
    return head, choice


def fit_lda(
    embeddings: EmbeddingSet,
    *,
    shrinkage: float | str = "auto",
    normalize: str = "none",
    groups: ArrayLike | None = None,
) -> tuple[Head, LdaChoice]:
    """A head by linear discriminant analysis, and how its shrinkage was chosen.

    shrinkage: from 0 (the rows' own covariance) to 1 (a sphere), or "auto", the most accurate on
    left-out rows. With one row a class it is the nearest mean. groups: as in `fit_ridge`.
    """
    train = normalized(embeddings, normalize)
    path = LdaPath.from_rows(train)
    choice = search_shrinkage(path, train, shrinkage, groups=groups)
    fit: dict[str, Json] = {"shrinkage": choice.value, "shrinkage_choice": choice.method}
    return _discriminant(path, choice.value, train, normalize, groups, fit), choice


def fit_nearest_mean(
    embeddings: EmbeddingSet, *, normalize: str = "none", groups: ArrayLike | None = None
) -> Head:
    """The head that predicts the class whose mean is nearest.

    groups: rows of one are left out together, for the temperature of `predict_proba`.
    """
    train = normalized(embeddings, normalize)
    path = LdaPath.from_rows(train)
    return _discriminant(path, None, train, normalize, groups, {})


def _discriminant(
    path: LdaPath,
    shrinkage: float | None,
    train: EmbeddingSet,
    normalize: str,
    groups: ArrayLike | None,
    fit: dict[str, Json],
) -> Head:
    params = path.params(shrinkage)
    temperature = None
    try:
        parts = list(left_out(path, train, [shrinkage], groups=groups))
        if parts and train.labels is not None:
            temperature = best_temperature(
                np.concatenate([part.scores for part in parts]),
                np.concatenate([train.labels[part.rows] for part in parts]),
                np.concatenate([part.weights for part in parts]),
            )
    except InputError:  # one group only
        pass
    return Head.from_params(params, train, normalize=normalize, temperature=temperature, fit=fit)


def fit_logistic(
    embeddings: EmbeddingSet,
    *,
    C: float | str = "auto",
    Cs: Sequence[float] | None = None,
    validation: ArrayLike | None = None,
    criterion: Criterion = "log loss",
    refit: bool = True,
    patience: int | None = PATIENCE,
    class_weight: str | Mapping[str, float] | None = None,
    intercept: Intercept = "free",
    normalize: str = "none",
    tolerance: float = TOLERANCE,
    groups: ArrayLike | None = None,
    progress: Progress = silent,
) -> tuple[Head, LogisticChoice]:
    """A head by logistic regression, scikit-learn's objective, and how its C was chosen.

    C: a number, or "auto": of Cs, the best on held-out rows by the criterion.
    Cs: by default 45 from 1e-6 to 1e5, continued once where the first or last is the best.
    validation: (n,), which rows are held out to choose C; by default five folds are.
    refit: to all rows at the end; False leaves validation rows out of the head.
    patience: stop so many C's past the best, where the error has grown; None tries all.
    class_weight: None, "balanced", or weights by class name; others have weight 1.
    tolerance: the relative gap to the minimum that is certified.
    groups: rows of one are in one fold. By default copies are.
    """
    train = normalized(embeddings, normalize)
    if task_of(train) == "numbers":
        raise InputError(
            f"Logistic regression needs classes, or labels of 0 and 1; {train.source} has numbers. "
            "Use ridge."
        )
    check_training_rows(train)
    options: dict[str, Any] = {
        "outputs": train.outputs,
        "sample_weight": _row_weights(train, class_weight),
        "intercept": intercept,
        "tolerance": tolerance,
        "progress": progress,
    }
    y = train.targets if train.labels is None else train.labels
    if C != "auto":
        (fit,) = fit_path(train.rows, y, [check_C(C)], **options)
        nothing = np.zeros(0)
        choice = LogisticChoice(fit.C, "manual", nothing, nothing, nothing, fit.gap)
    else:
        fit, choice = choose_fit(
            train.rows,
            y,
            _folds(train, validation, groups),
            Cs=Cs,
            criterion=criterion,
            refit=refit,
            patience=patience,
            **options,
        )
    params = fit.params
    if train.labels is None:  # a label's scores are 1 - s and s
        params = params / 2
        params[-1] += 0.5
    head = Head.from_params(
        params,
        embeddings,
        normalize=normalize,
        temperature=1.0,
        fit={"C": choice.value, "C_choice": choice.method, "gap": choice.gap},
    )
    return head, choice


def _row_weights(train: EmbeddingSet, class_weight: str | Mapping[str, float] | None) -> Array:
    weights = train.row_weights
    if class_weight is None:
        return weights
    if train.labels is None:
        raise InputError("class_weight needs classes; found several labels. Leave it out.")
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(
                "class_weight must be None, 'balanced' or weights by class name; found "
                f"{class_weight!r}."
            )
        sizes = np.bincount(train.labels, weights, minlength=train.outputs)
        shares = weights.sum() / (train.outputs * np.where(sizes > 0, sizes, 1.0))
    else:
        unknown = [name for name in class_weight if name not in train.class_names]
        if unknown:
            raise InputError(f"class_weight has {unknown[0]!r}, which is no class. Leave it out.")
        shares = np.array([float(class_weight.get(name, 1.0)) for name in train.class_names])
    return np.asarray(weights * shares[train.labels])


def _folds(train: EmbeddingSet, validation: ArrayLike | None, groups: ArrayLike | None) -> Indices:
    """The fold of every row, or 0 for validation rows and -1 for others."""
    if validation is None:
        units = _content_ranks(train, groups)
        return draw_folds(units, train.labels, seed=0, weights=train.row_weights)
    is_held_out = np.asarray(validation)
    if is_held_out.shape != (len(train),) or is_held_out.dtype != bool:
        raise InputError(
            f"validation must say of each of the {len(train)} rows whether it is held out; found "
            f"shape {is_held_out.shape} and {is_held_out.dtype}."
        )
    return np.where(is_held_out, 0, -1)


def _content_ranks(train: EmbeddingSet, groups: ArrayLike | None) -> Indices:
    """Numbers of what stays together, in an order that is random but not that of the rows."""
    ranks = np.unique(id_keys(train.ids), return_inverse=True)[1]
    if groups is None:
        return ranks
    numbers = number_groups(groups, len(train))
    first = np.full(int(numbers.max()) + 1, len(train))
    np.minimum.at(first, numbers, ranks)
    return np.asarray(np.argsort(np.argsort(first))[numbers])


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The k nearest of these rows by cosine vote for their classes; scores are shares of the votes.

    k: of fewer rows all vote.
    """

    embeddings: EmbeddingSet
    k: int = 20
    temperature: float = 0.07
    weights: Weighting = "dino"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.embeddings.labels is None:
            raise InputError(f"k-NN votes for classes; {self.embeddings.source} has no labels.")
        if self.k < 1 or self.k != int(self.k):
            raise InputError(f"k (--knn) must be a whole number, 1 or more; found {self.k!r}.")
        if not 0 < self.temperature < np.inf:
            raise InputError(f"temperature must be above 0; found {self.temperature!r}.")
        if self.weights not in get_args(Weighting):
            raise InputError(f"weights must be 'dino' or 'uniform'; found {self.weights!r}.")
        if self.threads < 1:
            raise InputError(f"threads must be 1 or more; found {self.threads}.")

    @property
    def normalize(self) -> str:
        return "l2"

    @property
    def fit(self) -> dict[str, Json]:
        return {"k": self.k}

    def decision(self, rows: EmbeddingSet | ArrayLike) -> Array:
        """Each class's share of the votes, (n, classes)."""
        assert self.embeddings.labels is not None
        return knn_votes(
            np.asarray(self.embeddings.rows),
            self.embeddings.labels,
            rows.rows if isinstance(rows, EmbeddingSet) else np.asarray(rows),
            classes=len(self.embeddings.class_names),
            k=int(self.k),
            temperature=self.temperature,
            weights=self.weights,
            threads=self.threads,
        )

    def probabilities(self, scores: Array) -> Array:
        return scores


class _Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What the probes share: checks of X and y, classes, predictions."""

    classes_: NDArray[Any]
    head_: Head | Neighbors

    def decision_function(self, X: ArrayLike) -> Array:
        """The scores of all classes; of two, the second's less the first's."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        scores = self._scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def predict_proba(self, X: ArrayLike) -> Array:
        scores = self._scores(X)
        return self.head_.probabilities(scores)

    def _scores(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return self.head_.decision(rows)

    def _training_set(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[EmbeddingSet, Indices]:
        """Rows of weight above 0 with their classes, and their numbers."""
        rows, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        weights = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
        used = np.flatnonzero(weights > 0)
        self.classes_, numbers = np.unique(labels[used], return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                "Two classes or more with a sample_weight above 0 are needed; found "
                f"{len(self.classes_)} class."
            )
        names = [str(name) for name in self.classes_]
        embeddings = EmbeddingSet.from_numpy(rows[used], numbers, class_names=names)
        if sample_weight is None:
            return embeddings, used
        return replace(embeddings, weights=weights[used].astype(np.float64)), used


class _LinearProbe(_Probe):
    """A probe whose head has weights; coef_ and intercept_: of two, the second's less the first's.

    temperature_: of the softmax over scores; None: no probabilities.
    """

    head_: Head

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit to these rows; rows of a group, or by default copies, are held out together.

        A row of weight 3 counts as three copies of it, which are held out together too.
        """
        embeddings, used = self._training_set(X, y, sample_weight)
        self._fit_head(embeddings, None if groups is None else np.asarray(groups)[used])
        self.temperature_ = self.head_.temperature
        self.coef_ = self.head_.weights.T
        self.intercept_ = self.head_.intercept
        if len(self.classes_) == 2:
            self.coef_ = self.coef_[1:] - self.coef_[:1]
            self.intercept_ = self.intercept_[1:] - self.intercept_[:1]
        return self

    def _fit_head(self, embeddings: EmbeddingSet, groups: NDArray[Any] | None) -> None:
        """Set head_, and what is known of its choice."""


class RidgeProbe(_LinearProbe):
    """Ridge regression on one-hot classes: scikit-learn's RidgeClassifier with alpha = n * ridge.

    ridge: a number, "auto" (exact leave-one-out) or "auto:gcv".
    intercept: "free", or "penalized" like the weights.
    normalize: "none", or "l2" for rows of norm 1.

    Fitted: classes_, coef_ and intercept_ (of two classes, the second's less the first's), ridge_,
    choice_ (all ridges and their errors), temperature_, head_ (saves, needs NumPy alone).
    """

    def __init__(
        self, ridge: Ridge = "auto", *, intercept: Intercept = "free", normalize: str = "none"
    ) -> None:
        self.ridge = ridge
        self.intercept = intercept
        self.normalize = normalize

    def _fit_head(self, embeddings: EmbeddingSet, groups: NDArray[Any] | None) -> None:
        self.head_, self.choice_ = fit_ridge(
            embeddings,
            ridge=self.ridge,
            intercept=self.intercept,
            normalize=self.normalize,
            groups=groups,
        )
        self.ridge_ = self.choice_.value


class LDAProbe(_LinearProbe):
    """Linear discriminant analysis: scikit-learn's with solver="lsqr" and this shrinkage.

    shrinkage: from 0 to 1, or "auto" (the most accurate on rows left out in turn).
    normalize: "none", or "l2" for rows of norm 1.

    Fitted: classes_, coef_, intercept_, shrinkage_, choice_ (all shrinkages and their accuracies),
    temperature_, head_; as in RidgeProbe.
    """

    def __init__(self, shrinkage: float | str = "auto", *, normalize: str = "none") -> None:
        self.shrinkage = shrinkage
        self.normalize = normalize

    def _fit_head(self, embeddings: EmbeddingSet, groups: NDArray[Any] | None) -> None:
        self.head_, self.choice_ = fit_lda(
            embeddings, shrinkage=self.shrinkage, normalize=self.normalize, groups=groups
        )
        self.shrinkage_ = self.choice_.value


class NearestMeanProbe(_LinearProbe):
    """The class whose mean is nearest: scikit-learn's NearestCentroid, with probabilities.

    Fitted: classes_, coef_, intercept_, temperature_, head_; as in RidgeProbe.
    """

    def __init__(self, *, normalize: str = "none") -> None:
        self.normalize = normalize

    def _fit_head(self, embeddings: EmbeddingSet, groups: NDArray[Any] | None) -> None:
        self.head_ = fit_nearest_mean(embeddings, normalize=self.normalize, groups=groups)


def _joined_copies(
    embeddings: EmbeddingSet, groups: NDArray[Any] | None
) -> tuple[EmbeddingSet, NDArray[Any] | None]:
    """One row for all copies of one class and group, of their weight, in an order of their ids."""
    assert embeddings.labels is not None
    ranks = np.unique(id_keys(embeddings.ids), return_inverse=True)[1]
    values = np.zeros(len(embeddings), np.int64) if groups is None else group_numbers(groups)
    keys = np.stack([ranks, embeddings.labels, values], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    weights = np.asarray(np.bincount(inverse, embeddings.row_weights), np.float64)
    joined = replace(embeddings.take(first), weights=weights)
    return joined, None if groups is None else groups[first]


class LogisticProbe(_LinearProbe):
    """Logistic regression on scikit-learn's objective, with C chosen in folds and a certified gap.

    C: a number, or "auto": the one of Cs with the least log loss in five folds.
    class_weight: None, "balanced", or weights by class.
    intercept: "free", or "penalized" like the weights.
    normalize: "none", or "l2" for rows of norm 1.
    tolerance: of the gap to the minimum, relative to the objective.

    Fitted: classes_, coef_ and intercept_ (of two classes, the second's less the first's), C_,
    gap_ (certified), path_ (all C's, their errors and gaps), head_ (saves, needs NumPy alone).
    """

    def __init__(
        self,
        C: float | str = "auto",
        *,
        Cs: Sequence[float] | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        intercept: Intercept = "free",
        normalize: str = "none",
        tolerance: float = TOLERANCE,
    ) -> None:
        self.C = C
        self.Cs = Cs
        self.class_weight = class_weight
        self.intercept = intercept
        self.normalize = normalize
        self.tolerance = tolerance

    def _fit_head(self, embeddings: EmbeddingSet, groups: NDArray[Any] | None) -> None:
        """No order of rows matters, to the last bit."""
        embeddings, groups = _joined_copies(embeddings, groups)
        class_weight = self.class_weight
        if isinstance(class_weight, Mapping):
            class_weight = {str(name): weight for name, weight in class_weight.items()}
        self.head_, self.path_ = fit_logistic(
            embeddings,
            C=self.C,
            Cs=self.Cs,
            class_weight=class_weight,
            intercept=self.intercept,
            normalize=self.normalize,
            tolerance=self.tolerance,
            groups=groups,
        )
        self.C_ = self.path_.value
        self.gap_ = self.path_.gap


class KNNProbe(_Probe):
    """k nearest neighbors by cosine, with DINO's votes exp(similarity / temperature) or equal ones.

    k: of fewer training rows all vote, and k_ says how many.
    weights: "dino" or "uniform"; threads: of faiss.
    """

    head_: Neighbors

    def __init__(
        self,
        k: int = 20,
        *,
        temperature: float = 0.07,
        weights: Weighting = "dino",
        threads: int = 1,
    ) -> None:
        self.k = k
        self.temperature = temperature
        self.weights = weights
        self.threads = threads

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        embeddings, _ = self._training_set(X, y, None)
        self.head_ = Neighbors(embeddings, self.k, self.temperature, self.weights, self.threads)
        self.k_ = min(self.k, len(embeddings))
        return self
