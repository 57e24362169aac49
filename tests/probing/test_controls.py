"""Controls are at chance where nothing is wrong, and flagged where something is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet
from probekit.extraction.sources import RowSplits
from probekit.probing import probe
from probekit.probing.controls import control_rows, independence, is_suspicious
from probekit.probing.heads import fit_head
from probekit.probing.options import ProbeOptions
from probekit.probing.rows import ProbeRows, prepare_rows

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


@pytest.fixture
def rows(make_clusters: Make) -> ProbeRows:
    train = EmbeddingSet.from_numpy(*make_clusters(90))
    test = EmbeddingSet.from_numpy(*make_clusters(60, seed=1))
    return prepare_rows(RowSplits(train, test=test), ProbeOptions())


def test_balanced_rows_without_a_test_split_are_at_chance(make_clusters: Make) -> None:
    for seed in range(8):
        result = probe(make_clusters(60, classes=2, seed=seed), seed=seed, heads="ridge")
        for cell in result.cells[1:]:
            assert cell.evaluation is not None
            primary = cell.evaluation.primary
            assert primary.value > 0.2
            assert not cell.suspicious


def test_independence_has_at_most_unit_variance() -> None:
    """Otherwise controls would be flagged more often than one table in a thousand."""
    values = []
    for seed in range(60):
        options = ProbeOptions(seed=seed)
        vectors = np.random.default_rng(seed).normal(size=(60, 20))
        rows = prepare_rows(RowSplits(EmbeddingSet.from_numpy(vectors, np.arange(60) % 2)), options)
        values.append(independence(fit_head("ridge", rows, options).scores, rows))
    assert np.std(values) < 1.2
    assert abs(np.mean(values)) < 0.4


def test_both_sides_are_flagged(rows: ProbeRows) -> None:
    scores = np.random.default_rng(0).normal(size=(60, 3))
    assert not is_suspicious(scores, rows, 2)
    assert is_suspicious(rows.evaluated.target_matrix, rows, 2)
    assert is_suspicious(-rows.evaluated.target_matrix, rows, 2)


@pytest.mark.parametrize(
    ("z", "controls", "expected"),
    [(3.3, 2, False), (3.6, 2, True), (-3.6, 2, True), (3.6, 20, False)],
)
def test_the_rate_is_that_of_the_whole_table(
    z: float, controls: int, expected: bool, rows: ProbeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probekit.probing.controls.independence", lambda *_: z)
    assert is_suspicious(np.zeros((60, 3)), rows, controls) is expected


def test_training_rows_among_the_test_rows_are_flagged(make_clusters: Make) -> None:
    vectors, labels = make_clusters(150, width=60)
    result = probe((vectors, labels), test=(vectors, labels), heads="ridge")
    shuffled, random = result.cells[1:]
    assert shuffled.control == "shuffled labels"
    assert shuffled.suspicious
    assert not random.suspicious
    assert "SUSPICIOUS" in str(result)
    assert any("shuffled labels" in note for note in result.notes)


def test_shuffled_labels_keep_counts_and_give_copies_one_label(rows: ProbeRows) -> None:
    shuffled = control_rows("shuffled labels", rows, seed=0)
    for before, after in ((rows.train, shuffled.train), (rows.test, shuffled.test)):
        assert before is not None
        assert after is not None
        assert before.labels is not None
        assert after.labels is not None
        assert np.array_equal(np.bincount(before.labels), np.bincount(after.labels))
        assert not np.array_equal(before.labels, after.labels)
    copied = prepare_rows(RowSplits(rows.train, test=rows.train), ProbeOptions())
    leaked = control_rows("shuffled labels", copied, seed=0)
    assert leaked.test is not None
    assert np.array_equal(leaked.train.labels, leaked.test.labels)


def test_random_vectors_have_the_norms(rows: ProbeRows) -> None:
    random = control_rows("random vectors", rows, seed=0)
    before = np.linalg.norm(np.asarray(rows.train.rows), axis=1)
    after = np.linalg.norm(np.asarray(random.train.rows), axis=1)
    assert np.sort(after) == pytest.approx(np.sort(before))
    cosines = np.einsum("nd,nd->n", random.train.rows[:], rows.train.rows[:]) / before**2
    assert abs(cosines.mean()) < 0.2


def test_controls_of_targets_are_at_chance() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(120, 5))
    for targets in (vectors[:, :2] * 1.5, (vectors[:, :2] > 0).astype(float)):
        result = probe((vectors, targets), heads="ridge")
        assert [cell.suspicious for cell in result.cells] == [False] * 3
        leaking = probe((vectors, targets), test=(vectors, targets), heads="ridge")
        assert leaking.cells[0].copies == 120


def test_they_can_be_left_out(make_clusters: Make) -> None:
    assert len(probe(make_clusters(60), controls=False, heads="ridge").cells) == 1
