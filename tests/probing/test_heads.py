"""The heads of a probe: what each is, and what is chosen for it by which rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.embeddings import EmbeddingSet
from probekit.extraction.sources import RowSplits
from probekit.heads import Head
from probekit.linear.logistic import CS
from probekit.probing import ProbeResult, probe, zero_shot
from probekit.probing.heads import HEADS
from probekit.probing.options import ProbeOptions
from probekit.probing.selection import choose_C

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]
Quick = Callable[..., ProbeResult]


def test_ridge_and_logistic_by_default_and_ridge_alone_for_targets(make_clusters: Make) -> None:
    vectors, labels = make_clusters(60)
    classes = probe((vectors, labels), controls=False)
    assert [cell.head for cell in classes.cells] == ["ridge", "logistic"]
    targets = probe((vectors, vectors[:, 0]), controls=False)
    assert [cell.head for cell in targets.cells] == ["ridge"]
    asked = probe((vectors, vectors[:, 0]), heads=("lda", "ridge"), controls=False)
    assert "targets" in asked.cells[0].error
    assert asked.cells[1].evaluation is not None


@pytest.mark.parametrize("head", [name for name in HEADS if name != "zero-shot"])
def test_every_head_learns_and_has_shots(head: str, make_clusters: Make, quick: Quick) -> None:
    test = make_clusters(150, seed=1)
    result = quick(make_clusters(90), test=test, heads=head, shots=(1, 8), draws=2)
    assert result.accuracy > 0.7
    assert all(shot.accuracy is not None for shot in result.cells[0].few_shot)
    folds = quick(make_clusters(90), heads=head)
    assert folds.accuracy > 0.6


def test_standardized_rows_are_scikit_learns(make_clusters: Make, quick: Quick) -> None:
    vectors, labels = make_clusters(90, signal=1.0)
    vectors = vectors * np.geomspace(1e-3, 1e3, 12) + 5
    X, y = make_clusters(200, signal=1.0, seed=1)
    X = X * np.geomspace(1e-3, 1e3, 12) + 5
    heads = ("logistic", "ridge", "knn")
    options = {"heads": heads, "C": 0.5, "ridge": 0.1, "normalize": "standardize"}
    result = quick((vectors, labels), test=(X, y), **options)
    for name, model in {
        "logistic": LogisticRegression(C=0.5, tol=1e-8),
        "ridge": RidgeClassifier(alpha=0.1 * 90),
    }.items():
        expected = make_pipeline(StandardScaler(), model).fit(vectors, labels).predict(X)
        assert (result.heads[name].predict(X) == expected).mean() > 0.99
    assert [cell.normalize for cell in result.cells] == ["standardize", "standardize", "l2"]
    assert result.cells[2].hits is not None
    plain = quick((vectors, labels), test=(X, y), heads="knn").cells[0].hits
    assert np.array_equal(result.cells[2].hits, plain)


def validation_splits(make_clusters: Make) -> RowSplits:
    parts = [EmbeddingSet.from_numpy(*make_clusters(60, signal=1, seed=seed)) for seed in range(3)]
    return RowSplits(*parts)


@pytest.mark.parametrize("criterion", ["log loss", "accuracy"])
def test_validation_rows_choose_c_and_join(criterion: str, make_clusters: Make) -> None:
    splits = validation_splits(make_clusters)
    assert splits.validation is not None
    assert splits.test is not None
    Cs = (0.001, 0.01, 0.1, 1.0, 10.0)
    options = {"heads": "logistic", "Cs": Cs, "criterion": criterion, "controls": False}
    result = probe(splits, **options)
    qualities = []
    for C in Cs:
        model = LogisticRegression(C=C, tol=1e-8).fit(splits.train.rows, splits.train.labels)
        probabilities = model.predict_proba(splits.validation.rows)
        quality = np.log(probabilities[np.arange(60), splits.validation.labels]).mean()
        if criterion == "accuracy":
            quality = model.score(splits.validation.rows, splits.validation.labels)
        qualities.append(quality)
    C = Cs[int(np.argmax(qualities))]
    assert result.cells[0].fit["C"] == C
    assert result.cells[0].fit["C_choice"] == "validation rows"
    assert result.cells[0].train_rows == 120
    X = np.vstack([splits.train.rows, splits.validation.rows])
    y = np.concatenate([splits.train.labels, splits.validation.labels])
    model = LogisticRegression(C=C, tol=1e-8).fit(X, y)
    assert result.accuracy == model.score(splits.test.rows, splits.test.labels)
    alone = probe(splits, **options, refit=False)
    model = LogisticRegression(C=C, tol=1e-8).fit(splits.train.rows, splits.train.labels)
    assert alone.accuracy == model.score(splits.test.rows, splits.test.labels)


def test_folds_choose_c_without_validation_rows(make_clusters: Make, quick: Quick) -> None:
    result = quick(make_clusters(90), test=make_clusters(60, seed=1), heads="logistic")
    assert "folds" in str(result.cells[0].fit["C_choice"])
    fixed = quick(make_clusters(90), test=make_clusters(60, seed=1), heads="logistic", C=0.25)
    assert fixed.cells[0].fit["C"] == 0.25


def test_the_edge_of_the_grid_is_said(make_clusters: Make) -> None:
    splits = validation_splits(make_clusters)
    result = probe(splits, heads="logistic", Cs=(1e-6, 1e-5), controls=False)
    assert any("--cs" in note for note in result.notes)


@pytest.mark.parametrize(("scale", "side"), [(1e-5, max), (1e3, min)])
def test_the_grid_of_c_is_continued_once_where_its_end_is_the_best(
    scale: float, side: Callable[..., float], make_clusters: Make
) -> None:
    parts = [make_clusters(90, signal=0.5, seed=seed) for seed in range(3)]
    sets = [EmbeddingSet.from_numpy(scale * X, y) for X, y in parts]
    for splits in (RowSplits(*sets), RowSplits(sets[0], None, sets[2])):  # validation rows, folds
        result = probe(splits, heads="logistic", controls=False)
        C = result.cells[0].fit["C"]
        assert isinstance(C, float)
        assert side(C, side(CS)) == C
        assert any("continued once" in note for note in result.notes)
        (note,) = (note for note in result.notes if "continued once" in note)
        assert f"{side(CS):.3g}" not in note
        given = probe(splits, heads="logistic", Cs=CS, controls=False)
        assert given.cells[0].fit["C"] == side(CS)
        assert any("--cs" in note for note in given.notes)


def test_cs_may_come_in_any_order(make_clusters: Make, quick: Quick) -> None:
    data = make_clusters(60)
    ordered = quick(data, heads="logistic", Cs=(0.1, 1.0, 10.0))
    assert quick(data, heads="logistic", Cs=(10, 0.1, 1, 1)).cells[0].fit == ordered.cells[0].fit


def test_controls_are_of_a_head_that_is_fitted(make_clusters: Make) -> None:
    result = probe(make_clusters(60), heads=["zero-shot", "ridge"])
    assert [cell.error != "" for cell in result.cells] == [True, False, False, False]
    assert "CLIP" in result.cells[0].error


def test_a_class_that_only_validation_rows_have(make_clusters: Make) -> None:
    splits = validation_splits(make_clusters)
    assert splits.train.labels is not None
    train = splits.train.take(np.flatnonzero(splits.train.labels != 1))
    result = probe(RowSplits(train, splits.validation, splits.test), controls=False)
    assert [bool(cell.error) for cell in result.cells] == [False, False]
    assert result.heads["logistic"].names == ("0", "2", "1")


def test_a_coarse_search_ends_at_the_best_of_its_neighbors(make_clusters: Make) -> None:
    train, validation, _ = (
        EmbeddingSet.from_numpy(*make_clusters(60, signal=1, seed=seed)) for seed in range(3)
    )
    Cs = tuple(np.geomspace(1e-4, 1e2, 49).tolist())
    options = ProbeOptions(Cs=Cs, search="coarse-to-fine")
    choice = choose_C(train, validation, options)
    everything = choose_C(train, validation, ProbeOptions(Cs=Cs)).qualities
    place = Cs.index(choice.C)
    around = [everything[Cs[number]] for number in (place - 1, place, place + 1)]
    assert around[1] == max(around) == max(everything.values())
    assert len(choice.qualities) <= 4 + 2 * 4


@pytest.fixture
def named_by_texts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Zero-shot heads whose directions are the axes; the calls."""
    calls: list[tuple[Any, ...]] = []

    def head(backbone: str, class_names: tuple[str, ...], **options: Any) -> Head:
        calls.append((backbone, class_names, options["templates"]))
        return Head(
            weights=np.eye(12)[:, : len(class_names)],
            intercept=np.zeros(len(class_names)),
            names=class_names,
            normalize="l2",
            temperature=0.1,
            fit={"templates": ["a photo of a {}."], "text": "0" * 64},
        )

    monkeypatch.setattr(zero_shot, "zero_shot_head", head)
    return calls


