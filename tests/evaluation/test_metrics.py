"""Metrics against scikit-learn's, hand-computed values and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.evaluation import metrics
from probekit.evaluation.intervals import Sampling
from probekit.evaluation.metrics import METRICS, Predictions, metric_of

Array = NDArray[np.float64]


@pytest.fixture
def labels() -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, 6, 200)


@pytest.fixture
def scores(labels: NDArray[np.int64]) -> Array:
    return np.eye(6)[labels] + np.random.default_rng(1).normal(size=(200, 6))


def test_they_are_scikit_learns(labels: NDArray[np.int64], scores: Array) -> None:
    from sklearn.metrics import (
        accuracy_score,
        balanced_accuracy_score,
        confusion_matrix,
        top_k_accuracy_score,
    )

    predicted = scores.argmax(axis=1)
    expected = accuracy_score(labels, predicted)
    assert metrics.accuracy(predicted, labels).value == pytest.approx(expected)
    expected = balanced_accuracy_score(labels, predicted)
    assert metrics.balanced_accuracy(predicted, labels).value == pytest.approx(expected)
    expected = top_k_accuracy_score(labels, scores, k=3)
    assert metrics.top_k(scores, labels, 3).value == pytest.approx(expected)
    table = metrics.confusion(predicted, labels, 6)
    assert np.array_equal(table, confusion_matrix(labels, predicted))
    per_class = metrics.accuracy_per_class(predicted, labels, "abcdef")
    assert per_class["c"].value == pytest.approx(table[2, 2] / table[2].sum())
    assert per_class["c"].count == table[2].sum()


def test_a_tie_counts_against_the_row() -> None:
    tied = np.zeros((4, 6))
    assert metrics.top_k(tied, np.arange(4), 5).value == 0.0
    assert metrics.top_k(tied, np.arange(4), 6).value == 1.0


def test_a_class_that_has_no_score_is_never_among_the_top() -> None:
    scores = np.array([[0.1, 0.2, -np.inf], [0.3, 0.2, -np.inf]])
    assert metrics.top_k(scores, np.array([2, 0]), 5).value == 0.5


def test_classes_without_rows_are_left_out() -> None:
    per_class = metrics.accuracy_per_class(np.array([0, 0]), np.array([0, 2]), ["a", "b", "c"])
    assert list(per_class) == ["a", "c"]
    assert metrics.balanced_accuracy(np.array([0, 0]), np.array([0, 2])).value == 0.5


def test_calibration_by_hand() -> None:
    """Bins are (i/15, (i+1)/15]: 0.6 = 9/15 belongs to the ninth, 0.61 to the tenth."""
    confidences = np.array([0.6, 0.6, 0.61, 1.0])
    hits = np.array([True, False, True, True])
    expected = (abs(1 - 1.2) + abs(1 - 0.61) + 0.0) / 4
    assert metrics.calibration_error(confidences, hits) == pytest.approx(expected)


def _predicted(hits: NDArray[np.bool_], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(hits, classes, (classes + 1) % (classes.max() + 1))


def test_balanced_accuracy_covers_with_rare_classes() -> None:
    generator = np.random.default_rng(2)
    truth = np.linspace(0.5, 0.98, 5)
    covered = 0
    for _ in range(300):
        classes = generator.choice(5, 400, p=[0.5, 0.3, 0.1, 0.06, 0.04])
        predicted = _predicted(generator.random(400) < truth[classes], classes)
        estimate = metrics.balanced_accuracy(predicted, classes)
        covered += estimate.low <= truth.mean() <= estimate.high
    assert 0.92 <= covered / 300 <= 0.985


def test_balanced_accuracy_by_groups_agrees_with_rows_when_groups_are_rows() -> None:
    generator = np.random.default_rng(4)
    classes = generator.integers(0, 3, 300)
    predicted = _predicted(generator.random(300) < 0.7, classes)
    rows = metrics.balanced_accuracy(predicted, classes)
    groups = metrics.balanced_accuracy(predicted, classes, Sampling(groups=np.arange(300)))
    assert groups.value == pytest.approx(rows.value)
    assert (groups.low, groups.high) == pytest.approx((rows.low, rows.high), abs=0.01)


def test_auroc_and_average_precision_are_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    generator = np.random.default_rng(5)
    positive = generator.random((150, 4)) < 0.3
    scores = np.round(positive + generator.normal(size=positive.shape), 1)
    area = metrics.auroc(scores, positive)
    assert area.value == pytest.approx(roc_auc_score(positive, scores))
    precision = metrics.average_precision(scores, positive)
    assert precision.value == pytest.approx(average_precision_score(positive, scores))
    for estimate in (area, precision):
        assert estimate.low < estimate.value < estimate.high
    single = metrics.auroc(scores[:, 0], positive[:, 0])
    assert single.value == pytest.approx(roc_auc_score(positive[:, 0], scores[:, 0]))


def test_delong_covers() -> None:
    from scipy.stats import norm

    generator = np.random.default_rng(6)
    truth = norm.cdf(1.2 / np.sqrt(2))
    covered = 0
    for _ in range(300):
        positive = np.arange(120) < 40
        scores = generator.normal(size=120) + 1.2 * positive
        estimate = metrics.auroc(scores, positive)
        covered += estimate.low <= truth <= estimate.high
    assert 0.92 <= covered / 300 <= 0.98


def test_delong_by_groups_is_wider_where_groups_are_alike() -> None:
    generator = np.random.default_rng(8)
    groups = np.repeat(np.arange(20), 10)
    positive = (np.arange(20) % 2 == 0)[groups]
    scores = positive + generator.normal(size=20)[groups] + 0.1 * generator.normal(size=200)
    rows = metrics.auroc(scores, positive)
    grouped = metrics.auroc(scores, positive, Sampling(groups=groups))
    assert grouped.value == rows.value
    assert grouped.high - grouped.low > 2 * (rows.high - rows.low)


def test_a_perfect_auroc_keeps_a_width() -> None:
    estimate = metrics.auroc(np.arange(20.0), np.arange(20) >= 10)
    assert estimate.value == 1.0
    assert 0.6 < estimate.low < 1.0


def test_r2_is_scikit_learns_and_prints_decimals() -> None:
    from sklearn.metrics import r2_score

    generator = np.random.default_rng(9)
    targets = generator.normal(size=(300, 2)) + 1000
    scores = targets + 0.2 * generator.normal(size=targets.shape)
    estimate = metrics.r2(scores, targets)
    assert estimate.value == pytest.approx(r2_score(targets, scores))
    assert str(estimate).startswith("0.9")
    assert "%" not in str(estimate)
    constant = np.column_stack([targets[:, 0], np.full(300, 7.0)])
    alone = metrics.r2(np.column_stack([scores[:, 0], np.full(300, 7.0)]), constant)
    assert alone.value == pytest.approx(r2_score(targets[:, 0], scores[:, 0]))


def test_r2_covers() -> None:
    generator = np.random.default_rng(10)
    covered = 0
    for seed in range(60):
        targets = generator.normal(size=(150, 1))
        estimate = metrics.r2(
            targets + generator.normal(size=(150, 1)) / 2, targets, Sampling(seed=seed)
        )
        covered += estimate.low <= 0.75 <= estimate.high
    assert covered >= 52


def test_metrics_that_are_not_defined_are_refused() -> None:
    scores = np.zeros((5, 1))
    with pytest.raises(InputError):
        metrics.auroc(scores, np.zeros((5, 1), bool))
    with pytest.raises(InputError):
        metrics.average_precision(scores, np.zeros((5, 1), bool))
    with pytest.raises(InputError):
        metrics.r2(scores, np.ones((5, 1)))
    with pytest.raises(InputError, match=r"1 of 2"):
        metrics.accuracy(np.array([0, 1]), np.array([0, -1]))
    with pytest.raises(InputError):
        metrics.accuracy(np.array([0, 1]), np.array([0]))


def test_independence_is_the_permutation_distribution() -> None:
    """Mean and variance of the agreement, against many permutations within folds."""
    generator = np.random.default_rng(11)
    predictions = np.eye(3)[generator.integers(0, 3, 60)]
    targets = np.eye(3)[generator.integers(0, 3, 60)]
    folds = np.arange(60) % 2
    values = []
    for _ in range(1500):
        order = np.arange(60)
        for fold in (0, 1):
            order[folds == fold] = generator.permutation(order[folds == fold])
        values.append(metrics.independence_z(predictions, targets[order], folds))
    assert np.mean(values) == pytest.approx(0, abs=0.1)
    assert np.std(values) == pytest.approx(1, abs=0.07)
    assert metrics.independence_z(targets, targets, folds) > 8
    assert metrics.independence_z(-targets, targets, folds) < -8
    assert metrics.independence_z(np.ones((60, 3)), targets, folds) == 0.0


def softmax(scores: Array) -> Array:
    powers = np.exp(scores)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def test_metrics_by_name_are_scikit_learns(labels: NDArray[np.int64], scores: Array) -> None:
    from sklearn import metrics as theirs
    from sklearn.preprocessing import label_binarize

    shares = softmax(scores)
    predicted = scores.argmax(axis=1)
    predictions = Predictions(scores, labels, "classes", shares)
    binary = label_binarize(labels, classes=range(6))
    expected = {
        "accuracy": theirs.accuracy_score(labels, predicted),
        "balanced_accuracy": theirs.balanced_accuracy_score(labels, predicted),
        "macro_f1": theirs.f1_score(labels, predicted, average="macro"),
        "top5": theirs.top_k_accuracy_score(labels, scores, k=5),
        "auroc": theirs.roc_auc_score(labels, shares, multi_class="ovr"),
        "average_precision": theirs.average_precision_score(binary, shares),
        "log_loss": theirs.log_loss(labels, shares),
        "kappa": theirs.cohen_kappa_score(labels, predicted),
        "quadratic_kappa": theirs.cohen_kappa_score(labels, predicted, weights="quadratic"),
    }
    assert set(expected) == {name for name in METRICS if "classes" in METRICS[name].tasks}
    for sampling in (Sampling(), Sampling(groups=np.arange(200) % 20)):
        for name, value in expected.items():
            estimate = metric_of(name, "classes").of(predictions, sampling)
            assert estimate.value == pytest.approx(value), name
            assert estimate.low < value < estimate.high, name
            assert estimate.count == 200


def test_two_classes_are_ranked_by_their_difference() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 100)
    scores = np.eye(2)[labels] + generator.normal(size=(100, 2)) + generator.normal(size=(100, 1))
    predictions = Predictions(scores, labels, "classes", softmax(scores))
    margins = scores[:, 1] - scores[:, 0]
    expected = roc_auc_score(labels, margins)
    assert METRICS["auroc"].of(predictions).value == pytest.approx(expected)
    expected = average_precision_score(labels, margins)
    assert METRICS["average_precision"].of(predictions).value == pytest.approx(expected)


def test_metrics_of_numbers_and_labels_are_scikit_learns() -> None:
    from scipy.stats import pearsonr
    from sklearn import metrics as theirs

    generator = np.random.default_rng(2)
    targets = generator.normal(size=(150, 2)) * [1, 1e-6] + [0, 1]
    scores = targets + generator.normal(size=(150, 2)) * [1, 1e-6]
    numbers = Predictions(scores, targets, "numbers")
    correlations = [pearsonr(x, y)[0] for x, y in zip(scores.T, targets.T, strict=True)]
    labels = Predictions(scores, 1.0 * (targets > targets.mean(axis=0)), "labels")
    cases = {
        "r2": (numbers, theirs.r2_score(targets, scores)),
        "pearson": (numbers, np.mean(correlations)),
        "mae": (numbers, theirs.mean_absolute_error(targets, scores)),
        "auroc": (labels, theirs.roc_auc_score(labels.truth, scores)),
        "average_precision": (labels, theirs.average_precision_score(labels.truth, scores)),
    }
    for name, (predictions, value) in cases.items():
        estimate = metric_of(name, predictions.task).of(predictions)
        assert estimate.value == pytest.approx(value), name
        assert estimate.low < value < estimate.high, name
        assert estimate.decimal


@pytest.mark.parametrize("name", METRICS)
def test_chance_is_what_a_constant_gives_and_good_heads_beat_it(name: str) -> None:
    generator = np.random.default_rng(3)
    metric = METRICS[name]
    labels = generator.choice(8, 400, p=[0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    shares = np.tile(np.bincount(labels) / 400, (400, 1))
    constant = Predictions(shares, labels, "classes", shares)
    good = np.eye(8)[labels] + 0.3 * generator.normal(size=(400, 8))
    head = Predictions(good, labels, "classes", softmax(3 * good))
    if "numbers" in metric.tasks:
        targets = generator.exponential(size=(400, 1))
        head = Predictions(targets + 0.1 * generator.normal(size=(400, 1)), targets, "numbers")
        middle = targets.mean() if name == "r2" else np.median(targets)
        constant = Predictions(np.full_like(targets, middle), targets, "numbers")
    chance = metric.chance(constant)
    assert chance == metric.chance(head)
    value = metric.measure(head).value
    assert value > chance if metric.higher_is_better else value < chance
    if name != "pearson":  # a constant correlates with nothing
        assert metric.measure(constant).value == pytest.approx(chance, abs=1e-12)


def test_a_class_without_probability_has_a_finite_loss() -> None:
    from sklearn.metrics import log_loss

    shares = np.array([[1.0, 0.0], [0.5, 0.5]])
    estimate = METRICS["log_loss"].of(Predictions(shares, np.array([1, 0]), "classes", shares))
    assert estimate.value == pytest.approx(log_loss([1, 0], shares))
    with pytest.raises(InputError, match="probabilities"):
        METRICS["log_loss"].of(Predictions(shares, np.array([1, 0]), "classes"))


def test_perfect_heads_keep_a_width() -> None:
    labels = np.arange(60) % 3
    perfect = Predictions(np.eye(3)[labels], labels, "classes")
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "quadratic_kappa", "auroc"):
        for sampling in (Sampling(), Sampling(groups=np.arange(60) % 12)):
            estimate = METRICS[name].of(perfect, sampling)
            assert (estimate.value, estimate.high) == pytest.approx((1, 1)), name
            assert 0.3 < estimate.low < 0.99, name


def test_few_groups_that_differ_do_not_narrow_the_interval() -> None:
    hits = np.ones(400, bool)
    hits[:8] = False  # half of one group of twenty
    labels = np.zeros(400, np.int64)
    groups = np.arange(400) // 20
    estimate = metrics.accuracy(np.where(hits, 0, 1), labels, Sampling(groups=groups))
    assert estimate.method == "Wilson over 20 groups"
    assert estimate.low < 0.85
    losses = METRICS["mae"].of(
        Predictions(1.0 * ~hits[:, None], np.zeros((400, 1)), "numbers"), Sampling(groups=groups)
    )
    assert losses.method == "Student over 20 groups"


def test_unknown_metrics_are_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"'makro_f1'.*accuracy.*macro_f1"):
        metric_of("makro_f1", "classes")
    with pytest.raises(InputError, match=r"'accuracy'.*r2, pearson, mae"):
        metric_of("accuracy", "numbers")
    constant = Predictions(np.zeros((9, 1)), np.arange(9.0)[:, None], "numbers")
    with pytest.raises(InputError, match="constants"):
        METRICS["pearson"].of(constant)
