"""Metrics of forgetting, against counting by hand, SciPy, and heads whose answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax

from probekit.errors import InputError, MismatchError
from probekit.evaluation.forgetting import (
    backdoor_rates,
    forgetting_accuracy,
    js_divergence,
    relearn_rounds,
    retraining_distance,
    tug_of_war,
    worst_client_drop,
)

Array = NDArray[np.float64]


def given(classes: list[int], k: int = 3) -> Array:
    """Scores whose largest entry is at these classes."""
    return np.eye(k)[classes]


def test_accuracies_and_tug_of_war_are_those_counted_by_hand() -> None:
    labels = np.array([0, 1, 2, 0])
    right, half = given([0, 1, 2, 0]), given([0, 1, 0, 1])
    found = forgetting_accuracy((half, labels), (right, labels), (half, labels))
    retrained = forgetting_accuracy((given([1, 1, 0, 1]), labels), (right, labels), (right, labels))
    assert found.values == (0.5, 1.0, 0.5)
    assert tug_of_war(found, retrained) == pytest.approx((1 - 0.25) * 1 * (1 - 0.5))
    assert tug_of_war(retrained, retrained) == 1
    assert json.loads(json.dumps(found.plain))["forgotten"]["hits"] == 2
    with pytest.raises(InputError, match="over no rows"):
        _ = forgetting_accuracy((half[:0], labels[:0]), (right, labels), (half, labels)).values


def test_a_backdoor_is_counted_in_three_ways() -> None:
    labels = np.array([0, 0, 1, 2, 1])
    found = backdoor_rates(given([0, 1, 0, 2, 1]), labels, target=0, trained=given([0, 0, 0, 1]))
    assert found.trained is not None
    assert (found.others.value, found.all.value, found.trained.value) == (1 / 3, 2 / 5, 3 / 4)
    assert backdoor_rates(given([0]), np.array([1]), target=0).trained is None
    with pytest.raises(InputError, match="between 0 and 2"):
        backdoor_rates(given([0]), np.array([1]), target=3)


def test_distances_are_relative_to_what_retraining_moved() -> None:
    retrained, centre = np.array([[3.0], [4.0]]), np.array([[3.0], [0.0]])
    found = retraining_distance(retrained + np.array([[0.0], [1.0]]), retrained)
    assert (found.absolute, found.relative) == pytest.approx((1, 0.2))
    assert retraining_distance(retrained + 1, retrained, origin=centre).relative == pytest.approx(math.sqrt(2) / 4)
    weighted = retraining_distance(retrained + 1, retrained, measure=lambda one: float(np.abs(one).max()))
    assert (weighted.absolute, weighted.relative) == (1, 0.25)
    assert retraining_distance(centre * 0, centre * 0).relative == 0
    with pytest.raises(MismatchError, match="one shape"):
        retraining_distance(retrained, retrained.T)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 7.0])
def test_the_divergence_is_scipys(temperature: float) -> None:
    random = np.random.default_rng(0)
    one, two = random.normal(size=(2, 40, 5))
    each = jensenshannon(softmax(one / temperature, axis=1), softmax(two / temperature, axis=1), axis=1) ** 2
    found = js_divergence(one, two, temperature=temperature)
    assert (found.mean, found.largest) == pytest.approx((each.mean(), each.max()), rel=1e-9)
    assert js_divergence(one, one, temperature=temperature).largest < 1e-15
    assert js_divergence(1e4 * given([0]), 1e4 * given([1])).mean == pytest.approx(math.log(2))
    with pytest.raises(MismatchError, match="same rows"):
        js_divergence(one, two[:3])


def test_the_worst_client_is_the_one_that_lost_most() -> None:
    labels = np.array([0, 1, 2, 0, 1, 2])
    before, after = given([0, 1, 2, 0, 1, 2]), given([0, 1, 0, 0, 0, 0])
    clients = {"a": np.array([0, 1, 2]), "b": np.array([3, 4, 5]), "empty": np.array([], np.int64)}
    found = worst_client_drop(before, after, labels, clients=clients)
    assert (found.client, found.before) == ("b", 1.0)
    assert found.after == pytest.approx(1 / 3)
    assert found.drop == pytest.approx(2 / 3)
    assert worst_client_drop(after, before, labels, clients=clients).drop == pytest.approx(-1 / 3)
    with pytest.raises(InputError, match="found none"):
        worst_client_drop(before, after, labels, clients={})


def test_relearning_takes_as_many_rounds_as_gradient_descent_needs() -> None:
    # w -> w - (w - 1) / 2 leaves 2^-t of the way: back within 1/100 after 7 rounds
    def step(w: float) -> float:
        return w - (w - 1) / 2

    found = relearn_rounds(0.0, step, lambda w: w, wanted=0.99)
    assert (found.rounds, len(found.values)) == (7, 8)
    assert relearn_rounds(0.0, step, lambda w: abs(w - 1), wanted=0.01, falling=True).rounds == 7
    assert relearn_rounds(1.0, step, lambda w: w, wanted=0.99).rounds == 0
    never = relearn_rounds(0.0, step, lambda w: w, wanted=2.0, most=5)
    assert (never.rounds, len(never.values)) == (None, 6)