def test_zero_shot_looks_at_no_label(
    named: EmbeddingSet, named_by_texts: list[tuple[Any, ...]], quick: Quick
) -> None:
    result = quick(named, heads="zero-shot", shots=(1,), templates="simple")
    assert named_by_texts == [(named.encoding.backbone, ("cat", "dog", "owl"), "simple")]
    rows = np.asarray(named.rows)[:, :3]
    assert result.accuracy == pytest.approx((rows.argmax(axis=1) == named.labels).mean())
    assert result.cells[0].few_shot == ()
    assert "0000" not in str(result)


@pytest.mark.parametrize("protocol", [None, "dinov3", "clip"])
def test_separable_rows_of_large_norm_lose_only_the_largest_cs(protocol: str | None) -> None:
    """Their solutions for large C's cannot be certified; smaller ones are as good."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 400)
    rows = 0.9 * generator.normal(size=(10, 64))[labels] + generator.normal(size=(400, 64))
    rows *= 50 / np.linalg.norm(rows, axis=1, keepdims=True)
    data = (rows[:200], labels[:200])
    test = (rows[200:], labels[200:])
    result = probe(data, test=test, heads="logistic", protocol=protocol, controls=False)
    (cell,) = result.cells
    assert result.accuracy > 0.9
    assert float(cell.fit["gap"]) <= 1e-6
    assert any("could not be certified" in note for note in cell.notes)
