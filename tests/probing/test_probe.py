"""The verb: what it evaluates on, what it refuses, and what new users stumbled over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, MismatchError, NotFoundError, ProbekitError
from probekit.linear.leave_one_out import search_ridge
from probekit.linear.ridge import RidgePath, solve_ridge
from probekit.linear.stats import SufficientStats
from probekit.probing import ProbeResult, probe

Arrays = tuple[NDArray[Any], NDArray[Any]]
Make = Callable[..., Arrays]
Quick = Callable[..., ProbeResult]


def evaluation(result: ProbeResult, cell: int = 0) -> Any:
    evaluated = result.cells[cell].evaluation
    assert evaluated is not None
    return evaluated


def test_without_signal_chance_is_inside_the_interval(quick: Quick) -> None:
    inside = 0
    for seed in range(30):
        vectors = np.random.default_rng(seed).normal(size=(40, 4))
        primary = evaluation(quick((vectors, ["a", "b"] * 20), seed=seed)).primary
        inside += primary.low <= 0.5 <= primary.high
    assert inside >= 27


def test_folds_cover_the_accuracy_on_new_rows(make_clusters: Make, quick: Quick) -> None:
    covered = 0
    for seed in range(30):
        vectors, labels = make_clusters(60, classes=2, width=20, signal=1.0, seed=seed)
        result = quick((vectors, labels), seed=seed)
        rows, classes = make_clusters(3000, classes=2, width=20, signal=1.0, seed=1000 + seed)
        truth = (result.heads["ridge"].predict(rows) == classes).mean()
        primary = evaluation(result).primary
        covered += primary.low <= truth <= primary.high
    assert covered >= 26


def test_a_test_split_is_evaluated_by_the_head_of_all_training_rows(
    make_clusters: Make, quick: Quick
) -> None:
    train, test = make_clusters(150), make_clusters(90, seed=1)
    result = quick(train, test=test)
    rows = EmbeddingSet.from_numpy(*train)
    stats = SufficientStats.from_rows(rows)
    choice = search_ridge(RidgePath.of(stats), rows)
    params = solve_ridge(stats, choice.value)
    predicted = (test[0] @ params[:-1] + params[-1]).argmax(axis=1)
    cell = result.cells[0]
    assert result.accuracy == (predicted == test[1]).mean()
    assert cell.fit == {"ridge": choice.value, "ridge_choice": "leave-one-out"}
    assert (cell.train_rows, cell.test_rows, cell.evaluated_on) == (150, 90, "test rows")
    assert (cell.width, cell.normalize) == (12, "none")
    assert np.array_equal(result.heads["ridge"].predict(test[0]), predicted)


def test_fold_scores_are_those_of_refitted_heads(make_clusters: Make, quick: Quick) -> None:
    from sklearn.linear_model import Ridge

    from probekit.linear.folds import draw_folds

    vectors, labels = make_clusters(60, signal=1.0)
    result = quick((vectors, labels), ridge=0.1)
    folds = draw_folds(np.arange(60), labels, 0)
    hits = np.zeros(60, bool)
    for fold in range(5):
        rest = folds != fold
        model = Ridge(alpha=0.1 * rest.sum()).fit(vectors[rest], np.eye(3)[labels[rest]])
        hits[~rest] = model.predict(vectors[~rest]).argmax(axis=1) == labels[~rest]
    assert result.accuracy == hits.mean()


def test_beyond_many_rows_folds_share_the_ridge_of_all(
    make_clusters: Make, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_clusters(45, signal=1.0, width=30)
    nested = quick(data)
    monkeypatch.setattr("probekit.probing.heads.NESTED_ROWS", 10)
    shared = quick(data)
    fixed = quick(data, ridge=shared.cells[0].fit["ridge"])
    assert evaluation(shared).calibration_error == evaluation(fixed).calibration_error
    assert evaluation(shared).calibration_error != evaluation(nested).calibration_error


def test_l2_rows_and_a_number_as_ridge(make_clusters: Make, quick: Quick) -> None:
    vectors, labels = make_clusters(90)
    scaled = vectors * np.random.default_rng(0).uniform(0.1, 10, (90, 1))
    plain = quick((vectors, labels), normalize="l2", ridge=0.01)
    other = quick((scaled, labels), normalize="l2", ridge=0.01)
    assert plain.accuracy == other.accuracy
    assert plain.cells[0].fit == {"ridge": 0.01, "ridge_choice": "manual"}
    assert plain.cells[0].normalize == "l2"


def test_copies_between_training_and_test_rows_are_counted(
    make_clusters: Make, quick: Quick
) -> None:
    vectors, labels = make_clusters(300)
    reported = quick((vectors, labels), test=(vectors[:200], labels[:200]))
    assert reported.cells[0].copies == 200
    assert any("--drop-copies" in note and "200" in note for note in reported.notes)
    dropped = quick((vectors, labels), test=(vectors[:200], labels[:200]), drop_copies=True)
    assert dropped.cells[0].train_rows == 100
    assert dropped.cells[0].test_rows == 200
    with pytest.raises(InputError, match="--test"):
        quick((vectors, labels), test=(vectors, labels), drop_copies=True)


def test_copies_stay_in_one_fold(quick: Quick) -> None:
    """Every row twice with random labels: nothing can be known."""
    inside = 0
    for seed in range(10):
        generator = np.random.default_rng(seed)
        vectors = np.repeat(generator.normal(size=(100, 60)), 2, axis=0)
        labels = np.repeat(generator.permutation(np.arange(100) % 2), 2)
        result = quick((vectors, labels), seed=seed)
        primary = evaluation(result).primary
        inside += primary.low <= 0.5 <= primary.high
        assert result.cells[0].copies == 100
        assert any("100" in note for note in result.notes)
    assert inside >= 9


def test_classes_are_matched_by_name(named: EmbeddingSet, quick: Quick) -> None:
    """The test rows lack owl, have wolf, and number their classes otherwise."""
    assert named.labels is not None
    known = np.flatnonzero(named.labels < 2)[:40]
    vectors = np.vstack([np.asarray(named.rows)[known] + 0.01, np.ones((10, 12))])
    names = [named.class_names[named.labels[row]] for row in known] + ["wolf"] * 10
    result = quick(named, test=EmbeddingSet.from_numpy(vectors, np.array(names)))
    cell = result.cells[0]
    assert cell.unknown_classes == {"wolf": 10}
    assert cell.missing_classes == ("owl",)
    assert 0.6 < result.accuracy <= 0.8
    assert evaluation(result).per_class["wolf"].value == 0.0
    assert any("wolf" in note for note in result.notes)
    assert any("owl" in note for note in result.notes)
    assert result.heads["ridge"].names == ("cat", "dog", "owl")


def test_rows_that_share_no_class_are_refused(named: EmbeddingSet, quick: Quick) -> None:
    other = EmbeddingSet.from_numpy(np.ones((3, 12)), np.array(["x", "y", "z"]))
    with pytest.raises(MismatchError, match="cat"):
        quick(named, test=other)


def test_classes_without_training_rows_are_no_outputs(make_clusters: Make, quick: Quick) -> None:
    vectors, labels = make_clusters(60, classes=2)
    result = quick((vectors, labels * 3))
    assert result.heads["ridge"].names == ("0", "3")


def test_dtype_and_a_zero_row_do_not_matter_but_the_width_does(
    make_clusters: Make, quick: Quick
) -> None:
    vectors, labels = make_clusters(90)
    vectors[0] = 0.0
    test = vectors[60:].astype(np.float16)
    for normalize in ("none", "l2"):
        train = (vectors[:60].astype(np.float32), labels[:60])
        result = quick(train, test=(test, labels[60:]), normalize=normalize)
        assert result.accuracy > 0.5
    with pytest.raises(MismatchError, match="11"):
        quick((vectors, labels), test=(vectors[:, :11], labels))


def test_rows_of_another_encoding_are_refused(named: EmbeddingSet, quick: Quick) -> None:
    from dataclasses import replace

    from probekit.embeddings import Encoding

    other = replace(named, encoding=Encoding("hf:other", {"weights": "x"}))
    with pytest.raises(MismatchError, match="hf:other"):
        quick(named, test=other)


def test_groups_are_left_out_together(make_clusters: Make, quick: Quick) -> None:
    """Each group has its own direction and one label: rows in folds know it, groups do not."""
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(40), 5)
    labels = generator.permutation(np.arange(40) % 2)[groups]
    vectors = generator.normal(size=(40, 60))[groups] + 0.05 * generator.normal(size=(200, 60))
    leaking = quick((vectors, labels))
    grouped = quick((vectors, labels), groups=groups)
    assert leaking.accuracy > 0.95
    assert grouped.accuracy < 0.8
    primary = evaluation(grouped).metrics["accuracy"]
    assert primary.low <= 0.5 <= primary.high
    assert "groups" in primary.method
    assert "grouped" in grouped.cells[0].evaluated_on
    assert grouped.cells[0].fit["ridge_choice"] == "leave-groups-out"


def test_the_primary_metric_is_balanced_where_a_class_has_more_than_half(quick: Quick) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(100, 5))
    labels = (np.arange(100) < 20).astype(int)
    result = quick((vectors, labels))
    assert evaluation(result).metric == "balanced_accuracy"
    assert evaluation(result).chance == 0.5
    assert any("--metric" in note for note in result.notes)
    chosen = quick((vectors, labels), metric="accuracy")
    assert evaluation(chosen).metric == "accuracy"
    assert evaluation(chosen).chance == 0.8
    assert evaluation(quick((vectors, labels), metric="auroc")).chance == 0.5


def test_a_metric_that_is_not_defined_is_refused(make_clusters: Make, quick: Quick) -> None:
    with pytest.raises(InputError, match="balanced_accuracy"):
        quick(make_clusters(60), metric="r2")


def test_real_targets_and_several_labels(quick: Quick) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(200, 8))
    numbers = vectors[:, :2] + 0.2 * generator.normal(size=(200, 2))
    real = quick((vectors, numbers))
    assert evaluation(real).metric == "r2"
    assert evaluation(real).primary.value > 0.9
    assert "| 0.9" in str(real)
    with pytest.raises(InputError, match="r2"):
        _ = real.accuracy
    scaled = quick((vectors, numbers * [1e6, 1e-3]))
    assert scaled.cells[0].fit == real.cells[0].fit
    several = quick((vectors, (numbers > 0).astype(float)), test=(vectors[:50], numbers[:50] > 0))
    assert evaluation(several).metric == "average_precision"
    assert set(evaluation(several).metrics) == {"average_precision", "auroc"}
    probabilities = several.heads["ridge"].predict_proba(vectors)
    assert 0 <= probabilities.min() <= probabilities.max() <= 1


def test_a_validation_split_joins_the_training_rows(named: EmbeddingSet) -> None:
    from probekit.extraction.sources import RowSplits

    parts = [named.take(np.arange(start, start + 40)) for start in (0, 40, 80)]
    result = probe(RowSplits(parts[0], parts[1], parts[2]), controls=False, heads="ridge")
    assert (result.cells[0].train_rows, result.cells[0].test_rows) == (80, 40)
    assert any("validation" in note for note in result.notes)
    joined = probe(named.take(np.arange(80)), test=parts[2], controls=False, heads="ridge")
    assert joined.accuracy == result.accuracy


def test_calibration_uses_no_evaluated_row(make_clusters: Make, quick: Quick) -> None:
    """Other test labels change the error but not the head's temperature."""
    vectors, labels = make_clusters(150, signal=1.0)
    test = (vectors[100:], labels[100:])
    result = quick((vectors[:100], labels[:100]), test=test)
    turned = quick((vectors[:100], labels[:100]), test=(test[0], (test[1] + 1) % 3))
    first, second = result.heads["ridge"], turned.heads["ridge"]
    assert first.temperature == second.temperature
    assert first.digest == second.digest
    assert evaluation(result).calibration_error < evaluation(turned).calibration_error
    assert evaluation(quick((vectors, labels))).calibration_error < 0.2


