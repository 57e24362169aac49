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
    quality,
)
from probekit.heads import Head
from tests.oracles import one_hot, random_set, ridge_by_lstsq

CLASSES = ("cat", "dog", "cow")


def one_hot_rows(seen: list[int], labels: list[int]) -> EmbeddingSet:
    """Rows of which `head` predicts the class `seen`."""
    return EmbeddingSet.from_numpy(np.eye(3)[seen], labels, class_names=CLASSES)


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
        name: [
            estimate.value for estimate in (part.forgotten, part.retained, part.test) if estimate
        ]
        for name, part in result.heads.items()
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
    assert [found.value for found in backdoor_success(dog_head, triggered, target="dog")] == [1, 1]
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
    found = quality(fewer, rows)
    assert found is not None
    assert found.value == 0.75
    assert agreement_of(fewer, head, rows).value == 0.75


def test_targets_and_several_labels() -> None:
    targets = EmbeddingSet.from_numpy(np.eye(3), targets=np.array([1.0, 2.0, 3.0]))
    exact = Head(
        weights=np.array([[1.0], [2], [3]]), intercept=np.zeros(1), names=("y",), task="numbers"
    )
    mean = replace(exact, weights=np.zeros((3, 1)), intercept=np.array([2.0]))
    for head, expected in ((exact, 1.0), (mean, 0.0)):
        found = quality(head, targets)
        assert found is not None
        assert found.value == pytest.approx(expected)
    several = EmbeddingSet.from_numpy(np.eye(2), targets=np.array([[1.0, 1], [1, 0]]))
    labels = Head(
        weights=np.eye(2), intercept=np.array([0.0, 0.6]), names=("a", "b"), task="labels"
    )
    found = quality(labels, several)  # predicts 1 1 and 0 1
    assert found is not None
    assert found.value == 0.5
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
    assert before.membership is not None
    assert result.minus_retrained("before")["backdoor"] > 0.15
    assert before.estimates["backdoor_all"].value > before.estimates["backdoor"].value
    assert after.estimates["test"].value > before.estimates["test"].value + 0.1
    assert after.estimates["forgotten"].value < 0.5
    assert result.agreement["retrained"].value == 1
    document = json.loads(json.dumps(result.to_dict()))
    assert document["heads"]["after"]["minus_retrained"]["membership_auc"] == 0
    assert document["distances"]["retrained"]["after"] == 0
    assert [client["rows"] for client in document["clients"]] == [200, 100]
