"""Logistic regression against scikit-learn's newton-cholesky, and its gaps against true ones."""

from __future__ import annotations

import itertools
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_expit, softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from probekit.errors import InputError, SolverError
from probekit.linear import newton, rotation
from probekit.linear.logistic import CS, LogisticFit, fit_path
from probekit.linear.ridge import Intercept, check_C
from probekit.progress import Step
from tests.oracles import random_rows

Array = np.ndarray
TIGHT = 1e-13


@dataclass(frozen=True)
class Case:
    X: Array
    y: Array
    weights: Array | None = None
    intercept: Intercept = "free"


def digits(count: int = 250) -> tuple[Array, Array]:
    """Of 6 classes; half of the pixels."""
    X, y = load_digits(return_X_y=True)
    X = X[y < 6, ::2] / 16
    return X[:count], y[y < 6][:count]


def weighted() -> Case:
    X, y = digits(300)
    return Case(X, y, np.random.default_rng(0).uniform(0, 4, 300) * (np.arange(300) % 7 > 0))


def imbalanced() -> Case:
    X, y = digits(300)
    return Case(X, y, np.where(y == 3, 100.0, 0.01))


def labels() -> Case:
    X, y = digits(300)
    return Case(X, np.stack([y == 3, y % 2 == 0, y > 1], axis=1).astype(float))


def separable() -> Case:
    generator = np.random.default_rng(1)
    y = np.arange(60) % 3
    return Case(generator.normal(size=(60, 5)) + 20 * np.eye(5)[y], y)


def shots(count: int) -> Case:
    X, y = digits()
    first = np.concatenate([np.flatnonzero(y == label)[:count] for label in range(6)])
    return Case(X[first], y[first])


def copied_columns() -> Case:
    X, y = digits(120)
    return Case(np.hstack([X, X[:, :16], np.zeros((120, 3)), 5 * X[:, :7]]), y)


def two_classes() -> Case:
    X, y = digits()
    return Case(X, (y % 2 == 1).astype(int))


def penalized() -> Case:
    return Case(*digits(300), intercept="penalized")


def penalized_labels() -> Case:
    case = labels()
    return Case(case.X + 1, case.y, intercept="penalized")


def off_center() -> Case:
    X, y = random_rows(200, 6, 4)
    return Case(3.0 * X.astype(np.float64) + 1000, y)


def tiny_units() -> Case:
    X, y = random_rows(100, 4, 3)
    return Case((1e-3 * X).astype(np.float32), y)