def test_several_heads_and_too_many_neighbors(make_clusters: Make, quick: Quick) -> None:
    train, test = make_clusters(60), make_clusters(30, seed=1)
    result = quick(train, test=test, heads=["ridge", "knn"], knn=5000)
    assert [cell.head for cell in result.cells] == ["ridge", "knn"]
    assert result.cells[1].fit == {"k": 60}
    assert result.cells[1].normalize == "l2"
    assert any("5000" in note for note in result.notes)
    assert set(result.heads) == {"ridge"}
    folds = quick(train, heads="knn", knn=5)
    assert folds.accuracy > 0.5


def test_knn_in_folds_is_scikit_learns(make_clusters: Make, quick: Quick) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    from probekit.linear.folds import draw_folds

    vectors, labels = make_clusters(60, signal=1.5)
    folds = draw_folds(np.arange(60), labels, 0)
    hits = np.zeros(60, bool)
    for fold in range(5):
        rest = folds != fold
        model = KNeighborsClassifier(1, metric="cosine").fit(vectors[rest], labels[rest])
        hits[~rest] = model.predict(vectors[~rest]) == labels[~rest]
    assert quick((vectors, labels), heads="knn", knn=1).accuracy == hits.mean()


def test_a_cell_that_fails_is_shown_and_the_others_go_on(
    named: EmbeddingSet, make_clusters: Make, quick: Quick
) -> None:
    single = EmbeddingSet.from_numpy(np.ones((4, 2)), ["a"] * 4, source="single")
    result = quick([named, single])
    assert [bool(cell.error) for cell in result.cells] == [False, True]
    assert "'a'" in result.cells[1].error
    assert "failed" in str(result)
    assert result.failed == (result.cells[1],)
    assert result.accuracy > 0.5


