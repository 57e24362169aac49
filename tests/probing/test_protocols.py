"""Published probes against loops of their own, written with the libraries that they use."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.extraction.sources import RowSplits
from probekit.linear.logistic import fit_path
from probekit.probing import ProbeResult, probe
from probekit.probing.options import ProbeOptions
from probekit.probing.protocols import CLIP_CS, DINO_CS, PROTOCOLS

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """Pixels of handwritten digits as training and test rows."""

    X: Floats
    y: Labels
    X_test: Floats
    y_test: Labels

    def scaled(self, columns: Floats) -> Digits:
        return Digits(self.X * columns, self.y, self.X_test * columns, self.y_test)

    def probe(self, **options: Any) -> ProbeResult:
        test = (self.X_test, self.y_test)
        return probe((self.X, self.y), test=test, controls=False, **options)


def read_digits(rows: int) -> Digits:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:rows], order[-500:]
    return Digits(X[train] / 16, y[train], X[test] / 16, y[test])


@pytest.fixture(scope="module")
def digits() -> Digits:
    return read_digits(300)


def fit_sklearn(X: Floats, y: Labels, C: float, *, tol: float, max_iter: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=C, tol=tol, max_iter=max_iter).fit(X, y)


def objective(weights: Floats, intercept: Floats, X: Floats, y: Labels, C: float) -> float:
    """With weights that sum to 0 over the classes, as at the minimum."""
    weights = weights - weights.mean(axis=1, keepdims=True)
    scores = X @ weights + intercept
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    return float(0.5 * np.square(weights).sum() + C * losses.sum())


def check_against(digits: Digits, result: ProbeResult, C: float, model: Any) -> None:
    """The same C and predictions."""
    head = result.heads["logistic"]
    assert head.fit["C"] == pytest.approx(C, rel=1e-6)
    check_fit(digits, C, head.weights, head.intercept, float(head.fit["gap"]), model)
    assert result.accuracy == pytest.approx(model.score(digits.X_test, digits.y_test), abs=0.004)


def check_fit(
    digits: Digits, C: float, weights: Floats, intercept: Floats, gap: float, model: Any
) -> bool:
    """The same predictions where scikit-learn is at the minimum; else both gaps are printed."""
    ours = objective(weights, intercept, digits.X, digits.y, C)
    theirs = objective(model.coef_.T, model.intercept_, digits.X, digits.y, C)
    their_gap = theirs / ours - 1
    assert their_gap > -gap
    predicted = (digits.X_test @ weights + intercept).argmax(axis=1)
    has_converged = their_gap < 1e-5
    if has_converged:
        assert np.array_equal(predicted, model.predict(digits.X_test))
    else:
        print(f"C = {C:g}: gap of probekit at most {gap:.1e}, of scikit-learn {their_gap:.1e}")
    return has_converged


def check_dinov3(digits: Digits) -> None:
    shuffled = torch.randperm(len(digits.y), generator=torch.Generator().manual_seed(0)).numpy()
    validation = np.zeros(len(digits.y), bool)
    for number in range(10):
        members = shuffled[digits.y[shuffled] == number]
        validation[members[: max(1, int(0.1 * len(members)))]] = True
    X, y = digits.X[~validation], digits.y[~validation]
    accuracies = {}
    for C in (10 ** torch.linspace(-6, 5, 45)).tolist():
        model = fit_sklearn(X, y, C, tol=1e-12, max_iter=1000)
        accuracies[C] = model.score(digits.X[validation], digits.y[validation])
    best = max(accuracies.values())
    C = next(C for C, accuracy in accuracies.items() if accuracy == best)
    model = fit_sklearn(digits.X, digits.y, C, tol=1e-12, max_iter=1000)
    check_against(digits, digits.probe(protocol="dinov3"), C, model)


def check_clip(digits: Digits) -> None:
    """Coarse, then halving around the peak, on validation rows that the data bring."""
    rows = EmbeddingSet.from_numpy(digits.X, digits.y)
    fitting, choosing = np.arange(len(rows) - 60), np.arange(len(rows) - 60, len(rows))
    accuracies: dict[int, float] = {}

    def accuracy(power: int) -> float:
        if power not in accuracies:
            C = 10 ** (power / 8)
            model = fit_sklearn(digits.X[fitting], digits.y[fitting], C, tol=1e-8, max_iter=1000)
            accuracies[power] = model.score(digits.X[choosing], digits.y[choosing])
        return accuracies[power]

    powers = list(range(-48, 49, 16))
    for distance in (8, 4, 2, 1):
        peak = max(sorted(powers), key=accuracy)
        powers += [power for power in (peak - distance, peak + distance) if abs(power) <= 48]
    C = 10 ** (max(sorted(powers), key=accuracy) / 8)
    model = fit_sklearn(digits.X, digits.y, C, tol=1e-8, max_iter=1000)
    test = EmbeddingSet.from_numpy(digits.X_test, digits.y_test)
    splits = RowSplits(rows.take(fitting), rows.take(choosing), test)
    check_against(digits, probe(splits, protocol="clip", controls=False), C, model)


@pytest.mark.parametrize("check", [check_dinov3, check_clip])
def test_a_protocol_is_its_own_loop(check: Callable[[Digits], None], digits: Digits) -> None:
    check(digits)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_dinov3, check_clip])
def test_a_protocol_is_its_own_loop_on_1000_rows(check: Callable[[Digits], None]) -> None:
    check(read_digits(1000))


@pytest.mark.slow
@pytest.mark.parametrize(("last_scale", "expected"), [(1.0, 45), (0.01, 38)])
def test_every_c_of_dinov3_is_scikit_learns(last_scale: float, expected: int) -> None:
    """Where columns differ in scale, 1,000 iterations of scikit-learn do not end at the minimum."""
    digits = read_digits(1000).scaled(np.geomspace(1, last_scale, 64))
    converged = []
    for fit in fit_path(digits.X, digits.y, DINO_CS):
        model = fit_sklearn(digits.X, digits.y, fit.C, tol=1e-12, max_iter=1000)
        weights, intercept = fit.params[:-1], fit.params[-1]
        converged.append(check_fit(digits, fit.C, weights, intercept, fit.gap, model))
    assert len(converged) == 45
    assert sum(converged) >= expected


def test_dinov2_chooses_by_a_tenth_at_random(digits: Digits) -> None:
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0)).numpy()
    rows = EmbeddingSet.from_numpy(digits.X, digits.y)
    test = EmbeddingSet.from_numpy(digits.X_test, digits.y_test)
    splits = RowSplits(rows.take(order[30:]), rows.take(order[:30]), test)
    expected = probe(splits, protocol="dinov2", controls=False)
    result = digits.probe(protocol="dinov2")
    assert result.cells[0].fit["C"] == expected.cells[0].fit["C"]
    assert result.accuracy == expected.accuracy


def test_patho_bench_is_scikit_learn_at_c_1(digits: Digits) -> None:
    """Validation rows are in no head."""
    rows = EmbeddingSet.from_numpy(digits.X, digits.y)
    test = EmbeddingSet.from_numpy(digits.X_test, digits.y_test)
    splits = RowSplits(rows.take(np.arange(200)), rows.take(np.arange(200, 300)), test)
    result = probe(splits, protocol="patho-bench", controls=False)
    model = LogisticRegression(C=1.0, max_iter=10000).fit(digits.X[:200], digits.y[:200])
    predicted = result.heads["logistic"].predict(digits.X_test)
    assert np.array_equal(predicted, model.predict(digits.X_test))


def test_mteb_is_the_mean_of_ten_heads(digits: Digits) -> None:
    (shot,) = digits.probe(protocol="mteb").cells[0].few_shot
    order = list(range(len(digits.y)))
    accuracies = []
    for _ in range(10):
        np.random.RandomState(42).shuffle(order)
        picked: list[int] = []
        for row in order:
            if sum(digits.y[other] == digits.y[row] for other in picked) < 8:
                picked.append(row)
        model = LogisticRegression(max_iter=1000).fit(digits.X[picked], digits.y[picked])
        accuracies.append(model.score(digits.X_test, digits.y_test))
    assert shot.accuracies == pytest.approx(accuracies, abs=0.003)
    assert shot.accuracy is not None
    assert shot.accuracy.value == pytest.approx(np.mean(accuracies), abs=0.001)


def test_big_vision_is_least_squares_with_a_bias_of_100(digits: Digits) -> None:
    (cell,) = digits.probe(protocol="big-vision").cells
    assert [shot.shots for shot in cell.few_shot] == [1, 5, 10, 25]
    for shot in cell.few_shot[:3]:
        for seed, accuracy in enumerate(shot.accuracies):
            generator = np.random.default_rng(seed)
            orders = [generator.permutation(np.where(digits.y == c)[0]) for c in range(10)]
            rows = np.concatenate([order[: shot.shots] for order in orders])
            mean, deviation = digits.X[rows].mean(axis=0), digits.X[rows].std(axis=0) + 1e-5
            x = np.pad((digits.X[rows] - mean) / deviation, ((0, 0), (0, 1)), constant_values=100)
            Y = 2 * np.eye(10)[digits.y[rows]] - 1
            w = x.T @ np.linalg.solve(x @ x.T + 1024 * np.eye(len(x)), Y)
            test = (digits.X_test - mean) / deviation
            scores = np.pad(test, ((0, 0), (0, 1)), constant_values=100) @ w
            assert accuracy == (scores.argmax(axis=1) == digits.y_test).mean()


def test_neighbors_of_dinov3_are_four_cells(digits: Digits) -> None:
    result = digits.probe(protocol="dinov3", heads="knn")
    assert [cell.head for cell in result.cells] == ["knn:10", "knn:20", "knn:100", "knn:200"]
    assert [cell.fit["k"] for cell in result.cells] == [10, 20, 100, 200]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_permuted_test_labels_change_no_choice(protocol: str, digits: Digits) -> None:
    generator = np.random.default_rng(0)
    permuted = Digits(digits.X, digits.y, digits.X_test, generator.permutation(digits.y_test))
    first, second = (data.probe(protocol=protocol).cells[0] for data in (digits, permuted))
    assert first.fit == second.fit
    if first.fitted is not None:
        assert second.fitted is not None
        assert first.fitted.digest == second.fitted.digest


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"normalize": "l2"}, ["--normalize", "none", "l2"]),
        ({"C": 1.0}, ["--c", "auto", "1.0"]),
        ({"Cs": (0.1, 1.0)}, ["--cs", "45 values"]),
        ({"heads": "ridge"}, ["--head", "logistic", "ridge"]),
        ({"knn": 5}, ["knn:10", "knn:5"]),
        ({"backbone": "hf:facebook/dinov2-base#mean"}, ["#cls", "#mean"]),
    ],
)
def test_what_conflicts_is_refused(
    options: dict[str, Any], shown: list[str], digits: Digits
) -> None:
    with pytest.raises(InputError) as error:
        digits.probe(protocol="dinov3", **options)
    for text in ("dinov3", *shown):
        assert text in str(error.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_targets_have_no_protocol(protocol: str, digits: Digits) -> None:
    labels = np.stack([digits.y == 3, digits.y % 2 == 0], axis=1).astype(float)
    with pytest.raises(InputError, match=f"{protocol}.*class labels"):
        probe((digits.X, labels), protocol=protocol, controls=False)


def test_what_agrees_is_taken_and_an_unknown_name_refused(digits: Digits) -> None:
    options = ProbeOptions.of(protocol="dinov3", normalize="none", Cs=list(DINO_CS), seed=3)
    assert options == ProbeOptions.of(protocol="dinov3", seed=3)
    with pytest.raises(NotFoundError, match="dinov3"):
        digits.probe(protocol="dinov4")


def test_the_grids_are_those_of_the_files() -> None:
    assert pytest.approx((10 ** torch.linspace(-6, 5, 45)).tolist(), rel=1e-6) == list(DINO_CS)
    assert len(CLIP_CS) == 97
    assert min(abs(C / 0.316 - 1) for C in CLIP_CS) < 1e-3  # of CLIP's README


def test_the_result_says_what_was_set(digits: Digits) -> None:
    text = " ".join(digits.probe(protocol="patho-bench").legend)
    for shown in ("patho-bench", "LinearProbeExperiment.py", "C 1.0", "Not verified"):
        assert shown in text