CASES: dict[str, Callable[[], Case]] = {
    "digits": lambda: Case(*digits(400)),
    "weighted": weighted,
    "imbalanced": imbalanced,
    "labels": labels,
    "separable": separable,
    "one row a class": lambda: shots(1),
    "copied columns": copied_columns,
    "two classes": two_classes,
    "penalized": penalized,
    "penalized labels": penalized_labels,
    "off center": off_center,
    "tiny units": tiny_units,
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def fit(case: Case, Cs: list[float], tolerance: float = TIGHT) -> list[LogisticFit]:
    return list(
        fit_path(
            case.X,
            case.y,
            Cs,
            sample_weight=case.weights,
            intercept=case.intercept,
            tolerance=tolerance,
        )
    )


def scores(case: Case, params: Array) -> Array:
    return np.asarray(case.X, float) @ params[:-1] + params[-1]


def probabilities(case: Case, params: Array) -> Array:
    z = scores(case, params)
    return np.exp(log_expit(z)) if case.y.ndim == 2 else softmax(z, axis=1)


def scikit_learn(case: Case, C: float) -> Array:
    """Params (d + 1, k), of two classes w with a column of zeros before it."""
    if case.y.ndim == 2:
        columns = [Case(case.X, y, case.weights, case.intercept) for y in case.y.T]
        return np.stack([scikit_learn(column, C)[:, 1] for column in columns], axis=1)
    X = np.asarray(case.X, float)
    is_free = case.intercept == "free"
    if not is_free:
        X = np.hstack([X, np.ones((len(X), 1))])
    model = LogisticRegression(
        C=C, solver="newton-cholesky", tol=1e-11, max_iter=500, fit_intercept=is_free
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its tolerance is out of reach of rounding
        model.fit(X, case.y, sample_weight=case.weights)
    coefficients = model.coef_
    if is_free:
        coefficients = np.hstack([coefficients, model.intercept_[:, None]])
    if len(coefficients) == 1:
        coefficients = np.vstack([0 * coefficients, coefficients])
    return coefficients.T


def objective(case: Case, params: Array, C: float) -> float:
    """1/2 |W|^2 + C sum_i s_i loss_i, two classes by w = W[:, 1] - W[:, 0]."""
    z = scores(case, params)
    if case.y.ndim == 1 and params.shape[1] == 2:
        params = params[:, 1:] - params[:, :1]
    penalized = params if case.intercept == "penalized" else params[:-1]
    if case.y.ndim == 2:
        losses = -log_expit(np.where(case.y > 0, z, -z)).sum(axis=1)
    else:
        others = z - z[np.arange(len(z)), case.y][:, None]
        others[np.arange(len(z)), case.y] = -np.inf
        top = np.maximum(others.max(axis=1), 0.0)
        sums = np.exp(others - top[:, None]).sum(axis=1)
        losses = np.where(top > 0, top + np.log(np.exp(-top) + sums), np.log1p(sums))
    weights = np.ones(len(z)) if case.weights is None else case.weights
    return float(0.5 * np.square(penalized).sum() + C * weights @ losses)


def test_probabilities_are_those_of_scikit_learn(case: Case) -> None:
    for solution in fit(case, [1e-3, 0.1, 1.0, 10.0, 100.0]):
        expected = probabilities(case, scikit_learn(case, solution.C))
        assert np.abs(probabilities(case, solution.params) - expected).max() < 1e-6


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
def test_no_gap_is_below_the_true_one(case: Case, tolerance: float) -> None:
    for solution in fit(case, [1e-4, 0.01, 1.0, 3.0, 100.0, 1e4], tolerance):
        value = objective(case, solution.params, solution.C)
        assert solution.objective == pytest.approx(value, rel=1e-10)
        minimum = objective(case, scikit_learn(case, solution.C), solution.C)
        assert value - minimum <= (solution.gap + 1e-13) * value
        assert solution.gap <= tolerance


@pytest.mark.slow
def test_the_whole_path_is_certified(case: Case) -> None:
    fits = fit(case, list(CS), 1e-6)
    assert [solution.C for solution in fits] == list(CS)
    for solution in fits[::4]:
        value = objective(case, solution.params, solution.C)
        minimum = objective(case, scikit_learn(case, solution.C), solution.C)
        assert value - minimum <= (solution.gap + 1e-13) * value <= 2e-6 * value


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("source", ["digits", "wide"])
def test_few_rows_are_fitted_at_all_Cs(count: int, source: str) -> None:  # noqa: N802
    case = shots(count)
    if source == "wide":
        generator = np.random.default_rng(count)
        rows = generator.normal(size=(5 * count, 300)) * generator.exponential(size=300) + 2
        case = Case(rows.astype(np.float16), np.arange(5 * count) % 5)
    fits = fit(case, list(CS), 1e-6)  # warnings, such as of overflows, are errors
    assert max(solution.gap for solution in fits) <= 1e-6
    predicted = scores(case, fits[-1].params).argmax(axis=1)
    assert (predicted == case.y).all()


def test_the_order_of_classes_and_rows_is_no_matter() -> None:
    X, y = digits(200)
    order = np.random.default_rng(0).permutation(6)
    rows = np.random.default_rng(1).permutation(200)
    (plain,) = fit(Case(X, y), [3.0])
    (renamed,) = fit(Case(X, order[y]), [3.0])
    (shuffled,) = fit(Case(X[rows], y[rows]), [3.0])
    assert np.allclose(renamed.params[:, order], plain.params, atol=1e-6)
    assert np.allclose(shuffled.params, plain.params, atol=1e-6)


def test_a_row_of_weight_three_is_three_copies() -> None:
    X, y = digits(200)
    weights = np.random.default_rng(0).integers(0, 4, 200)
    (weighted,) = fit(Case(X, y, weights.astype(float)), [1.0])
    (copied,) = fit(Case(np.repeat(X, weights, axis=0), np.repeat(y, weights)), [1.0])
    assert np.allclose(weighted.params, copied.params, atol=1e-6)
    assert weighted.objective == pytest.approx(copied.objective, rel=1e-12)


def test_torch_has_the_solutions_of_numpy(case: Case) -> None:
    Cs = [0.01, 1.0, 100.0]
    weights = None if case.weights is None else torch.asarray(case.weights)
    fits = fit_path(
        torch.asarray(case.X),
        torch.asarray(case.y),
        Cs,
        sample_weight=weights,
        intercept=case.intercept,
        tolerance=TIGHT,
    )
    for ours, expected in zip(fits, fit(case, Cs), strict=True):
        assert isinstance(ours.params, torch.Tensor)
        assert ours.gap <= TIGHT
        difference = probabilities(case, ours.params.numpy()) - probabilities(case, expected.params)
        assert np.abs(difference).max() < 1e-6


def test_an_interrupted_path_goes_on_with_the_same_bits(case: Case) -> None:
    Cs = list(CS[12:36:3])
    whole = fit(case, Cs, 1e-6)
    path = fit_path(case.X, case.y, Cs, sample_weight=case.weights, intercept=case.intercept)
    finished = list(itertools.islice(path, 3))
    steps: list[Step] = []
    resumed = list(
        fit_path(
            case.X,
            case.y,
            Cs,
            sample_weight=case.weights,
            intercept=case.intercept,
            finished=finished,
            progress=steps.append,
        )
    )
    assert [step.done for step in steps] == list(range(4, len(Cs) + 1))
    assert {step.total for step in steps} == {len(Cs)}
    for ours, expected in zip(resumed, whole, strict=True):
        assert np.array_equal(ours.params, expected.params)
        assert ours.gap == expected.gap


def test_fits_of_other_Cs_cannot_be_resumed() -> None:  # noqa: N802
    case = separable()
    fits = fit(case, [0.1, 1.0], 1e-6)
    with pytest.raises(InputError, match=r"C = 0\.1.*0\.2"):
        fit_path(case.X, case.y, [0.2, 1.0], finished=fits)
    with pytest.raises(InputError, match="gap of 1e-12"):
        fit_path(case.X, case.y, [0.1, 1.0], tolerance=1e-12, finished=fits)


def test_a_gap_that_is_not_reached_is_an_error_with_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newton, "NEWTON_STEPS", 2)
    with pytest.raises(SolverError, match=r"gap of 1e-13.*C = 100; found \d.*raise"):
        fit(Case(*digits()), [100.0])


def test_rows_on_disk_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, width, classes = 20_000, 40, 5
    X, y = random_rows(count, width, classes)
    np.save(tmp_path / "rows.npy", X.astype(np.float16))
    monkeypatch.setattr(rotation, "BLOCK_VALUES", 1 << 14)
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    tracemalloc.start()
    fits = list(fit_path(rows, y, [0.01, 1.0]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    copies = 2 * 4 * count * width  # rotated rows, and those that carry curvature
    per_row = 4 * classes + 6 * 8  # what the curvature needs; weights, numbers of rows
    assert peak < copies + per_row * count + (1 << 20)
    assert np.allclose(
        fits[-1].params, fit(Case(X.astype(np.float16), y), [1.0])[0].params, atol=1e-2
    )


def test_classes_without_rows_are_refused() -> None:
    X, y = digits(50)
    with pytest.raises(InputError, match=r"none of class or label 6"):
        fit_path(X, y, [1.0], outputs=7)
    with pytest.raises(InputError, match=r"none of class or label 4"):
        fit_path(X, y, [1.0], sample_weight=(y != 4).astype(float))
    with pytest.raises(InputError, match=r"none of class or label 1"):
        fit_path(X, np.stack([y == 1, y < 10], axis=1).astype(float), [1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Cs": []}, r"found \[\]"),
        ({"Cs": [1.0, 0.5]}, r"found \[1\.0, 0\.5\]"),
        ({"Cs": [0.0, 0.5]}, r"found \[0\.0"),
        ({"tolerance": 1e-15}, "tolerance.*1e-15"),
        ({"y": np.arange(49)}, r"found \(50, 32\) and \(49,\)"),
        ({"y": np.full(50, -1)}, "found -1"),
        ({"y": np.full((50, 2), 0.5)}, "0 or 1"),
        ({"sample_weight": -np.ones(50)}, "sample_weight"),
        ({"sample_weight": np.zeros(50)}, "sample_weight"),
        ({"intercept": "none"}, "found 'none'"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change: dict[str, object], message: str) -> None:
    X, y = digits(50)
    options: dict[str, object] = {"X": X, "y": y, "Cs": [1.0], **change}
    with pytest.raises(InputError, match=message):
        fit_path(**options)  # type: ignore[arg-type]


def test_rows_that_are_not_finite_are_refused() -> None:
    X, y = digits(50)
    X[3, 3] = np.nan
    with pytest.raises(InputError, match="finite"):
        fit_path(X, y, [1.0])


@pytest.mark.parametrize("C", [0.0, -1.0, np.inf, np.nan, "loo", True])
def test_a_C_that_is_none_is_refused_with_its_value(C: float | str) -> None:  # noqa: N802
    with pytest.raises(InputError, match=f"C.*{C}"):
        check_C(C)
