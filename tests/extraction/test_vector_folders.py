"""Folders of vectors: slides, eva's manifests, arrays by split; what is large is not copied."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.extraction import vector_files
from probekit.extraction.vectors import VectorOptions, VectorSets, is_vector_file, read_vectors
from probekit.rows import LazyRows

WIDTH = 5
X = np.random.default_rng(0).normal(size=(12, WIDTH)).astype(np.float32)
SLIDES = {"s2": slice(0, 3), "s10": slice(3, 8), "s11": slice(8, 12)}
"""Slides in the order of their files; s10 comes after s2."""
NAMES = [slide for slide, rows in SLIDES.items() for _ in range(rows.start, rows.stop)]


def read(path: Path, **options: Any) -> EmbeddingSet:
    (rows,) = read_all(path, **options)[0].values()
    return rows


def read_all(path: Path, **options: Any) -> VectorSets:
    return read_vectors(path, VectorOptions(**options))


def label_names(rows: EmbeddingSet) -> list[str]:
    assert rows.labels is not None
    return [rows.class_names[label] for label in rows.labels]


@pytest.fixture(params=["in memory", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Small files are read at once; every file is large where nothing may be."""
    if request.param == "large":
        monkeypatch.setattr(vector_files, "LARGE_BYTES", 0)
        monkeypatch.setattr("probekit.rows.LARGE_BYTES", 0)
        monkeypatch.setattr(vector_files, "BLOCK", 5)
        monkeypatch.setattr(vector_files, "SPARSE", 2)
    return str(request.param)


def trident_file(path: Path, vectors: NDArray[Any]) -> None:
    with h5py.File(path, "w") as file:  # a chunk for each tile, as TRIDENT writes them
        for name, array in {"features": vectors, "coords": np.zeros((len(vectors), 2))}.items():
            limits = (None, *array.shape[1:])
            file.create_dataset(name, data=array, maxshape=limits, chunks=(1, *array.shape[1:]))


def clam_file(path: Path, vectors: NDArray[Any]) -> None:
    torch.save(torch.from_numpy(vectors), path.with_suffix(".pt"))


def list_file(path: Path, vectors: NDArray[Any]) -> None:
    torch.save(list(torch.from_numpy(vectors)), path.with_suffix(".pt"))


def bag_file(path: Path, vectors: NDArray[Any]) -> None:
    with h5py.File(path, "w") as file:  # a batch of one bag
        file.create_dataset("features", data=vectors[None])


def bag_of_tensors_file(path: Path, vectors: NDArray[Any]) -> None:
    torch.save(torch.from_numpy(vectors)[None], path.with_suffix(".pt"))


