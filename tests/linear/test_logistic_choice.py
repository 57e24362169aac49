"""The choice of C against a fit of scikit-learn for every fold and C."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from probekit.errors import InputError
from probekit.linear.folds import draw_folds
from probekit.linear.logistic import CS, fit_path
from probekit.linear.logistic_choice import choose_fit
from probekit.progress import Step
from tests.oracles import random_rows

Array = np.ndarray
SOME = (1e-3, 0.03, 0.3, 3.0, 30.0, 1e3)


def digits(count: int = 150) -> tuple[Array, Array, Array]:
    X, y = load_digits(return_X_y=True)
    X = X[y < 4, ::2][:count] / 16
    y = y[y < 4][:count]
    return X, y, draw_folds(np.arange(count), y, 0)


def left_out_losses(
    X: Array, y: Array, folds: Array, C: float, weights: Array
) -> tuple[float, float]:
    """Log loss and share of wrong rows, over rows whose class the other folds have."""
    losses = np.full(len(y), np.nan)
    wrong = np.full(len(y), np.nan)
    for fold in np.unique(folds[folds >= 0]):
        outside = (folds != fold) & (weights > 0)
        inside = np.flatnonzero((folds == fold) & np.isin(y, y[outside]))
        if not len(inside) or len(np.unique(y[outside])) < 2:
            continue
        model = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X[outside], y[outside], sample_weight=weights[outside])
        log_shares = model.predict_log_proba(X[inside])
        column = np.searchsorted(model.classes_, y[inside])
        losses[inside] = -log_shares[np.arange(len(inside)), column]
        wrong[inside] = model.predict(X[inside]) != y[inside]
    used = np.isfinite(losses)
    total = weights[used].sum()
    return float(weights[used] @ losses[used] / total), float(weights[used] @ wrong[used] / total)


@pytest.mark.parametrize("kind", ["classes", "two classes", "weighted", "rare class"])
def test_errors_are_those_of_refits(kind: str) -> None:
    X, y, folds = digits()
    weights = np.ones(len(X))
    if kind == "two classes":
        y = y % 2
    if kind == "weighted":
        weights = np.random.default_rng(0).uniform(0, 3, len(X)) * (np.arange(len(X)) % 5 > 0)
    if kind == "rare class":  # in one fold only
        y = np.where((y == 3) & (folds != 2), 0, y)
    fit, choice = choose_fit(X, y, folds, Cs=SOME, sample_weight=weights)
    expected = np.array([left_out_losses(X, y, folds, C, weights)[0] for C in SOME])
    assert np.allclose(choice.errors, expected[: len(choice.Cs)], rtol=3e-3)
    assert choice.value == SOME[int(np.argmin(expected))] == fit.C
    assert choice.method == "5 folds"
    assert max(choice.gaps) <= 1e-5
    assert choice.gap == fit.gap <= 1e-6
    (whole,) = fit_path(X, y, [choice.value], sample_weight=weights, tolerance=1e-12)
    assert np.allclose(fit.params, whole.params, atol=3e-3)


def test_several_labels_are_added() -> None:
    X, y, folds = digits()
    labels = np.stack([y == 1, y > 1], axis=1).astype(float)
    _, choice = choose_fit(X, labels, folds, Cs=SOME, patience=None)
    ones = np.ones(len(X))
    expected = [
        np.mean([left_out_losses(X, column, folds, C, ones)[0] for column in labels.T])
        for C in SOME
    ]
    assert np.allclose(choice.errors, expected, rtol=3e-3)


@pytest.mark.parametrize("refit", [True, False])
def test_validation_rows_choose_by_accuracy(refit: bool) -> None:
    X, y, _ = digits()
    is_validation = np.arange(len(X)) >= 100
    folds = np.where(is_validation, 0, -1)
    fit, choice = choose_fit(X, y, folds, Cs=SOME, criterion="accuracy", refit=refit, patience=None)
    ones = np.ones(len(X))
    expected = np.array([left_out_losses(X, y, folds, C, ones)[1] for C in SOME])
    assert np.allclose(choice.errors, expected)
    assert choice.value == SOME[int(np.argmin(expected))]
    assert choice.method == "validation"
    rows = slice(None) if refit else ~is_validation
    (whole,) = fit_path(X[rows], y[rows], [choice.value], tolerance=1e-12)
    assert np.allclose(fit.params, whole.params, atol=3e-3)


def test_it_stops_four_steps_past_the_best() -> None:
    X, y, folds = digits()
    steps: list[Step] = []
    _, choice = choose_fit(X, y, folds, progress=steps.append)
    assert np.argmin(choice.errors) == len(choice.Cs) - 5
    assert np.array_equal(choice.Cs, CS[: len(choice.Cs)])
    assert [step.done for step in steps] == list(range(1, len(choice.Cs) + 1))
    _, whole = choose_fit(X, y, folds, Cs=CS, patience=None)
    assert whole.value == choice.value
    assert len(whole.Cs) == len(CS)


@pytest.mark.parametrize(("C", "is_covered"), [(1e6, True), (1e-7, True), (1e9, False)])
def test_a_choice_at_the_edge_continues_the_grid_once(C: float, is_covered: bool) -> None:
    X, y, folds = digits()
    _, plain = choose_fit(X, y, folds)
    assert not plain.extended
    unit = np.sqrt(plain.value / C)  # where C is the best, but for the grid's steps
    _, choice = choose_fit(unit * X, y, folds)
    assert choice.extended
    assert not CS[0] <= choice.value <= CS[-1]
    assert choice.at_grid_edge != is_covered
    assert (np.diff(choice.Cs) > 0).all()
    if is_covered:
        assert choice.value == pytest.approx(C, rel=1)
        assert choice.errors.min() == pytest.approx(plain.errors.min(), rel=0.02)


def test_a_grid_that_was_given_is_not_continued() -> None:
    X, y, folds = digits()
    _, choice = choose_fit(X, y, folds, Cs=[1e-3, 1e-2])
    assert choice.at_grid_edge
    assert not choice.extended
    assert choice.Cs.tolist() == [1e-3, 1e-2]


def test_one_row_a_class_leaves_nothing_to_choose_by() -> None:
    X, _ = random_rows(5, 20, 5)
    _, choice = choose_fit(X, np.arange(5), np.arange(5))
    assert (choice.value, choice.method, len(choice.Cs)) == (1.0, "default", 0)


def test_torch_chooses_as_numpy() -> None:
    X, y, folds = digits()
    _, expected = choose_fit(X, y, folds)
    fit, choice = choose_fit(torch.asarray(X), torch.asarray(y), torch.asarray(folds))
    assert choice.value == expected.value
    assert np.allclose(choice.errors, expected.errors, rtol=1e-3)
    assert choice.gap <= 1e-6
    assert isinstance(fit.params, torch.Tensor)


def test_what_cannot_be_chosen_is_refused() -> None:
    X, y, folds = digits(60)
    with pytest.raises(InputError, match="5 folds and refit=False"):
        choose_fit(X, y, folds, refit=False)
    with pytest.raises(InputError, match="0 folds"):
        choose_fit(X, y, np.full(60, -1))
    with pytest.raises(InputError, match="found 'auc'"):
        choose_fit(X, y, folds, criterion="auc")  # type: ignore[arg-type]
    held_out = np.where(y == 2, 0, -1)
    held_out[np.flatnonzero(y == 1)[0]] = 0
    with pytest.raises(InputError, match="found 3 of 4"):
        choose_fit(X, y, held_out, refit=False)
