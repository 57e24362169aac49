"""Metrics against hand computed cases, simulations and plain loops."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import InputError
from probekit.evaluation import metrics
from probekit.evaluation.metrics import (
    Interval,
    accuracy,
    accuracy_by_class,
    accuracy_by_client,
    calibration,
    confusion,
    mean_per_class,
    share,
    top_k,
)
from probekit.linear.temperature import best_temperature, log_probabilities


def test_the_wilson_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        found = share(generator.random(200) < 0.8, interval=Interval(0.9))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.8 <= found.high
    assert 0.88 <= covered / 2000 <= 0.925


def test_the_wilson_interval_is_where_the_score_test_turns() -> None:
    found = share(np.arange(60) % 4 > 0)
    assert found.how == "wilson"
    for edge in (found.low, found.high):
        assert edge is not None
        assert abs(45 / 60 - edge) / math.sqrt(edge * (1 - edge) / 60) == pytest.approx(1.959964, rel=1e-6)
    for right, (low, high) in ((30, (0.88649, 1.0)), (0, (0.0, 0.11351))):
        found = share(np.arange(30) < right)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-5)


def test_the_mean_per_class_is_resampled_by_rows_or_by_whole_groups() -> None:
    drawn = np.random.default_rng(3)
    people = np.repeat(np.arange(60), 5)  # five equal rows of each person
    labels = np.repeat(drawn.integers(0, 2, 60), 5)
    given_classes = np.where(np.repeat(drawn.random(60) < 0.7, 5), labels, 1 - labels)
    by_row, by_person = (mean_per_class(given_classes, labels, groups=one) for one in (None, people))
    shares = [(given_classes == labels)[labels == k].mean() for k in (0, 1)]
    assert by_row.value == by_person.value == pytest.approx(np.mean(shares))
    plain = []
    for _ in range(2000):
        rows = drawn.integers(0, 300, 300)
        plain.append(np.mean([(given_classes == labels)[rows][labels[rows] == k].mean() for k in (0, 1)]))
    assert (by_row.low, by_row.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.015)
    assert by_person.low is not None
    assert by_person.high is not None
    assert by_row.low is not None
    assert by_row.high is not None
    assert by_person.high - by_person.low == pytest.approx(math.sqrt(5) * (by_row.high - by_row.low), rel=0.2)


def test_top_k_counts_equal_scores_against_the_row() -> None:
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    labels = np.array([0, 0, 1])
    assert [top_k(scores, labels, k).hits for k in (1, 2, 3)] == [1, 1, 3]


def test_a_given_temperature_judges_all_rows() -> None:
    scores = np.random.default_rng(1).normal(size=(50, 3))
    labels = np.arange(50) % 3
    found = calibration(scores, labels, temperature=0.5)
    own = log_probabilities(scores, 0.5)[np.arange(50), labels]
    assert found.log_loss == pytest.approx(-own.mean())
    assert found.temperatures == (0.5,)


def test_accuracy_in_all_and_by_class_and_client() -> None:
    labels = np.array([0, 0, 0, 1, 1, 3])
    given_classes = np.array([0, 0, 1, 1, 0, 3])
    assert accuracy(given_classes, labels).value == pytest.approx(4 / 6)
    table = accuracy_by_class(given_classes, labels, classes=["a", "b", "c", "d"])
    assert [(one.name, one.count, one.hits) for one in table] == [
        ("a", 3, 2),
        ("b", 2, 1),
        ("c", 0, 0),
        ("d", 1, 1),
    ]
    assert table[2].value is None
    clients = {"x": np.array([0, 2, 4]), "y": np.array([5])}
    assert [one.hits for one in accuracy_by_client(given_classes, labels, clients=clients)] == [1, 1]
    json.dumps([asdict(one) for one in table], allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_confusion_counts_every_pair(pairs: list[tuple[int, int]]) -> None:
    labels = np.array([true for true, _ in pairs], np.int64)
    predictions = np.array([found for _, found in pairs], np.int64)
    table = confusion(predictions, labels, classes=list("abcd"))
    for true in range(4):
        for found in range(4):
            assert table.counts[true][found] == pairs.count((true, found))


def test_calibration_of_a_case_computed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "best_temperature", lambda *_: 1.0)
    # two classes; softmax of (log p, log(1-p)) at temperature 1 is (p, 1-p)
    chances = np.array([0.95, 0.9, 0.85, 0.6, 0.55])
    scores = np.log(np.stack([chances, 1 - chances], axis=1))
    labels = np.array([0, 0, 1, 0, 1])
    found = calibration(scores, labels, bins=5)
    # bins (0.4, 0.6]: 0.6, 0.55, one right; (0.8, 1]: 0.95, 0.9, 0.85, two right
    assert [one.count for one in found.bins] == [0, 0, 2, 0, 3]
    assert found.bins[2].accuracy == 0.5
    assert found.bins[4].confidence == pytest.approx(0.9)
    assert found.error == pytest.approx(2 / 5 * abs(0.5 - 0.575) + 3 / 5 * abs(2 / 3 - 0.9))
    assert found.log_loss == pytest.approx(-sum(map(math.log, [0.95, 0.9, 0.15, 0.6, 0.45])) / 5)
    squares = [2 * (1 - own) ** 2 for own in (0.95, 0.9, 0.15, 0.6, 0.45)]
    assert found.brier == pytest.approx(sum(squares) / 5)
    json.dumps(asdict(found), allow_nan=False)


def test_the_best_temperature_is_the_one_that_made_the_labels() -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(40_000, 4))
    chances = np.exp(log_probabilities(scores, 0.4))
    labels = (chances.cumsum(axis=1) < generator.random((40_000, 1))).sum(axis=1)
    found = best_temperature(scores, labels)
    assert found == pytest.approx(0.4, rel=0.03)

    def loss(temperature: float) -> float:
        return -float(np.take_along_axis(log_probabilities(scores, temperature), labels[:, None], 1).mean())

    assert loss(found) < min(loss(found * 1.01), loss(found / 1.01))


def test_a_fitted_temperature_calibrates_and_is_never_fitted_on_the_rows_it_judges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(20_000, 3))
    chances = np.exp(log_probabilities(scores, 0.3))
    labels = (chances.cumsum(axis=1) < generator.random((20_000, 1))).sum(axis=1)
    fitted = calibration(scores, labels)
    with monkeypatch.context() as patched:
        patched.setattr(metrics, "best_temperature", lambda *_: 1.0)
        raw = calibration(scores, labels)
    assert fitted.error < 0.015 < 0.2 < raw.error
    assert len(fitted.temperatures) == 2
    assert fitted.temperatures[0] != fitted.temperatures[1]
    # two rows: each is judged at the temperature of the other, which wants certainty and gets it wrong
    worst = calibration(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    assert max(worst.temperatures) / min(worst.temperatures) > 1e6
    assert worst.log_loss == pytest.approx((math.log(2) + 1 / min(worst.temperatures)) / 2, rel=1e-4)


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(InputError, match="found 2 and 3"):
        accuracy(np.array([0, 1]), np.array([0, 1, 1]))
    with pytest.raises(InputError, match="1 of 2 have none"):
        accuracy(np.array([0, 1]), np.array([0, -1]))
    with pytest.raises(InputError, match="temperature"):
        log_probabilities(np.ones((1, 2)), 0.0)
    with pytest.raises(InputError, match=r"found 1\.5"):
        Interval(1.5)
    with pytest.raises(InputError, match="two rows"):
        calibration(np.ones((1, 2)), np.array([0]))
    assert share(np.empty(0, bool)).how == "no rows"