@pytest.fixture(params=[trident_file, clam_file, list_file, bag_file, bag_of_tensors_file])
def slides(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "features"
    folder.mkdir()
    for slide, rows in SLIDES.items():
        request.param(folder / f"{slide}.h5", X[rows])
    return folder


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "slides.csv"
    path.write_text("slide_id,label,patient\ns11,tumor,p2\ns10,normal,p1\ns2,normal,p1\n")
    return path


def test_a_folder_of_slides_is_a_table_with_their_names(
    slides: Path, labels: Path, size: str
) -> None:
    assert is_vector_file(slides)
    assert not is_vector_file(labels.parent)
    rows = read(slides, labels=labels, join="slide_id", group_column="patient")
    np.testing.assert_array_equal(rows.to_numpy(), X)
    assert rows.columns["key"].tolist() == NAMES
    assert label_names(rows) == ["tumor" if name == "s11" else "normal" for name in NAMES]
    assert rows.columns["group"].tolist() == ["p2" if name == "s11" else "p1" for name in NAMES]
    assert isinstance(rows.rows, LazyRows) == (size == "large")


def test_the_column_of_names_is_called_as_it_is_joined_by(slides: Path, tmp_path: Path) -> None:
    (tmp_path / "wsi.csv").write_text("wsi,label\ns2,a\ns10,b\ns11,a\n")
    rows = read(slides, labels=tmp_path / "wsi.csv", join="wsi", keep_columns=("wsi",))
    assert rows.columns["wsi"].tolist() == NAMES


def test_tiles_that_are_not_kept_together_are_noted(slides: Path) -> None:
    _, notes = read_all(slides)
    assert any("--group slide_id" in note and "--pool mean" in note for note in notes)
    _, notes = read_all(slides, group_column="slide_id")
    assert not any("--pool" in note for note in notes)


def test_slide_embeddings_are_a_row_each(tmp_path: Path) -> None:
    for number, row in enumerate(X):
        with h5py.File(tmp_path / f"slide{number}.h5", "w") as file:
            file["features"] = row
    rows = read(tmp_path)
    np.testing.assert_array_equal(rows.to_numpy(), X)


def test_slides_of_another_width_or_without_vectors_are_named(slides: Path) -> None:
    (slides / "s3.h5").unlink(missing_ok=True)
    with h5py.File(slides / "s3.h5", "w") as file:
        file["features"] = np.zeros((2, WIDTH + 1))
    with pytest.raises(InputError, match=rf"{WIDTH} \(.*s2.*{WIDTH + 1} \(.*s3"):
        read(slides)
    with h5py.File(slides / "s3.h5", "w") as file:
        file["coords"] = np.zeros((0, 2))
        file["other"] = np.zeros((3, 2))
    with pytest.raises(InputError, match=r"s3\.h5.*coords.*--vector-column"):
        read(slides)
    (slides / "s3.h5").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"s3\.h5"):
        read(slides)


def test_weights_beside_pictures_or_classes_are_no_slides(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3, 2)}, tmp_path / "model.pt")
    assert is_vector_file(tmp_path)
    (tmp_path / "cats").mkdir()
    assert not is_vector_file(tmp_path)
    (tmp_path / "cats").rmdir()
    (tmp_path / "cat.JPG").write_bytes(b"")
    assert not is_vector_file(tmp_path)


