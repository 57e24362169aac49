"""Several labels and real targets, some unknown: every one as scikit-learn's Ridge on the rows that know it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from probekit.errors import InputError, MismatchError
from probekit.linear.ridge import fit
from probekit.linear.target_path import TargetPaths
from probekit.linear.targets import TargetDesign, TargetStats, target_statistics

Array = NDArray[np.float64]
MISSING = ("none", "sources", "anywhere")


def made(missing: str, *, rows: int = 160, targets: int = 4) -> tuple[Array, Array]:
    """Rows and targets; some of these unknown to whole sources of rows, or anywhere."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(rows, 7)) + 1
    Y = X @ generator.normal(size=(7, targets)) + generator.normal(size=(rows, targets)) + 5
    if missing == "sources":
        Y[: rows // 2, :2] = np.nan
        Y[rows // 3 : rows // 2, 3:] = np.nan
    if missing == "anywhere":
        Y[generator.random(Y.shape) < 0.35] = np.nan
        Y[7] = np.nan
    return X, Y


def ridges(X: Array, Y: Array, alpha: float, *, intercept: str = "free", scaling: str = "sum") -> Array:
    """scikit-learn's on each target's known rows: (d + 1, k)."""
    found = []
    for y in Y.T:
        seen = ~np.isnan(y)
        columns = np.hstack([X, np.ones((len(X), 1))]) if intercept == "penalised" else X
        weight = alpha * (seen.sum() if scaling == "mean" else 1)
        one = Ridge(alpha=weight, fit_intercept=intercept == "free", solver="svd").fit(columns[seen], y[seen])
        found.append(one.coef_ if intercept == "penalised" else np.append(one.coef_, one.intercept_))
    return np.array(found).T


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("intercept", ["free", "penalised", "none"])
@pytest.mark.parametrize("scaling", ["sum", "mean"])
def test_every_target_is_ridge_on_the_rows_that_know_it(missing: str, intercept: str, scaling: str) -> None:
    X, Y = made(missing)
    stats = target_statistics(X, Y, TargetDesign(7, 4, intercept=intercept))
    assert len(stats.parts) == {"none": 1, "sources": 3, "anywhere": 4}[missing]  # patterns or targets, the fewer
    assert stats.count == int((~np.isnan(Y)).any(axis=1).sum())
    found = fit(stats, 0.3, scaling=scaling).params
    assert np.abs(found - ridges(X, Y, 0.3, intercept=intercept, scaling=scaling)).max() < 1e-8


@pytest.mark.parametrize("missing", MISSING)
def test_statistics_add_up_and_come_apart(missing: str) -> None:
    X, Y = made(missing)
    design = TargetDesign(7, 4, intercept="free")
    first, second = (target_statistics(X[some], Y[some], design) for some in (slice(0, 70), slice(70, None)))
    both = first + second
    assert np.abs(fit(both, 0.3).params - ridges(X, Y, 0.3, scaling="mean")).max() < 1e-8
    assert (both + design.zero()).digest == both.digest
    rest = (both - first) if missing != "sources" else second
    assert rest.count == second.count
    if missing != "sources":
        assert np.abs(fit(rest, 0.3).params - ridges(X[70:], Y[70:], 0.3, scaling="mean")).max() < 1e-8
    with pytest.raises(InputError, match="not \\(all\\) in these"):
        second - both
    with pytest.raises(MismatchError, match="different designs"):
        both + TargetDesign(7, 4).zero()


def test_centred_and_scaled_targets_do_not_change_what_is_predicted() -> None:
    X, Y = made("anywhere")
    stats = target_statistics(X, Y, TargetDesign(7, 4, intercept="free"))
    plain, centred = fit(stats, 0.1), fit(stats, 0.1, standardise="centre")
    assert np.abs(plain.params - centred.params).max() < 1e-10
    scaled = fit(stats, 0.1, standardise="standardise").params
    seen = ~np.isnan(Y[:, 0])
    mean, scale = X[seen].mean(axis=0), X[seen].std(axis=0)
    other = Ridge(alpha=0.1 * seen.sum(), solver="svd").fit((X[seen] - mean) / scale, Y[seen, 0])
    assert np.abs(scaled[:-1, 0] - other.coef_ / scale).max() < 1e-10


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("scaling", ["mean", "sum"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_ridge_is_chosen_by_rows_left_out_exactly(missing: str, scaling: str, grouped: bool) -> None:
    X, Y = made(missing, rows=50)
    groups = np.arange(50) % 9 if grouped else np.arange(50)
    paths = TargetPaths.of(target_statistics(X, Y, TargetDesign(7, 4, intercept="free")), scaling=scaling)
    ridge, validation = paths.choose(X, Y, groups=groups if grouped else None)
    found = paths.left_out_scores(X, Y, ridge=ridge, groups=groups if grouped else None)
    wanted = np.full(Y.shape, np.nan)
    for group in np.unique(groups):
        held, rest = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        params = ridges(X[rest], Y[rest], ridge, scaling=scaling)
        wanted[held] = X[held] @ params[:-1] + params[-1]
    wanted[np.isnan(Y)] = np.nan
    assert np.allclose(found, wanted, atol=1e-10, equal_nan=True)
    around = Y - np.nanmean(Y, axis=0)
    errors = np.nansum(np.square(wanted - Y), axis=0) / np.nansum(np.square(around), axis=0)
    assert validation.squared.min() == pytest.approx(errors.mean(), rel=1e-6)


def test_what_cannot_be_is_refused() -> None:
    X, Y = made("none")
    design = TargetDesign(7, 4)
    with pytest.raises(InputError, match="infinite target"):
        target_statistics(X, np.where(np.arange(160)[:, None] == 3, np.inf, Y), design)
    with pytest.raises(InputError, match="needs 4 targets"):
        target_statistics(X, Y[:, :2], design)
    with pytest.raises(InputError, match="row 5 holds NaN"):
        target_statistics(np.where(np.arange(160)[:, None] == 5, np.nan, X), Y, design)
    with pytest.raises(InputError, match="float64"):
        TargetDesign(7, 4, view="l2", arithmetic="exact")
    Y[:, 2] = np.nan
    with pytest.raises(InputError, match="No row knows target 2"):
        fit(target_statistics(X, Y, design), 0.1)
    with pytest.raises(InputError, match="no class weights"):
        fit(target_statistics(X, Y, design), 0.1, class_weight="balanced")
    with pytest.raises(InputError, match="needs shape"):
        TargetStats(design, {"1111": target_statistics(X, Y, design).parts["1101"]}, 160)
