"""What unlearning did: accuracies, backdoor, agreement and distances, on heads known by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.evaluation.unlearning import (
    UnlearningRows,
    agreement_of,
    backdoor_success,
    evaluate_unlearning,
    loss_scores,
    membership_auc,
    quality,
)
from probekit.heads import Head
from probekit.objective import CrossEntropy
from tests.oracles import one_hot, random_set, ridge_by_lstsq

CLASSES = ("cat", "dog", "cow")


def one_hot_rows(predicted: list[int], labels: list[int]) -> EmbeddingSet:
    """Rows of which `head` predicts the class `predicted`."""
    return EmbeddingSet.from_numpy(np.eye(3)[predicted], labels, class_names=CLASSES)


@pytest.fixture
def head() -> Head:
    """Predicts the class whose column is 1."""
    return Head(weights=np.eye(3), intercept=np.zeros(3), names=CLASSES)


@pytest.fixture
def dog_head() -> Head:
    """Predicts dog, whatever it sees."""
    return Head(weights=np.zeros((3, 3)), intercept=np.array([0.0, 1.0, 0.0]), names=CLASSES)


def test_accuracies_of_forgotten_retained_and_test_rows(head: Head, dog_head: Head) -> None:
    rows = UnlearningRows(
        training=one_hot_rows([0, 1, 2, 0], [0, 1, 1, 1]),
        clients={"north": np.array([0, 1]), "south": np.array([2, 3])},
        forgotten=np.array([False, False, True, True]),
        test=one_hot_rows([0, 1, 2, 2], [0, 1, 2, 0]),
    )
    result = evaluate_unlearning({"before": dog_head, "after": head, "retrained": head}, rows)
    values = {
        name: [measures[part].value for part in ("forgotten", "retained", "test")]
        for name, measures in result.heads.items()
    }
    assert values == {"before": [1, 0.5, 0.25], "after": [0, 1, 0.75], "retrained": [0, 1, 0.75]}
    difference = result.minus_retrained("before")
    assert difference["forgotten"] == 1
    assert difference["retained"] == -0.5
    assert set(result.minus_retrained("after").values()) == {0}
    assert result.agreement["retrained"].value == 1
    assert [(change.client, change.is_forgotten) for change in result.clients] == [
        ("north", False),
        ("south", True),
    ]
    assert result.clients[1].accuracy == {"before": 1, "after": 0, "retrained": 0}


def test_the_backdoor_counts_rows_of_other_classes_and_all(dog_head: Head, head: Head) -> None:
    triggered = one_hot_rows([1, 1, 0, 0], [1, 1, 2, 0])
    others, everything = backdoor_success(head, triggered, target="dog")
    assert (others.value, others.count) == (0, 2)
    assert (everything.value, everything.count) == (0.5, 4)
    estimates = backdoor_success(dog_head, triggered, target="dog")
    assert [estimate.value for estimate in estimates] == [1, 1]
    with pytest.raises(InputError, match="horse"):
        backdoor_success(head, triggered, target="horse")
    with pytest.raises(InputError, match="dog"):
        backdoor_success(head, one_hot_rows([1, 1], [1, 1]), target="dog")


def test_distances_are_of_all_parameters(head: Head, dog_head: Head) -> None:
    rows = UnlearningRows(one_hot_rows([0, 1], [0, 1]), {}, np.array([False, True]))
    fewer = Head(weights=np.eye(3)[:, :2], intercept=np.zeros(2), names=CLASSES[:2])
    heads = {"before": fewer, "after": head, "minimum": dog_head}
    result = evaluate_unlearning(heads, rows)
    assert result.distances == {"minimum": {"after": 2.0}}  # three weights and one intercept
    assert result.minus_retrained("after") == {}
    assert result.agreement == {}


def test_a_head_that_lost_a_class_is_wrong_on_it(head: Head) -> None:
    fewer = Head(weights=np.eye(3)[:, 1:], intercept=np.zeros(2), names=CLASSES[1:])
    rows = one_hot_rows([0, 1, 2, 2], [0, 1, 2, 2])
    assert quality(fewer, rows).value == 0.75
    assert agreement_of(fewer, head, rows).value == 0.75


def test_targets_and_several_labels() -> None:
    targets = EmbeddingSet.from_numpy(np.eye(3), targets=np.array([1.0, 2.0, 3.0]))
    exact = Head(
        weights=np.array([[1.0], [2], [3]]), intercept=np.zeros(1), names=("y",), task="numbers"
    )
    mean = replace(exact, weights=np.zeros((3, 1)), intercept=np.array([2.0]))
    for head, expected in ((exact, 1.0), (mean, 0.0)):
        assert quality(head, targets).value == pytest.approx(expected)
    several = EmbeddingSet.from_numpy(np.eye(2), targets=np.array([[1.0, 1], [1, 0]]))
    labels = Head(
        weights=np.eye(2), intercept=np.array([0.0, 0.6]), names=("a", "b"), task="labels"
    )
    assert quality(labels, several).value == 0.5  # it predicts 1 1 and 0 1
    assert agreement_of(labels, labels, several).value == 1
    rows = UnlearningRows(targets, {"a": np.arange(3)}, np.zeros(3, bool))
    assert evaluate_unlearning({"after": exact}, rows).clients == ()


def test_forgetting_is_seen_in_every_measure() -> None:
    """A client whose labels are wrong is forgotten exactly."""
    everything = random_set(900, 30, 3, seed=1, signal=0.4)
    assert everything.labels is not None
    training = everything.take(np.arange(300))
    wrong = np.arange(300) >= 200
    labels = np.where(wrong, 0, training.labels)
    training = replace(training, labels=labels)
    test = everything.take(np.arange(300, 900))
    heads = {}
    for name, kept in (("before", slice(0, 300)), ("after", slice(0, 200))):
        params = ridge_by_lstsq(np.asarray(training.rows)[kept], one_hot(labels[kept], 3), 1e-3)
        heads[name] = Head.from_params(params, training)
    heads["retrained"] = heads["after"]
    clients = {"good": np.arange(200), "bad": np.arange(200, 300)}
    rows = UnlearningRows(training, clients, wrong, test, triggered=test, target="class 0")
    result = evaluate_unlearning(heads, rows)
    before, after = result.heads["before"], result.heads["after"]
    assert result.minus_retrained("before")["backdoor"] > 0.15
    assert before["backdoor_all"].value > before["backdoor"].value
    assert after["test"].value > before["test"].value + 0.1
    assert after["forgotten"].value < 0.5
    assert result.agreement["retrained"].value == 1
    document = json.loads(json.dumps(result.to_dict()))
    assert document["heads"]["after"]["minus_retrained"]["membership_auc"] == 0
    assert document["distances"]["retrained"]["after"] == 0
    assert [client["rows"] for client in document["clients"]] == [200, 100]


def fit(rows: EmbeddingSet, ridge: float = 1e-4) -> Head:
    assert rows.labels is not None
    targets = one_hot(rows.labels, len(rows.class_names))
    return Head.from_params(ridge_by_lstsq(np.asarray(rows.rows), targets, ridge), rows)


def test_the_membership_area_is_the_share_of_pairs_in_the_right_order() -> None:
    rows = random_set(110, 6, 3, seed=3)
    members, others, nobody = (rows.take(np.arange(*span)) for span in ((40,), (40, 110), (0,)))
    head = fit(members)
    pairs = loss_scores(head, members)[:, None] - loss_scores(head, others)
    area = (pairs > 0).mean() + (pairs == 0).mean() / 2
    assert membership_auc(head, members, others).value == pytest.approx(area)
    with pytest.raises(InputError, match="40 and 0"):
        membership_auc(head, members, nobody)
    with pytest.raises(InputError, match="0 and 70"):
        membership_auc(head, nobody, others)


def test_members_of_an_overfitted_head_are_found_and_rows_it_never_saw_are_not() -> None:
    rows = random_set(600, 120, 4, seed=3)
    north, south, test = (rows.take(np.arange(i, i + 200)) for i in (0, 200, 400))
    both = fit(rows.take(np.arange(400)))
    assert membership_auc(both, south, test).value > 0.6
    retrained = fit(north)
    unrelated = membership_auc(retrained, south, test)
    assert unrelated.low < 0.5 < unrelated.high
    trained_on = membership_auc(retrained, north, test)
    assert trained_on.low > 0.5


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