def test_arrays_of_more_dimensions_are_no_vectors(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("features", data=np.zeros((2, 3, WIDTH)))
    with pytest.raises(InputError, match=r"s1\.h5 .*\(2, 3, 5\).*--vector-column"):
        read(tmp_path)


def test_a_slide_without_tiles_is_passed_over(slides: Path) -> None:
    with h5py.File(slides / "s3.h5", "w") as file:
        file["features"] = np.zeros((0, WIDTH), np.float32)
    np.testing.assert_array_equal(read(slides).to_numpy(), X)


def write_manifest(folder: Path, rows: list[list[str]], header: str) -> None:
    with (folder / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


@pytest.fixture
def eva(tmp_path: Path) -> Path:
    """As eva's writer leaves it: a list of tensors in each file."""
    rows = []
    for number, row in enumerate(X):
        name = f"patches/{number}.pt"
        (tmp_path / "patches").mkdir(exist_ok=True)
        torch.save([torch.from_numpy(row)], tmp_path / name)
        split = ["train", "val", "test"][number % 3]
        rows.append([f"patches/{number}.png", name, str(number % 2), split])
    write_manifest(tmp_path, rows, "origin,embeddings,target,split")
    return tmp_path


@pytest.mark.parametrize("file", ["", "manifest.csv"])
def test_a_manifest_of_eva(eva: Path, file: str, size: str) -> None:
    assert is_vector_file(eva / file)
    sets, _ = read_all(eva / file)
    assert list(sets) == ["train", "val", "test"]
    np.testing.assert_array_equal(sets["val"].to_numpy(), X[1::3])
    assert label_names(sets["test"]) == ["0", "1", "0", "1"]
    assert sets["train"].columns["key"].tolist()[:2] == ["patches/0.png", "patches/3.png"]


def test_a_manifest_with_many_vectors_a_file(tmp_path: Path) -> None:
    rows = []
    for slide, part in SLIDES.items():
        torch.save(list(torch.from_numpy(X[part])), tmp_path / f"{slide}.pt")
        rows.append([f"{slide}.png", f"{slide}.pt", "1" if slide == "s10" else "0", "", slide])
    write_manifest(tmp_path, rows, "origin,embeddings,target,split,wsi_id")
    tiles = read(tmp_path, keep_columns=("wsi_id",))
    np.testing.assert_array_equal(tiles.to_numpy(), X)
    assert tiles.columns["wsi_id"].tolist() == NAMES
    pooled = read(tmp_path, pool="mean", by="wsi_id")
    assert label_names(pooled) == ["0", "1", "0"]


def test_files_that_a_manifest_misses_or_repeats_are_named(eva: Path) -> None:
    (eva / "patches" / "4.pt").unlink()
    with pytest.raises(NotFoundError, match=r"1 of 12.*'embeddings'.*4\.pt"):
        read_all(eva)
    write_manifest(eva, [["a", "patches/1.pt", "0"], ["b", "patches/1.pt", "1"]], "id,vector,y")
    with pytest.raises(InputError, match="1 of 2"):
        read_all(eva)


def test_a_manifest_of_something_else_is_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.csv").write_text("image,label\na.png,0\n")
    assert not is_vector_file(tmp_path)
    (tmp_path / "manifest.csv").write_bytes(b"\xff\xfe\x00embeddings")
    assert not is_vector_file(tmp_path)


SPLIT_ARRAYS = {
    "X_train": X[:8],
    "y_train": np.array(["a", "b"] * 4),
    "X_test": X[8:],
    "y_test": np.array(["b", "a", "c", "a"]),
}


def check_splits(sets: dict[str, EmbeddingSet]) -> None:
    assert list(sets) == ["train", "test"]
    np.testing.assert_array_equal(sets["train"].to_numpy(), X[:8])
    np.testing.assert_array_equal(sets["test"].to_numpy(), X[8:])
    assert label_names(sets["test"]) == ["b", "a", "c", "a"]


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: "_".join(reversed(name.split("_"))),
        lambda name: name.replace("X", "features").replace("y", "labels"),
        lambda name: name.upper(),
    ],
)
def test_arrays_by_split_in_one_file(
    tmp_path: Path, rename: Callable[[str], str], size: str
) -> None:
    arrays = {rename(name): array for name, array in SPLIT_ARRAYS.items()}
    np.savez(tmp_path / "both.npz", **arrays)
    sets, notes = read_all(tmp_path / "both.npz")
    check_splits({name.lower(): rows for name, rows in sets.items()})
    assert any("(8 rows)" in note for note in notes)
    with h5py.File(tmp_path / "both.h5", "w") as file:
        for name, array in SPLIT_ARRAYS.items():
            base, split = name.split("_")
            file[f"{split}/{base}"] = array.tolist() if array.dtype.kind == "U" else array
    check_splits(read_all(tmp_path / "both.h5")[0])


def test_a_folder_of_arrays_by_split(tmp_path: Path) -> None:
    for name, array in SPLIT_ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert is_vector_file(tmp_path)
    check_splits(read_all(tmp_path)[0])
    np.save(tmp_path / "other.npy", X)
    assert not is_vector_file(tmp_path)


def test_splits_with_other_arrays_or_lengths_are_refused(tmp_path: Path) -> None:
    arrays = {name: array for name, array in SPLIT_ARRAYS.items() if name != "y_test"}
    np.savez(tmp_path / "both.npz", **arrays)
    with pytest.raises(InputError, match=r"X_train, y_train, X_test.*--vector-column"):
        read_all(tmp_path / "both.npz")
    assert len(read(tmp_path / "both.npz", vector_column="X_test")) == 4
    np.savez(tmp_path / "both.npz", **arrays, y_test=np.arange(3))
    with pytest.raises(InputError, match=r"test.*'y': 3"):
        read_all(tmp_path / "both.npz")


def test_one_split_alone_is_an_array_like_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X_train=X, y_train=np.arange(12) % 2)
    assert len(read(tmp_path / "rows.npz")) == 12


