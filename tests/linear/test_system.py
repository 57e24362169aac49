"""Views done on statistics equal views done on rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

from probekit.errors import InputError
from probekit.linear.design import INTERCEPTS, Design
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.linear.system import STANDARDISATIONS, Standardisation, standardisation_of
from tests.linear.conftest import Data
from tests.oracles import columns, least_squares, one_hot, relative


def explicit(rows: np.ndarray, view: str) -> np.ndarray:
    """The rows in the view, by scikit-learn."""
    scaler = StandardScaler(with_mean=view != "none", with_std=view == "standardise")
    return np.asarray(scaler.fit_transform(rows.astype(np.float64)))


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("view", STANDARDISATIONS)
def test_a_view_folds_back_onto_raw_embeddings(data: Data, intercept: str, view: str) -> None:
    rows, labels = data
    head = fit(statistics(rows, labels, Design(12, 4, intercept=intercept)), 0.02, standardise=view)
    X = columns(explicit(rows, view), intercept=intercept)
    wanted = X @ least_squares(X, one_hot(labels, 4), penalty=300 * 0.02, free=intercept == "free")
    assert relative(columns(rows.astype(np.float64)) @ head.params, wanted) < 1e-10


@pytest.mark.parametrize("intercept", ["penalised", "none"])
def test_a_view_can_come_from_the_servers_set(data: Data, intercept: str) -> None:
    rows, labels = data
    design = Design(12, 4, intercept=intercept)
    server = statistics(rows[:40], labels[:40], design)
    head = fit(statistics(rows, labels, design), 0.02, standardise=standardisation_of(server, "standardise"))
    scaler = StandardScaler().fit(rows[:40].astype(np.float64))
    X = columns(scaler.transform(rows.astype(np.float64)), intercept=intercept)
    wanted = X @ least_squares(X, one_hot(labels, 4), penalty=6.0)
    assert relative(columns(rows.astype(np.float64)) @ head.params, wanted) < 1e-10
    assert head.recipe["fit_view"] == "standardise"


def test_a_given_view_is_taken_as_it_is(data: Data) -> None:
    rows, labels = data
    view = Standardisation("mine", np.full(12, 0.5), np.linspace(1, 2, 12))
    head = fit(statistics(rows, labels, Design(12, 4)), 0.1, standardise=view)
    X = columns((rows.astype(np.float64) - 0.5) / np.linspace(1, 2, 12))
    wanted = X @ least_squares(X, one_hot(labels, 4), penalty=30.0)
    assert relative(columns(rows.astype(np.float64)) @ head.params, wanted) < 1e-10


def test_a_constant_column_is_left_at_its_scale(data: Data) -> None:
    rows = data[0].copy()
    rows[:, 3] = 0.7
    view = standardisation_of(statistics(rows, data[1], Design(12, 4)), "standardise")
    assert view.scale[3] == 1
    assert np.isclose(view.scale[4], rows[:, 4].astype(np.float64).std())


@pytest.mark.parametrize("intercept", [True, False])
def test_balanced_classes_are_those_of_scikit_learn(data: Data, intercept: bool) -> None:
    rows, labels = data[0].astype(np.float64), np.minimum(data[1], 2)
    design = Design(12, 3, intercept="free" if intercept else "none", per_class=True)
    head = fit(statistics(rows, labels, design), 3.0, scaling="sum", class_weight="balanced")
    weights = 300 / (3 * np.bincount(labels))
    X = columns(rows, intercept=design.intercept)
    wanted = least_squares(X, one_hot(labels, 3), penalty=3.0, free=intercept, weights=weights[labels])
    assert relative(head.params[: len(wanted)], wanted) < 1e-10
    if intercept:
        model = RidgeClassifier(alpha=3.0, class_weight="balanced").fit(rows, labels)
        assert relative(2 * head.params[:-1].T, model.coef_) < 1e-8


def test_weights_need_one_gram_per_class(data: Data) -> None:
    with pytest.raises(InputError, match="per_class=True"):
        fit(statistics(*data, Design(12, 4)), 1.0, class_weight="balanced")


def test_unknown_views_and_weights_are_refused(data: Data) -> None:
    stats = statistics(*data, Design(12, 4, per_class=True))
    with pytest.raises(InputError, match="none, centre, standardise"):
        fit(stats, 1.0, standardise="whiten")
    with pytest.raises(InputError, match="one weight, 0 or more"):
        fit(stats, 1.0, class_weight=[1.0, 2.0])
    with pytest.raises(InputError, match="balanced"):
        fit(stats, 1.0, class_weight="even")
