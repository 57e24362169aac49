"""Membership inference: it finds members of an overfitted head, and no trace of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.evaluation.membership import attack, loss_scores, membership
from probekit.heads import Head
from probekit.objective import CrossEntropy
from tests.oracles import one_hot, random_set, ridge_by_lstsq


def fit(rows: EmbeddingSet, ridge: float = 1e-4) -> Head:
    assert rows.labels is not None
    targets = one_hot(rows.labels, len(rows.class_names))
    return Head.from_params(ridge_by_lstsq(np.asarray(rows.rows), targets, ridge), rows)


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = np.random.default_rng(0)
    members = generator.integers(2, 14, 40).astype(np.float64)
    others = generator.integers(0, 12, 70).astype(np.float64)
    pairs = members[:, None] - others
    area = (pairs > 0).mean() + (pairs == 0).mean() / 2
    power = attack(members, others)
    assert power.auc.value == pytest.approx(area)
    assert power.auc.low is not None
    assert power.auc.high is not None
    assert power.auc.low < area < power.auc.high
    for rate, share in power.recall.items():
        thresholds = [x for x in sorted(others) if (others > x).mean() <= rate]
        assert share.value == (members > thresholds[0]).mean()


@pytest.mark.parametrize(("shift", "leaks"), [(2.0, True), (0.0, False), (-2.0, True)])
def test_both_sides_of_chance_leak(shift: float, leaks: bool) -> None:
    generator = np.random.default_rng(1)
    power = attack(generator.normal(size=80) + shift, generator.normal(size=80))
    assert power.leaks == leaks
    assert power.to_dict()["leaks"] == leaks


def test_the_interval_of_chance_covers_one_half() -> None:
    generator = np.random.default_rng(2)
    told_apart = [
        attack(generator.normal(size=60), generator.normal(size=60)).leaks for _ in range(300)
    ]
    assert 0.015 < np.mean(told_apart) < 0.09


def test_members_of_an_overfitted_head_are_found_and_rows_it_never_saw_are_not() -> None:
    rows = random_set(600, 120, 4, seed=3)
    north, south, test = (rows.take(np.arange(i, i + 200)) for i in (0, 200, 400))
    both = fit(rows.take(np.arange(400)))
    before = membership(both, south, test)
    assert before.leaks
    assert before.auc.value > 0.6
    retrained = fit(north)
    assert not membership(retrained, south, test).leaks
    assert membership(retrained, north, test).leaks


def test_scores_are_minus_the_loss() -> None:
    rows = random_set(30, 4, 3, seed=5)
    assert rows.labels is not None
    head = fit(rows)
    scores = head.decision(rows)
    squares = [-sum((scores[i] - np.eye(3)[rows.labels[i]]) ** 2) / 2 for i in range(30)]
    assert loss_scores(head, rows) == pytest.approx(squares)
    shares = [np.exp(scores[i]) / np.exp(scores[i]).sum() for i in range(30)]
    logs = [np.log(shares[i][rows.labels[i]]) for i in range(30)]
    assert loss_scores(head, rows, loss=CrossEntropy()) == pytest.approx(logs)


def test_classes_are_matched_by_name() -> None:
    rows = random_set(30, 4, 3, seed=5)
    assert rows.labels is not None
    head = fit(rows)
    turned = replace(rows, labels=2 - rows.labels, class_names=rows.class_names[::-1])
    assert loss_scores(head, turned).tolist() == loss_scores(head, rows).tolist()
    fewer = replace(
        head, weights=head.weights[:, :2], intercept=head.intercept[:2], names=head.names[:2]
    )
    unknown = np.flatnonzero(rows.labels == 2)[0]
    expected = -np.square(fewer.decision(rows)[unknown]).sum() / 2
    assert loss_scores(fewer, rows)[unknown] == pytest.approx(expected)
    unlabeled = replace(rows, labels=np.full(30, -1))
    expected = -np.square(head.decision(rows)).sum(axis=1) / 2
    assert loss_scores(head, unlabeled) == pytest.approx(expected)


def test_targets_have_a_loss_too() -> None:
    rows = EmbeddingSet.from_numpy(np.eye(3), targets=np.array([1.0, 2.0, 4.0]))
    head = Head(weights=np.zeros((3, 1)), intercept=np.ones(1), names=("y",), task="numbers")
    assert loss_scores(head, rows).tolist() == [0.0, -0.5, -4.5]


def test_an_attack_needs_both() -> None:
    with pytest.raises(InputError):
        attack(np.ones(0), np.ones(3))
    with pytest.raises(InputError):
        attack(np.ones(3), np.ones(0))