@pytest.mark.parametrize("column", ["deep/inside/rows", "/deep/inside/rows"])
def test_an_h5_array_at_any_path(tmp_path: Path, column: str, size: str) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["deep/inside/rows"] = X
        file["deep/other"] = X + 1
        file["label"] = np.arange(12) % 3
    rows = read(tmp_path / "rows.h5", vector_column=column)
    np.testing.assert_array_equal(rows.to_numpy(), X)
    assert rows.labels is not None
    with pytest.raises(InputError, match="deep/inside/rows, deep/other"):
        read(tmp_path / "rows.h5")
    with pytest.raises(InputError, match="deep/insode"):
        read(tmp_path / "rows.h5", vector_column="deep/insode")


ORDER = np.random.default_rng(3).permutation(12)


def write_h5(path: Path) -> None:
    trident_file(path, X)


def write_npz(path: Path) -> None:
    np.savez(path, features=X, other=np.asfortranarray(X[:, :2]), nothing=np.zeros((0, 2)))


def write_compressed(path: Path) -> None:
    np.savez_compressed(path, features=X)


def write_parquet(path: Path) -> None:
    lists = [None if row in (0, 1, 2, 3, 4, 8) else X[row].tolist() for row in range(12)]
    column = pa.array(lists, pa.list_(pa.float32()))
    ragged = pa.array([[1.0] * (row % 3) for row in range(12)])
    pq.write_table(pa.table({"embedding": column, "ragged": ragged}), path)


def write_safetensors(path: Path) -> None:
    safetensors.torch.save_file({"x": torch.from_numpy(X)}, path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.h5", write_h5),
        ("rows.npz", write_npz),
        ("rows.npz", write_compressed),
        ("rows.parquet", write_parquet),
        ("rows.safetensors", write_safetensors),
    ],
)
def test_large_files_give_the_rows_of_small_ones_in_any_order(
    tmp_path: Path, name: str, write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    write(path)
    options: dict[str, Any] = {"on_error": "skip"}
    if write is write_npz:
        options["vector_column"] = "features"
    small = read(path, **options)
    monkeypatch.setattr(vector_files, "LARGE_BYTES", 0)
    monkeypatch.setattr("probekit.rows.LARGE_BYTES", 0)
    monkeypatch.setattr(vector_files, "BLOCK", 5)
    monkeypatch.setattr(vector_files, "SPARSE", 1)
    large = read(path, **options)
    assert large.digest == small.digest
    assert large.skipped == small.skipped
    order = np.arange(len(small))[::-1]
    np.testing.assert_array_equal(large.rows[order], small.rows[order])
    np.testing.assert_array_equal(large.take(order[:2]).rows[:], small.take(order[:2]).rows[:])


def test_a_stored_npz_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "rows.npz")
    monkeypatch.setattr(vector_files, "LARGE_BYTES", 0)
    columns = vector_files.read_columns(tmp_path / "rows.npz", "vectors")
    assert isinstance(columns["features"], np.memmap)
    np.testing.assert_array_equal(columns["other"], X[:, :2])


def test_objects_in_a_large_npz_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_files, "LARGE_BYTES", 0)
    np.savez(tmp_path / "rows.npz", x=X, y=np.array(["a"] * 12, object), allow_pickle=True)
    with pytest.raises(InputError, match=r"rows\.npz.*astype\(str\)"):
        read(tmp_path / "rows.npz")


def test_train_and_test_of_clip_retrieval_by_a_column(tmp_path: Path, size: str) -> None:
    for number, rows in enumerate((X[:7], X[7:])):
        np.save(tmp_path / f"img_emb_{number}.npy", rows.astype(np.float16))
        splits = ["train" if number == 0 else "test"] * len(rows)
        frame = pd.DataFrame({"label": [0, 1, 1, 0, 1, 1, 0][: len(rows)], "split": splits})
        frame["only here" if number else "only there"] = 1
        frame.to_parquet(tmp_path / f"metadata_{number}.parquet")
    sets, _ = read_all(tmp_path)
    assert list(sets) == ["train", "test"]
    np.testing.assert_array_equal(sets["test"].to_numpy(), X[7:].astype(np.float16))