@pytest.mark.parametrize(
    ("data", "kind"), [("no-such-set", NotFoundError), (([[1.0], [2.0]], ["a", "a"]), InputError)]
)
def test_where_nothing_is_computed_the_error_is_raised(
    data: object, kind: type[ProbekitError], quick: Quick
) -> None:
    with pytest.raises(kind):
        quick(data)


def test_nothing_given_is_the_default(make_clusters: Make) -> None:
    result = probe(make_clusters(60), heads=None, shots=None, controls=False)
    assert [cell.head for cell in result.cells] == ["ridge", "logistic"]


def test_no_rows_are_said(make_clusters: Make, quick: Quick) -> None:
    vectors, labels = make_clusters(60)
    with pytest.raises(InputError, match="no test rows"):
        quick((vectors, labels), test=(vectors[:0], labels[:0]))


def test_an_unknown_keyword_names_the_nearest(make_clusters: Make, quick: Quick) -> None:
    with pytest.raises(InputError, match="label_column"):
        quick(make_clusters(30), label_colum="x")
    with pytest.raises(InputError, match="shots"):
        quick(make_clusters(30), shot=3)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"ridge": float("nan")}, "nan"),
        ({"ridge": float("inf")}, "inf"),
        ({"ridge": -1.0}, "-1.0"),
        ({"ridge": "best"}, "best"),
        ({"normalize": "L2"}, "L2"),
        ({"heads": "rigde"}, "Did you mean ridge"),
        ({"heads": ("ridge", "knn:0")}, "knn:0"),
        ({"confidence": 95}, "95"),
        ({"shots": (4, 0)}, "found 0"),
        ({"draws": 0}, "found 0"),
        ({"knn": 0}, "found 0"),
        ({"metric": "acuracy"}, "Did you mean accuracy"),
        ({"seed": -1}, "found -1"),
    ],
)
def test_bad_options_are_refused_with_their_value(
    options: dict[str, Any], shown: str, make_clusters: Make, quick: Quick
) -> None:
    with pytest.raises(InputError) as error:
        quick(make_clusters(30), **options)
    assert shown in str(error.value)


