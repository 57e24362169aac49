"""Few-shot heads: draws, groups, and what there is too little of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet
from probekit.extraction.sources import RowSplits
from probekit.probing import ProbeResult, probe
from probekit.probing.few_shot import class_orders, few_shot
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import prepare_rows

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


def test_more_shots_are_better_and_all_draws_count(make_clusters: Make) -> None:
    train, test = make_clusters(300, signal=2.5), make_clusters(200, signal=2.5, seed=1)
    result = probe(train, test=test, shots=(1, 4, 32), draws=4, controls=False, heads="ridge")
    curve = result.cells[0].few_shot
    values = [shot.accuracy.value for shot in curve if shot.accuracy]
    assert values == sorted(values)
    assert values[0] > 0.4
    for shot in curve:
        assert shot.accuracy is not None
        assert len(shot.accuracies) == 4
        assert shot.accuracy.value == pytest.approx(np.mean(shot.accuracies))
        assert shot.deviation == pytest.approx(np.std(shot.accuracies, ddof=1))
        assert shot.accuracy.low < shot.accuracy.value


def test_all_rows_as_shots_are_the_probe(make_clusters: Make) -> None:
    train, test = make_clusters(60), make_clusters(90, seed=1)
    result = probe(train, test=test, shots=20, draws=2, controls=False, heads="ridge")
    accuracies = result.cells[0].few_shot[0].accuracies
    assert accuracies == (result.accuracy, result.accuracy)


def test_too_many_shots_say_which_class_and_the_accuracy_stands(make_clusters: Make) -> None:
    vectors, labels = make_clusters(90)
    keep = np.flatnonzero((labels != 1) | (np.arange(90) < 12))
    result = probe((vectors[keep], labels[keep]), shots=(2, 500), controls=False, heads="ridge")
    curve = result.cells[0].few_shot
    assert curve[0].accuracy is not None
    assert curve[1].accuracy is None
    assert "'1'" in curve[1].error
    assert "500" in curve[1].error
    assert result.accuracy > 0.5
    assert any("'1'" in note for note in result.notes)


def test_draws_are_nested_and_of_different_groups() -> None:
    groups = np.arange(60) // 4
    rows = EmbeddingSet.from_numpy(
        np.random.default_rng(0).normal(size=(60, 3)),
        np.arange(60) % 2,
        columns={"group": groups.tolist()},
    )
    prepared = prepare_rows(RowSplits(rows), ProbeOptions())
    orders = class_orders(prepared, 0, 0)
    for number, order in enumerate(orders):
        assert len(np.unique(groups[order])) == len(order) == 15
        assert rows.labels is not None
        assert (rows.labels[order] == number).all()
    assert not np.array_equal(orders[0], class_orders(prepared, 0, 1)[0])
    too_many = few_shot("ridge", prepared, ProbeOptions(shots=(16,)))[0]
    assert "15 groups" in too_many.error


def test_without_test_rows_drawn_rows_and_their_groups_are_not_evaluated() -> None:
    """Groups know their labels: evaluating on the drawn ones would be right always."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 6)
    labels = generator.permutation(np.arange(30) % 2)[groups]
    vectors = generator.normal(size=(30, 80))[groups]
    result: ProbeResult = probe(
        (vectors + 1e-3 * generator.normal(size=vectors.shape), labels),
        groups=groups,
        shots=(10,),
        draws=10,
        controls=False,
        heads="ridge",
    )
    shot = result.cells[0].few_shot[0]
    assert shot.accuracy is not None
    assert 0.3 < shot.accuracy.value < 0.7


def test_neighbors_have_shots_too(make_clusters: Make) -> None:
    result = probe(make_clusters(90), heads="knn", shots=(1, 8), controls=False)
    one, eight = (shot.accuracy for shot in result.cells[0].few_shot)
    assert one is not None
    assert eight is not None
    assert 0.4 < one.value < eight.value


def test_no_row_left_to_evaluate_is_said() -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 3))
    result = probe((vectors, [0, 1] * 5), shots=(5,), controls=False, heads="ridge")
    assert "--test" in result.cells[0].few_shot[0].error


def test_targets_have_no_shots() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 3))
    result = probe((vectors, vectors @ [1.0, 2.0, 3.0]), shots=(2,), controls=False, heads="ridge")
    assert result.cells[0].few_shot[0].error
    assert result.cells[0].evaluation is not None
