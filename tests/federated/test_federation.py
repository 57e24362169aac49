"""One door to clients: order, absences, garbage, samples and traffic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from probekit.arrays import hex_id
from probekit.embeddings import EmbeddingSet
from probekit.errors import Failure, InputError, MissingClients
from probekit.federated.client import Limits
from probekit.federated.federation import (
    Federation,
    InProcess,
    collect_stats,
    total,
    total_stats,
)
from probekit.federated.queries import Arrays, Gradient, Statistics, Weight
from probekit.federated.training.closed_form import ClosedForm
from probekit.linear.model import LinearModel
from probekit.linear.stats import SufficientStats, sum_stats
from tests.federated.examples import Clients, Meddling, arrived, divided, federation
from tests.oracles import random_set

CLIENTS = divided()
PARAMS = np.random.default_rng(0).standard_normal((7, 3))


def meddled(**answers: Callable[[Arrays], Arrays | Failure] | None) -> Federation:
    return federation(CLIENTS, transport=lambda data: Meddling(InProcess(data), answers))


def ids_of(rows: EmbeddingSet, numbers: list[int]) -> frozenset[str]:
    return frozenset(hex_id(rows.ids[number]) for number in numbers)


def test_answers_come_in_the_order_of_names() -> None:
    backwards = dict(reversed(CLIENTS.items()))
    for clients in (CLIENTS, backwards):
        asked = federation(clients)
        assert [answer.client for answer in asked.ask(Weight())] == ["a", "b", "c", "d"]
        chosen = asked.ask(Weight(), ["d", "b"])
        assert [(answer.client, answer.rows) for answer in chosen] == [("b", 25), ("d", 35)]


def test_a_total_is_the_sum_over_all_rows() -> None:
    together = federation({"a": random_together()})
    expected = next(together.ask(Gradient(PARAMS))).arrays["gradient"]
    sums = total(federation(CLIENTS).ask(Gradient(PARAMS)))
    assert sums.weight == 130
    np.testing.assert_allclose(sums.arrays["gradient"], expected)
    np.testing.assert_allclose(sums.mean("gradient"), expected / 130)


def random_together() -> EmbeddingSet:
    rows = [np.asarray(part.rows) for part in CLIENTS.values()]
    labels = [part.labels for part in CLIENTS.values()]
    names = next(iter(CLIENTS.values())).class_names
    return EmbeddingSet.from_numpy(np.vstack(rows), np.concatenate(labels), class_names=names)


def test_a_total_does_not_change_the_answers() -> None:
    answers = list(federation(CLIENTS).ask(Gradient(PARAMS)))
    before = answers[0].arrays["gradient"].copy()
    total(answers)
    np.testing.assert_array_equal(answers[0].arrays["gradient"], before)


def test_statistics_add_up() -> None:
    asked = federation(CLIENTS)
    parts = collect_stats(asked)
    assert list(parts) == ["a", "b", "c", "d"]
    by_hand = sum_stats(SufficientStats.from_rows(rows) for rows in CLIENTS.values())
    np.testing.assert_array_equal(total_stats(asked).gram, by_hand.gram)
    np.testing.assert_array_equal(sum_stats(parts.values()).moment, by_hand.moment)


def huge(arrays: Arrays) -> Arrays:
    return arrays | {"gradient": np.full_like(arrays["gradient"], 1e300)}


def not_a_number(arrays: Arrays) -> Arrays:
    gradient = arrays["gradient"].copy()
    gradient[-1, -1] = np.nan
    return arrays | {"gradient": gradient}


def infinite(arrays: Arrays) -> Arrays:
    return arrays | {"value": np.array([-np.inf])}


def transposed(arrays: Arrays) -> Arrays:
    return arrays | {"gradient": arrays["gradient"].T}


def incomplete(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name != "weight"}


def with_more(arrays: Arrays) -> Arrays:
    return arrays | {"more": np.zeros(3)}


def weightless(arrays: Arrays) -> Arrays:
    return arrays | {"weight": np.zeros(1)}


def gone(arrays: Arrays) -> Failure:
    return Failure("gone")


GARBAGE = [huge, not_a_number, infinite, transposed, incomplete, with_more, weightless]


@pytest.mark.parametrize("change", GARBAGE)
def test_garbage_is_the_failure_of_its_client(change: Callable[[Arrays], Arrays]) -> None:
    answered, reasons = arrived(meddled(b=change, d=gone).ask(Gradient(PARAMS)))
    assert answered == ["a", "c"]
    assert reasons == {"b": "garbage", "d": "gone"}


def test_answers_are_in_c_order_whatever_the_client_sent() -> None:
    def in_fortran_order(arrays: Arrays) -> Arrays:
        return {name: np.asfortranarray(array) for name, array in arrays.items()}

    for answer in meddled(b=in_fortran_order).ask(Gradient(PARAMS)):
        assert answer.arrays["gradient"].flags.c_contiguous


def test_a_client_of_which_nothing_is_heard_is_gone() -> None:
    with pytest.raises(MissingClients) as caught:
        list(meddled(c=None).ask(Weight()))
    assert caught.value.reasons.keys() == {"c"}
    assert caught.value.reasons["c"].reason == "gone"
    assert caught.value.exit_code == 1


def test_many_missing_clients_are_not_all_listed() -> None:
    reasons = {f"client {number:04}": Failure("late") for number in range(1000)}
    assert len(str(MissingClients(reasons))) < 500


def test_who_stays_decides_the_result() -> None:
    with pytest.raises(MissingClients) as caught:
        ClosedForm().train(meddled(b=gone), ridge=0.1)
    without = federation(CLIENTS).without(caught.value.reasons)
    others = {name: rows for name, rows in CLIENTS.items() if name != "b"}
    np.testing.assert_array_equal(
        ClosedForm().train(without, ridge=0.1).params,
        ClosedForm().train(federation(others), ridge=0.1).params,
    )


def asymmetric(arrays: Arrays) -> Arrays:
    gram = arrays["gram"].copy()
    gram[0, 1] *= 0.5
    return arrays | {"gram": gram}


def uncorrelated(arrays: Arrays) -> Arrays:
    gram = arrays["gram"].copy()
    gram[0, 1] = gram[1, 0] = 2 * np.sqrt(gram[0, 0] * gram[1, 1])
    return arrays | {"gram": gram}


def negative(arrays: Arrays) -> Arrays:
    gram = arrays["gram"].copy()
    gram[0] = gram[:, 0] = 0
    gram[0, 0] = -1
    return arrays | {"gram": gram}


def negative_squares(arrays: Arrays) -> Arrays:
    moment = arrays["moment"].copy()
    moment[:, 0] = 0
    squares = arrays["target_squares"].copy()
    squares[0] = -1
    return arrays | {"moment": moment, "target_squares": squares}


def miscounted(arrays: Arrays) -> Arrays:
    return arrays | {"weight": arrays["weight"] + 1}


def too_many_targets(arrays: Arrays) -> Arrays:
    return arrays | {"moment": 1e6 * arrays["moment"]}


@pytest.mark.parametrize(
    "change", [asymmetric, uncorrelated, negative, negative_squares, miscounted, too_many_targets]
)
def test_sums_that_no_rows_have_are_refused_by_name(change: Callable[[Arrays], Arrays]) -> None:
    with pytest.raises(MissingClients) as caught:
        collect_stats(meddled(b=change, d=gone))
    reasons = {client: failure.reason for client, failure in caught.value.reasons.items()}
    assert reasons == {"b": "garbage", "d": "gone"}


def test_rows_of_real_clients_have_possible_sums() -> None:
    for width, scale in ((1, 1e-20), (3, 1e20), (40, 1.0)):
        rows = random_set(200, width, 3)
        scaled = EmbeddingSet.from_numpy(
            np.asarray(rows.rows, np.float64) * scale, rows.labels, class_names=rows.class_names
        )
        collect_stats(federation({"a": scaled, "b": scaled.take(np.arange(3))}))


def test_a_refusal_names_the_client() -> None:
    clients = {**CLIENTS, "e": random_set(5, 8, 3)}
    with pytest.raises(MissingClients) as caught:
        list(federation(clients).ask(Statistics()))
    assert caught.value.reasons["e"].reason == "refused"


def test_a_sum_needs_clients() -> None:
    asked = federation(CLIENTS)
    with pytest.raises(InputError):
        total(asked.without(CLIENTS).ask(Weight()))
    with pytest.raises(InputError):
        total_stats(asked.without(CLIENTS))


@pytest.mark.parametrize("names", [["e"], ["a", "../x"]])
def test_unknown_clients_are_refused(names: list[str]) -> None:
    asked = federation(CLIENTS)
    for call in (asked.only, lambda names: asked.ask(Weight(), names)):
        with pytest.raises(InputError):
            call(names)
    with pytest.raises(InputError):
        asked.without_samples({"e": frozenset()})


def test_clients_without_rows_are_refused() -> None:
    with pytest.raises(InputError):
        federation({**CLIENTS, "e": CLIENTS["a"].take(np.arange(0))})


def test_left_out_samples_are_not_asked_about() -> None:
    asked = federation(CLIENTS)
    left = asked.without_samples({"b": ids_of(CLIENTS["b"], [0, 3])})
    left = left.without_samples({"b": ids_of(CLIENTS["b"], [5]), "c": ids_of(CLIENTS["c"], [1])})
    assert left.clients == {"a": 40, "b": 22, "c": 29, "d": 35}
    kept = {"b": np.delete(np.arange(25), [0, 3, 5]), "c": np.delete(np.arange(30), [1])}
    others = {**CLIENTS, **{name: CLIENTS[name].take(rows) for name, rows in kept.items()}}
    np.testing.assert_array_equal(total_stats(left).gram, total_stats(federation(others)).gram)


def test_only_some_samples_are_asked_about() -> None:
    only = federation(CLIENTS).only_samples({"c": ids_of(CLIENTS["c"], [1, 2, 4])})
    assert only.clients == {"c": 3}
    expected = federation({"c": CLIENTS["c"].take(np.array([1, 2, 4]))})
    np.testing.assert_array_equal(total_stats(only).gram, total_stats(expected).gram)


def test_copies_leave_together() -> None:
    doubled: Clients = {"a": CLIENTS["a"].take(np.array([0, 1, 0, 2, 3])), "b": CLIENTS["b"]}
    asked = federation(doubled)
    samples = {"a": ids_of(CLIENTS["a"], [0])}
    assert asked.without_samples(samples).clients == {"a": 3, "b": 25}
    assert asked.only_samples(samples).clients == {"a": 2}
    assert total_stats(asked.without_samples(samples)).count == 28
    again = {"a": ids_of(CLIENTS["a"], [0, 1])}
    with pytest.raises(MissingClients):  # row 0 has left already
        asked.without_samples(samples).without_samples(again)


def test_a_client_whose_samples_all_leave_is_gone() -> None:
    everything = {"b": ids_of(CLIENTS["b"], list(range(25)))}
    assert federation(CLIENTS).without_samples(everything).clients.keys() == {"a", "c", "d"}


def test_unknown_samples_are_refused_by_their_client() -> None:
    for ids in (frozenset({"00" * 32}), ids_of(CLIENTS["a"], [0])):
        with pytest.raises(MissingClients) as caught:
            federation(CLIENTS).without_samples({"b": ids})
        assert caught.value.reasons.keys() == {"b"}


def test_clients_keep_their_limits_in_process() -> None:
    asked = Federation.of(InProcess(CLIENTS, Limits(min_rows=30)), LinearModel(6, 3))
    with pytest.raises(MissingClients) as caught:
        collect_stats(asked)
    assert caught.value.reasons.keys() == {"b"}