def test_tables_tensors_and_objects_are_converted(make_clusters: Make, quick: Quick) -> None:
    import pandas
    import torch

    vectors, labels = make_clusters(60)
    expected = quick((vectors.astype(np.float32), labels)).accuracy
    frame = pandas.DataFrame(vectors.astype(np.float32))
    assert quick((frame, pandas.Series(labels))).accuracy == expected
    tensor = torch.from_numpy(vectors).to(torch.bfloat16)
    assert quick((tensor, torch.from_numpy(labels))).accuracy == pytest.approx(expected, abs=0.1)
    objects = np.array([f"class {label}" for label in labels], object)
    assert quick((vectors.astype(np.float32), objects)).accuracy == expected


def test_rows_with_nan_are_counted_and_named(make_clusters: Make, quick: Quick) -> None:
    vectors, labels = make_clusters(60)
    vectors[[5, 9]] = np.nan
    with pytest.raises(InputError, match=r"2 of 60.*5, 9.*--on-error skip"):
        quick((vectors, labels))


def test_vectors_without_labels_name_the_flag(make_clusters: Make, quick: Quick) -> None:
    with pytest.raises(InputError, match="--labels"):
        quick(EmbeddingSet.from_numpy(make_clusters(30)[0]))


def test_rows_without_a_label_are_left_out_and_counted(named: EmbeddingSet, quick: Quick) -> None:
    from dataclasses import replace

    assert named.labels is not None
    labels = named.labels.copy()
    labels[:7] = -1
    result = quick(replace(named, labels=labels))
    assert result.cells[0].train_rows == 113
    assert any(note.startswith("7 ") for note in result.notes)


