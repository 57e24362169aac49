"""What a client says, and what it refuses to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probekit.arrays import hex_id
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.federated.client import Limits, RowClient, StatisticsClient, client_data
from probekit.federated.local import LocalPlan, TrainingLoss
from probekit.federated.queries import (
    Copies,
    Curvature,
    Evaluate,
    Gradient,
    LocalFit,
    Query,
    Restricted,
    Statistics,
    Weight,
)
from probekit.linear.model import LinearModel
from probekit.linear.stats import SufficientStats
from probekit.objective import CrossEntropy
from tests.oracles import random_set, with_ones

MODEL = LinearModel(6, 3)
ROWS = random_set(20, 6, 3)
PARAMS = np.random.default_rng(0).standard_normal(MODEL.shape)


def ids_of(rows: EmbeddingSet, count: int) -> frozenset[str]:
    return frozenset(hex_id(row) for row in rows.ids[:count])


@pytest.mark.parametrize("query", [Statistics(), Gradient(PARAMS), Weight(), Curvature()])
def test_statistics_answer_as_their_rows_do(query: Query) -> None:
    by_rows = query.answer(client_data("a", MODEL, ROWS))
    by_sums = query.answer(client_data("a", MODEL, SufficientStats.from_rows(ROWS)))
    assert by_rows.keys() == by_sums.keys()
    for name, array in by_rows.items():
        np.testing.assert_allclose(by_sums[name], array)
        assert array.shape == query.shapes(MODEL, len(ROWS))[name]


@pytest.mark.parametrize("rows", [3, 20], ids=["few rows", "many rows"])
def test_curvature_is_the_largest_eigenvalue(rows: int) -> None:
    client = client_data("a", MODEL, ROWS.take(np.arange(rows)))
    Z = with_ones(client.rows.rows)
    answer = Curvature().answer(client)
    assert answer["curvature"][0] == pytest.approx(np.linalg.eigvalsh(Z.T @ Z / rows)[-1])
    assert answer["trace"][0] == pytest.approx(np.square(Z).sum() / rows)
    by_row = Curvature(of_rows=True).answer(client)
    assert by_row["curvature"][0] == pytest.approx(np.square(Z).sum(axis=1).max())


def test_the_curvature_of_weighted_rows_bounds_that_of_every_batch() -> None:
    weights = np.random.default_rng(1).uniform(0, 5, len(ROWS))
    client = client_data("a", MODEL, replace(ROWS, weights=weights))
    bound = Curvature(of_rows=True).answer(client)["curvature"][0]
    largest = 0.0
    for row in range(len(ROWS)):
        batch = client.objective.batch(np.array([row]))
        z = with_ones(ROWS.rows[row : row + 1])[0]
        product = batch.product(PARAMS, np.outer(z, np.ones(3))) / batch.weight
        largest = max(
            largest, float(np.linalg.norm(product) / np.linalg.norm(np.outer(z, [1] * 3)))
        )
    assert bound == pytest.approx(largest)


def test_predictions_are_counted_by_class() -> None:
    answer = Evaluate(PARAMS).answer(client_data("a", MODEL, ROWS))
    predicted = (with_ones(ROWS.rows) @ PARAMS).argmax(axis=1)
    for true in range(3):
        for guess in range(3):
            expected = sum((ROWS.labels == true) & (predicted == guess))
            assert answer["confusion"][true, guess] == expected


def test_samples_are_left_out_or_taken_alone() -> None:
    client = client_data("a", MODEL, ROWS)
    first = client_data("a", MODEL, ROWS.take(np.arange(4)))
    others = client_data("a", MODEL, ROWS.take(np.arange(4, 20)))
    ids = ids_of(ROWS, 4)
    for keep, expected in ((True, first), (False, others)):
        answer = Restricted(Gradient(PARAMS), ids, keep).answer(client)
        np.testing.assert_array_equal(
            answer["gradient"], Gradient(PARAMS).answer(expected)["gradient"]
        )


def test_copies_of_a_row_count() -> None:
    doubled = ROWS.take(np.array([0, 1, 0, 2]))
    answer = Copies(ids_of(ROWS, 2)).answer(client_data("a", MODEL, doubled))
    assert answer["rows"].tolist() == [3.0]
    with pytest.raises(InputError):
        Copies(frozenset({"00" * 32})).answer(client_data("a", MODEL, ROWS))


def test_a_client_says_nothing_about_few_rows() -> None:
    limits = Limits(min_rows=5)
    client = RowClient("a", MODEL, ROWS, limits)
    with pytest.raises(InputError):
        RowClient("a", MODEL, ROWS.take(np.arange(4)), limits)
    with pytest.raises(InputError):  # nor about those that a question leaves
        Restricted(Statistics(), ids_of(ROWS, 4), keep=True).answer(client)
    Restricted(Statistics(), ids_of(ROWS, 5), keep=True).answer(client)


def test_a_client_trains_on_no_small_batches() -> None:
    client = RowClient("a", MODEL, ROWS, Limits(min_rows=5))
    for batch_size in (1, 4):
        plan = LocalPlan(0.01, steps=1, batch_size=batch_size)
        with pytest.raises(InputError):
            LocalFit(PARAMS, plan, TrainingLoss(0.1)).answer(client)
    LocalFit(PARAMS, LocalPlan(0.01, steps=1, batch_size=5), TrainingLoss(0.1)).answer(client)


def test_a_client_bounds_the_work_of_one_question() -> None:
    limits = Limits(work=20 * 21 * 100)
    client = RowClient("a", MODEL, ROWS, limits)
    plan = LocalPlan(0.01, steps=100)
    LocalFit(PARAMS, plan, TrainingLoss(0.1)).answer(client)
    for longer in (
        replace(plan, steps=101),
        LocalPlan(0.01, epochs=101, batch_size=10),
        LocalPlan(0.01, steps=10**9, batch_size=1),
    ):
        with pytest.raises(InputError):
            LocalFit(PARAMS, longer, TrainingLoss(0.1)).answer(client)


def test_sums_have_no_rows() -> None:
    client = client_data("a", MODEL, SufficientStats.from_rows(ROWS))
    for query in (
        LocalFit(PARAMS, LocalPlan(0.01, steps=1, batch_size=4), TrainingLoss(0.1)),
        Restricted(Statistics(), frozenset(), keep=False),
        Evaluate(PARAMS),
    ):
        with pytest.raises(InputError):
            query.answer(client)


def test_sums_have_no_gradients_of_cross_entropy() -> None:
    model = LinearModel(6, 3, CrossEntropy())
    client = StatisticsClient("a", model, SufficientStats.from_rows(ROWS))
    with pytest.raises(InputError):
        Gradient(PARAMS).answer(client)


@pytest.mark.parametrize("model", [LinearModel(7, 3), LinearModel(6, 4)])
def test_rows_must_fit_the_model(model: LinearModel) -> None:
    with pytest.raises(InputError):
        client_data("a", model, ROWS)
    with pytest.raises(InputError):
        client_data("a", model, SufficientStats.from_rows(ROWS))


def test_rows_without_labels_do_not_train() -> None:
    labels = np.array(ROWS.labels)
    labels[3] = -1
    client = client_data("a", MODEL, replace(ROWS, labels=labels))
    for query in (Statistics(), Gradient(PARAMS)):
        with pytest.raises(InputError):
            query.answer(client)
