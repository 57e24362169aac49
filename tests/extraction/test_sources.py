"""DATA is a cached set, a path, a name with a scheme, or objects in memory; in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from probekit.cache import Cache
from probekit.data import DataOptions
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.extraction.sources import RowSplits, is_encoded, read_rows
from tests.extraction.samples import GridBackbone, picture


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number in range(12):
        split = ["training", "val", "Test"][number % 3]
        path = folder / split / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return folder


def vectors(seed: int, rows: int = 6) -> tuple[Any, list[str]]:
    return np.random.default_rng(seed).normal(size=(rows, 3)), ["a", "b"] * (rows // 2)


def test_arrays_with_test_rows_and_groups(cache: Cache) -> None:
    (splits,) = read_rows(vectors(0), cache=cache, test=vectors(1), groups=list("xxyyzz"))
    assert len(splits.train) == 6
    assert splits.test is not None
    assert splits.train.columns["group"].tolist() == list("xxyyzz")
    assert splits.train.class_names == ("a", "b")
    with pytest.raises(InputError, match="groups"):
        read_rows(vectors(0), cache=cache, groups=[1, 2])


def test_a_set_and_splits_are_taken_as_they_are(cache: Cache) -> None:
    rows = EmbeddingSet.from_numpy(*vectors(0))
    splits = RowSplits(rows)
    assert read_rows(rows, cache=cache)[0].train is rows
    assert read_rows(splits, cache=cache) == [splits]


def test_a_dataset_is_encoded_with_all_its_splits(cache: Cache, photos: Path) -> None:
    (splits,) = read_rows(str(photos), cache=cache, backbone=GridBackbone())
    assert splits.validation is not None
    assert splits.test is not None
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [4, 4, 4]
    assert splits.train.source == str(photos)
    assert len(cache.names()) == 3


def test_a_chosen_split_stands_alone(cache: Cache, photos: Path) -> None:
    data = DataOptions(split="test")
    (splits,) = read_rows(str(photos), cache=cache, backbone=GridBackbone(), data=data)
    assert splits.test is None
    assert len(splits.train) == 4


def test_cached_sets_come_first(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    cache.save("mine", EmbeddingSet.from_numpy(*vectors(0)))
    (splits,) = read_rows("mine", cache=cache)
    assert len(splits.train) == 6
    assert any("cached" in note for note in splits.notes)
    with pytest.raises(InputError, match="-b"):
        read_rows("mine", cache=cache, backbone="pixels")


def test_the_cached_splits_of_a_name_are_its_splits(cache: Cache) -> None:
    for number, name in enumerate(("mine-test", "mine-train", "mine-again")):
        X, labels = vectors(number)
        cache.save(name, EmbeddingSet.from_numpy(X, labels))
    assert is_encoded("mine", cache)
    (splits,) = read_rows("mine", cache=cache)
    assert splits.test is not None
    np.testing.assert_array_equal(splits.train.to_numpy(), vectors(1)[0])
    np.testing.assert_array_equal(splits.test.to_numpy(), vectors(0)[0])
    assert splits.notes == ("mine: the cached sets mine-train, mine-test.",)
    (alone,) = read_rows("mine", cache=cache, data=DataOptions(split="test"))
    assert (len(alone.train), alone.test) == (6, None)
    with pytest.raises(NotFoundError):
        read_rows("min", cache=cache)


def test_vector_files_are_read_directly(cache: Cache, tmp_path: Path) -> None:
    X, labels = vectors(0)
    np.savez(tmp_path / "v.npz", embedding=X, label=np.array(labels))
    (splits,) = read_rows(str(tmp_path / "v.npz"), cache=cache)
    np.testing.assert_array_equal(splits.train.to_numpy(), X)


def test_the_splits_of_a_vector_file_are_used_and_noted(cache: Cache, tmp_path: Path) -> None:
    X, labels = vectors(0)
    splits = np.array(["train", "train", "test"] * 2)
    np.savez(tmp_path / "v.npz", embedding=X, label=np.array(labels), split=splits)
    (rows,) = read_rows(tmp_path / "v.npz", cache=cache)
    assert rows.test is not None
    assert (len(rows.train), len(rows.test)) == (4, 2)
    assert any("train (4 rows), test (2 rows)" in note for note in rows.notes)
    (rows,) = read_rows(tmp_path / "v.npz", cache=cache, data=DataOptions(split="test"))
    assert (len(rows.train), rows.test) == (2, None)


def test_frames_of_numbers_and_frames_with_a_column_of_vectors(cache: Cache) -> None:
    X, labels = vectors(0)
    (rows,) = read_rows((pandas.DataFrame(X), pandas.Series(labels)), cache=cache)
    np.testing.assert_array_equal(rows.train.to_numpy(), X)
    frame = pandas.DataFrame({"embedding": list(X), "label": labels})
    (rows,) = read_rows(frame, cache=cache)
    np.testing.assert_array_equal(rows.train.to_numpy(), X)
    assert rows.train.class_names == ("a", "b")
    with pytest.raises(InputError, match="-b"):
        read_rows(pandas.DataFrame({"text": labels, "label": labels}), cache=cache)


def test_two_imports_can_be_compared(cache: Cache) -> None:
    X, labels = vectors(0)
    cache.save("train", EmbeddingSet.from_numpy(X, labels, source="train.npy"))
    other = np.zeros((2, 3), np.float32)
    cache.save("test", EmbeddingSet.from_numpy(other, ["a", "b"], source="test.npy"))
    (splits,) = read_rows("train", cache=cache, test="test")
    assert splits.test is not None
    assert splits.train.encoding.same_space(splits.test.encoding)


@pytest.mark.parametrize(
    ("source", "clue"), [("food-trian", "food-train"), ("./nowhere", "nowhere")]
)
def test_unknown_names_suggest_near_ones(cache: Cache, source: str, clue: str) -> None:
    cache.save("food-train", EmbeddingSet.from_numpy(*vectors(0)))
    with pytest.raises(NotFoundError, match=clue):
        read_rows(source, cache=cache)
    with pytest.raises(NotFoundError, match=clue):
        read_rows(vectors(0), cache=cache, test=source)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ((np.arange(9.0), np.arange(9)), "float64 of shape (9,) "),
        ((np.zeros((9, 1, 4)), np.arange(9)), "(9, 1, 4)"),
        (np.zeros((9, 4), complex), "complex128"),
        (None, "NoneType"),
        ([], "list"),
    ],
)
def test_what_are_no_vectors_is_described(cache: Cache, source: object, shown: str) -> None:
    with pytest.raises(InputError) as error:
        read_rows(source, cache=cache)
    assert shown in str(error.value)
    assert "(n, d)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pickle_is_no_dataset_to_be_encoded(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "rows.pkl").write_bytes(b"")
    with pytest.raises(InputError, match=r"tables, npz.*rows\.pkl.*import"):
        read_rows(str(tmp_path / "rows.pkl"), cache=cache)


def test_a_dataset_without_a_backbone_names_the_flag(cache: Cache, photos: Path) -> None:
    with pytest.raises(InputError, match="-b"):
        read_rows(str(photos), cache=cache)