def test_test_rows_and_groups_belong_to_one_dataset(named: EmbeddingSet, quick: Quick) -> None:
    with pytest.raises(InputError, match="--test"):
        quick([named, named], test=named)


def test_a_set_that_is_encoded_refuses_a_backbone(named: EmbeddingSet, tmp_path: Path) -> None:
    from probekit.cache import Cache

    Cache().save("food-train", named)
    with pytest.raises(InputError, match="food-train"):
        probe("food-train", backbone="pixels:4", heads="ridge")
    result = probe("food-train", controls=False, heads="ridge")
    assert result.cells[0].data == "food-train"
    with pytest.raises(NotFoundError, match="food-train"):
        probe("food-trian", heads="ridge")
    with pytest.raises(NotFoundError, match="nosuch"):
        probe("food-train", test="nosuch", heads="ridge")


def test_a_dataset_dict_is_used_with_its_test_split() -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
    from PIL import Image as Pillow

    def split(count: int, seed: int) -> Dataset:
        generator = np.random.default_rng(seed)
        pixels = generator.integers(0, 120, (count, 6, 6), dtype=np.uint8)
        pixels[::2, :3] += 100
        pictures = [Pillow.fromarray(picture) for picture in pixels]
        features = Features({"image": Image(), "label": ClassLabel(names=["up", "none"])})
        labels = [number % 2 for number in range(count)]
        return Dataset.from_dict({"image": pictures, "label": labels}, features=features)

    both = DatasetDict({"train": split(40, 0), "test": split(16, 1)})
    result = probe(both, backbone="pixels:6", controls=False, heads="ridge")
    assert (result.cells[0].evaluated_on, result.cells[0].test_rows) == ("test rows", 16)
    assert result.accuracy > 0.9


def test_several_backbones_are_several_cells(tmp_path: Path, make_clusters: Make) -> None:
    from PIL import Image

    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6), dtype=np.uint8)
        pixels[: 3 * (number % 2)] //= 3
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    data = str(tmp_path / "photos")
    result = probe(data, backbone=["pixels:6", "pixels:3", "pixles:3"], heads="ridge")
    names = [(cell.backbone, bool(cell.error)) for cell in result.cells if not cell.control]
    assert names == [("pixels:6", False), ("pixels:3", False), ("pixles:3", True)]
    assert [cell.control for cell in result.cells if cell.control] == [
        "shuffled labels",
        "random vectors",
    ]
    assert {cell.data for cell in result.cells} == {data}
    assert all(cell.view for cell in result.cells if not cell.error)
    with pytest.raises(InputError, match="2 pairs"):
        _ = result.accuracy
