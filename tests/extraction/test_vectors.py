"""Vectors from files: every format gives the same set; what is not certain is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from probekit.extraction.vectors import (
    VectorOptions,
    is_vector_file,
    read_vector_frame,
    read_vectors,
)

COUNT = 12
X = np.random.default_rng(0).normal(size=(COUNT, 11)).astype(np.float32)
NAMES = ["cat", "dog", "dog"] * 4
KEYS = [f"k{number}" for number in range(COUNT)]


def read(path: Path, **options: Any) -> EmbeddingSet:
    sets, _ = read_vectors(path, VectorOptions(**options))
    (rows,) = sets.values()
    return rows


def label_names(rows: EmbeddingSet) -> list[str]:
    assert rows.labels is not None
    return [rows.class_names[label] for label in rows.labels]


def write_npz(path: Path) -> None:
    np.savez(path, x=X, y=np.array(NAMES))


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"key": KEYS, "embedding": list(X), "label": NAMES}), path)


def write_fixed_lists(path: Path) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    pq.write_table(pa.table({"embedding": lists, "label": NAMES}), path, row_group_size=5)


def write_csv(path: Path) -> None:
    frame = pd.DataFrame({"embedding": [row.astype(float).tolist() for row in X], "label": NAMES})
    frame.to_csv(path, index=False)


def write_jsonl(path: Path) -> None:
    lines = [
        json.dumps({"vector": row.astype(float).tolist(), "class": name})
        for row, name in zip(X, NAMES, strict=True)
    ]
    path.write_text("\n".join(lines))


def write_h5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = X
        file["coords"] = np.zeros((COUNT, 2))
        file["label"] = NAMES


def write_torch(path: Path) -> None:
    torch.save({"x": torch.from_numpy(X), "labels": NAMES}, path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.npz", write_npz),
        ("rows.parquet", write_parquet),
        ("fixed.parquet", write_fixed_lists),
        ("rows.csv", write_csv),
        ("rows.jsonl", write_jsonl),
        ("rows.h5", write_h5),
        ("rows.pt", write_torch),
    ],
)
def test_every_format_gives_the_same_set(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    write(path)
    assert is_vector_file(path)
    rows = read(path)
    expected = EmbeddingSet.from_numpy(X)
    np.testing.assert_array_equal(rows.to_numpy(), X)
    np.testing.assert_array_equal(rows.ids, expected.ids)
    assert label_names(rows) == NAMES
    assert rows.source == str(path)
    assert rows.encoding.same_space(expected.encoding)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_an_array_keeps_its_dtype_and_is_not_copied(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "rows.npy", X.astype(dtype))
    rows = read(tmp_path / "rows.npy")
    assert rows.encoding.dtype == np.dtype(dtype).name
    np.testing.assert_array_equal(rows.to_numpy(), X.astype(dtype))
    assert rows.labels is None
    if np.dtype(dtype).isnative:
        base: Any = rows.rows
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_of_every_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(X).to(dtype)
    safetensors.torch.save_file({"x": tensor}, tmp_path / "rows.safetensors")
    torch.save(tensor, tmp_path / "rows.pt")
    for name in ("rows.safetensors", "rows.pt"):
        np.testing.assert_array_equal(read(tmp_path / name).to_numpy(), tensor.float().numpy())


def test_several_arrays_need_a_name_and_at_most_ten_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, **{f"layer{number}": X + number for number in range(30)})
    with pytest.raises(InputError, match="--vector-column") as refusal:
        read(path)
    assert str(refusal.value).count("layer") == 10
    np.testing.assert_array_equal(read(path, vector_column="layer7").to_numpy(), X + 7)
    with pytest.raises(InputError, match="layer77"):
        read(path, vector_column="layer77")


def test_many_columns_by_a_pattern_in_the_order_of_their_names(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(X.shape[1])
    columns = {f"f{number}": X[:, number] for number in order}
    frame = pd.DataFrame({"label": NAMES, **columns, "file": KEYS})
    for name in ("rows.parquet", "rows.csv"):
        path = tmp_path / name
        frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
        with pytest.raises(InputError, match=r"13 in all.*--vector-columns 'f\*'"):
            read(path)
        with pytest.raises(InputError, match="'file'"):
            read(path, vector_columns="f*")
        rows = read(path, vector_columns="f[0-9]*")
        np.testing.assert_allclose(rows.to_numpy(), X, rtol=1e-6)
        assert label_names(rows) == NAMES
        with pytest.raises(NotFoundError, match="z"):
            read(path, vector_columns="z*")


def test_a_pattern_never_takes_the_label_or_a_named_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": [0, 1] * 6, "site": [1, 2] * 6})
    frame.to_parquet(tmp_path / "rows.parquet")
    rows = read(tmp_path / "rows.parquet", vector_columns="*", client_column="site")
    np.testing.assert_array_equal(rows.to_numpy(), X[:, :2])
    assert rows.columns["client"].tolist() == ["1", "2"] * 6


def write_label_csv(path: Path, rows: list[int]) -> Path:
    lines = [f"{KEYS[row]},{NAMES[row]},p{row // 4}" for row in rows]
    path.write_text("\n".join(["key,label,patient", *lines]) + "\n")
    return path


SHUFFLED = np.random.default_rng(2).permutation(COUNT).tolist()


def test_labels_that_share_a_key_in_another_order_are_refused_then_joined(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"key": KEYS, "embedding": list(X)}), path)
    labels = write_label_csv(tmp_path / "labels.csv", SHUFFLED)
    with pytest.raises(InputError, match="--join key"):
        read(path, labels=labels)
    rows = read(path, labels=labels, join="key", group_column="patient", keep_columns=("patient",))
    assert label_names(rows) == NAMES
    assert rows.columns["key"].tolist() == KEYS
    assert rows.columns["group"].tolist() == [f"p{row // 4}" for row in range(COUNT)]
    assert rows.columns["patient"].tolist() == rows.columns["group"].tolist()
    in_order = write_label_csv(tmp_path / "in-order.csv", list(range(COUNT)))
    assert label_names(read(path, labels=in_order)) == NAMES
    with pytest.raises(InputError, match="slide"):
        read(path, labels=labels, join="slide")


def test_missing_and_repeated_keys_are_counted_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=X, key=np.array(KEYS))
    half = write_label_csv(tmp_path / "half.csv", [0, 1, 2, 3, 4, 5])
    with pytest.raises(InputError, match=r"6 of 12.*k6, k7, k8.*--on-error skip"):
        read(path, labels=half, join="key")
    rows = read(path, labels=half, join="key", on_error="skip")
    assert label_names(rows) == NAMES[:6]
    assert [item.key for item in rows.skipped] == KEYS[6:]
    np.testing.assert_array_equal(rows.to_numpy(), X[:6])
    repeated = write_label_csv(tmp_path / "repeated.csv", [*range(COUNT), 3, 3, 5])
    with pytest.raises(InputError, match=r"2 of 12.*k3, k5"):
        read(path, labels=repeated, join="key")
    rows = read(path, labels=repeated, join="key", on_error="skip")
    assert [item.key for item in rows.skipped] == ["k3", "k5"]


def test_label_rows_without_a_vector_are_noted(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X[:9], key=np.array(KEYS[:9]))
    labels = write_label_csv(tmp_path / "labels.csv", list(range(COUNT)))
    options = VectorOptions(labels=labels, join="key")
    _, notes = read_vectors(tmp_path / "rows.npz", options)
    assert any(note.startswith("3 rows") for note in notes)


def test_many_vectors_may_share_a_key_and_leading_zeros_stay(tmp_path: Path) -> None:
    slides = np.array(["007", "7", "007", "12"] * 3)
    with h5py.File(tmp_path / "tiles.h5", "w") as file:
        file["tiles/features"] = X
        file["slide_id"] = slides.tolist()
    labels = tmp_path / "slides.csv"
    labels.write_text("slide_id,tumor\n12,no\n007,yes\n7,no\n")
    rows = read(tmp_path / "tiles.h5", labels=labels, join="slide_id")
    assert label_names(rows) == ["yes" if slide == "007" else "no" for slide in slides]


def test_labels_by_position(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "labels.npy", np.array(NAMES))
    pd.DataFrame({"sentiment": NAMES}).to_csv(tmp_path / "labels.csv", index=False)
    pd.DataFrame({"sentiment": NAMES}).to_parquet(tmp_path / "labels.parquet")
    lines = "\n".join(json.dumps({"label": name}) for name in NAMES)
    (tmp_path / "labels.jsonl").write_text(lines)
    for suffix in ("npy", "csv", "parquet", "jsonl"):
        rows = read(tmp_path / "rows.npy", labels=tmp_path / f"labels.{suffix}")
        assert label_names(rows) == NAMES
    np.save(tmp_path / "short.npy", np.arange(COUNT - 1))
    with pytest.raises(InputError, match=r"12 .* 11"):
        read(tmp_path / "rows.npy", labels=tmp_path / "short.npy")
    with pytest.raises(InputError, match="--labels"):
        read(tmp_path / "rows.npy", join="key")


def test_a_label_column_with_another_name_is_asked_for(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X)
    labels = tmp_path / "labels.csv"
    pd.DataFrame({"sentiment": NAMES, "stars": [1, 2] * 6}).to_csv(labels, index=False)
    with pytest.raises(InputError, match=r"--label-column\): sentiment, stars"):
        read(tmp_path / "rows.npy", labels=labels)
    rows = read(tmp_path / "rows.npy", labels=labels, label_column="sentiment")
    assert label_names(rows) == NAMES
    with pytest.raises(InputError, match="sentimant"):
        read(tmp_path / "rows.npy", labels=labels, label_column="sentimant")


def test_rows_without_a_label_are_counted_or_skipped(tmp_path: Path) -> None:
    labels = [None if row in (2, 5) else name for row, name in enumerate(NAMES)]
    pq.write_table(pa.table({"embedding": list(X), "label": labels}), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"2 of 12.*2, 5"):
        read(tmp_path / "rows.parquet")
    rows = read(tmp_path / "rows.parquet", on_error="skip")
    assert [item.key for item in rows.skipped] == ["2", "5"]
    assert label_names(rows) == [name for name in labels if name]
    assert read(tmp_path / "rows.parquet", label_column="none").labels is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_with_nan_are_counted_named_and_skipped(tmp_path: Path, bad: float) -> None:
    rows = X.copy()
    rows[[1, 5, 7, 9], 3] = bad
    np.savez(tmp_path / "rows.npz", x=rows, y=np.array(NAMES))
    with pytest.raises(InputError, match=r"4 of 12.*\(first: 1, 5, 7\).*--on-error skip"):
        read(tmp_path / "rows.npz")
    kept = read(tmp_path / "rows.npz", on_error="skip")
    retained = [row for row in range(COUNT) if row not in (1, 5, 7, 9)]
    np.testing.assert_array_equal(kept.to_numpy(), X[retained])
    assert label_names(kept) == [NAMES[row] for row in retained]
    assert len(kept.skipped) == 4
    np.save(tmp_path / "all.npy", np.full((3, 2), bad))
    with pytest.raises(InputError, match="no row"):
        read(tmp_path / "all.npy", on_error="skip")


def test_a_list_that_is_missing_is_a_row_without_numbers(tmp_path: Path) -> None:
    lists = [None if row == 4 else X[row].tolist() for row in range(COUNT)]
    pq.write_table(
        pa.table({"embedding": pa.array(lists, pa.list_(pa.float32())), "label": NAMES}),
        tmp_path / "rows.parquet",
    )
    with pytest.raises(InputError, match="first: 4"):
        read(tmp_path / "rows.parquet")
    np.testing.assert_array_equal(
        read(tmp_path / "rows.parquet", on_error="skip").to_numpy(), np.delete(X, 4, axis=0)
    )


def test_a_split_column_is_used_and_noted(tmp_path: Path) -> None:
    splits = ["test", "Train", "val"] * 4
    frame = pd.DataFrame({"embedding": list(X), "label": NAMES, "split": splits})
    frame.to_parquet(tmp_path / "rows.parquet")
    sets, notes = read_vectors(tmp_path / "rows.parquet")
    assert list(sets) == ["Train", "val", "test"]
    np.testing.assert_array_equal(sets["Train"].to_numpy(), X[1::3])
    assert {rows.class_names for rows in sets.values()} == {("cat", "dog")}
    assert any("Train" in note for note in notes)


def test_a_split_column_of_unusual_names_is_used_on_request_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=np.array(NAMES), split=np.arange(COUNT) % 2)
    sets, notes = read_vectors(tmp_path / "rows.npz")
    assert list(sets) == [""]
    assert any("--split-column split" in note for note in notes)
    sets, _ = read_vectors(tmp_path / "rows.npz", VectorOptions(split_column="split"))
    assert [len(rows) for rows in sets.values()] == [6, 6]


def test_skipped_rows_belong_to_their_split(tmp_path: Path) -> None:
    rows = X.copy()
    rows[3] = np.nan
    np.savez(tmp_path / "rows.npz", x=rows, split=np.array(["train", "test"] * 6))
    sets, _ = read_vectors(tmp_path / "rows.npz", VectorOptions(on_error="skip"))
    assert [item.key for item in sets["test"].skipped] == ["3"]
    assert sets["train"].skipped == ()


def test_targets(tmp_path: Path) -> None:
    ages = np.linspace(1.5, 7, COUNT)
    fluid = [None, *([0.0, 1.0] * 5), 1.0]
    frame = pd.DataFrame({"embedding": list(X), "age": ages, "fluid": fluid, "name": NAMES})
    frame.to_parquet(tmp_path / "rows.parquet")
    rows = read(tmp_path / "rows.parquet", target_columns=("age", "fluid"))
    assert rows.targets is not None
    assert rows.target_names == ("age", "fluid")
    np.testing.assert_array_equal(rows.targets[:, 0], ages)
    assert np.isnan(rows.targets[:, 1]).tolist() == [True] + [False] * 11
    with pytest.raises(InputError, match="1 of 12"):
        read(tmp_path / "rows.parquet", target_columns=("fluid",))
    assert len(read(tmp_path / "rows.parquet", target_columns=("fluid",), on_error="skip")) == 11
    with pytest.raises(InputError, match="'cat'"):
        read(tmp_path / "rows.parquet", target_columns=("name",))
    with pytest.raises(InputError, match="found both"):
        VectorOptions(label_column="name", target_columns=("age",))


def test_fractions_and_matrices_are_targets(tmp_path: Path) -> None:
    np.savez(tmp_path / "real.npz", x=X, y=X[:, 0])
    rows = read(tmp_path / "real.npz")
    assert rows.targets is not None
    np.testing.assert_array_equal(rows.targets[:, 0], X[:, 0])
    several = (X[:, :3] > 0).astype(np.int8)
    np.savez(tmp_path / "several.npz", x=X, y=several)
    rows = read(tmp_path / "several.npz")
    assert rows.targets is not None
    np.testing.assert_array_equal(rows.targets, several)


def test_frames_in_memory() -> None:
    frame = pd.DataFrame({"embedding": list(X), "label": NAMES}, index=range(100, 100 + COUNT))
    sets, _ = read_vector_frame(frame)
    (rows,) = sets.values()
    np.testing.assert_array_equal(rows.to_numpy(), X)
    assert label_names(rows) == NAMES


def write_clip_retrieval(folder: Path, parts: list[NDArray[Any]]) -> Path:
    start = 0
    for kind in ("img_emb", "metadata"):
        (folder / kind).mkdir(parents=True)
    for number, part in enumerate(parts):
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", part)
        rows = range(start, start + len(part))
        metadata = {"image_path": [f"{row}.jpg" for row in rows], "label": [NAMES[r] for r in rows]}
        path = folder / "metadata" / f"metadata_{number}.parquet"
        pq.write_table(pa.table(metadata), path)
        start += len(part)
    return folder


def test_a_folder_of_clip_retrieval_is_matched_by_number_and_count(tmp_path: Path) -> None:
    many = [X[[row]] for row in range(COUNT)]  # part 10 comes after part 9
    folder = write_clip_retrieval(tmp_path / "out", many)
    assert is_vector_file(folder)
    assert not is_vector_file(tmp_path)
    rows = read(folder)
    np.testing.assert_array_equal(rows.to_numpy(), X)
    assert label_names(rows) == NAMES
    assert rows.columns["key"].tolist() == [f"{row}.jpg" for row in range(COUNT)]
    with pytest.raises(NotFoundError, match="img_emb"):
        read(folder, vector_column="text_emb")
    np.save(folder / "img_emb" / "img_emb_1.npy", X[1:3])
    with pytest.raises(InputError, match=r"Part 1 .*2"):
        read(folder)
    (folder / "img_emb" / "img_emb_1.npy").unlink()
    with pytest.raises(NotFoundError, match="11 and 12"):
        read(folder)


def test_objects_are_never_unpickled_and_the_cure_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=np.array(NAMES, object), allow_pickle=True)
    with pytest.raises(InputError, match=r"rows\.npz.*astype\(str\)"):
        read(tmp_path / "rows.npz")
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "labels.npy", np.array(NAMES, object), allow_pickle=True)
    with pytest.raises(InputError, match=r"astype\(str\)"):
        read(tmp_path / "rows.npy", labels=tmp_path / "labels.npy")
    torch.save({"x": X, "y": Path("nowhere")}, tmp_path / "rows.pt")
    with pytest.raises(InputError, match=r"rows\.pt .*pickle") as error:
        read(tmp_path / "rows.pt")
    assert "trust" not in str(error.value)  # torch says how to run what is inside


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet", "h5", "safetensors", "pt", "jsonl"])
def test_damaged_files_are_refused(tmp_path: Path, suffix: str) -> None:
    name = f"junk.{suffix}"
    (tmp_path / name).write_bytes(b"\x93NUMPY no array")
    with pytest.raises(InputError, match=name):
        read(tmp_path / name)


def test_what_is_no_file_of_vectors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        read(tmp_path / "nowhere.npy")
    (tmp_path / "rows.pkl").write_bytes(b"")
    assert not is_vector_file(tmp_path / "rows.pkl")
    with pytest.raises(InputError, match=r"rows\.pkl"):
        read(tmp_path / "rows.pkl")
    pd.DataFrame({"text": NAMES, "label": NAMES}).to_csv(tmp_path / "texts.csv", index=False)
    with pytest.raises(InputError, match="-b"):
        read(tmp_path / "texts.csv")
    (tmp_path / "empty.csv").write_text("key,label\n")
    np.savez(tmp_path / "rows.npz", x=X, key=np.array(KEYS))
    with pytest.raises(InputError, match=r"empty\.csv"):
        read(tmp_path / "rows.npz", labels=tmp_path / "empty.csv", join="key")
    for shape in [(3,), (2, 2, 2)]:
        np.save(tmp_path / "shape.npy", np.zeros(shape))
        with pytest.raises(InputError, match=str(shape[-1])):
            read(tmp_path / "shape.npy")


def test_clients_and_groups_must_be_complete(tmp_path: Path) -> None:
    clients = [None, *["a", "b"] * 5, "c"]
    pq.write_table(pa.table({"embedding": list(X), "site": clients}), tmp_path / "rows.parquet")
    for option in ("client_column", "group_column"):
        with pytest.raises(InputError, match=r"1 .*--(client-column|group)"):
            read(tmp_path / "rows.parquet", **{option: "site"})
    rows = read(tmp_path / "rows.parquet", keep_columns=("site",))
    assert rows.columns["site"].tolist() == ["", *["a", "b"] * 5, "c"]


def test_a_column_of_another_length_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=np.arange(5))
    with pytest.raises(InputError, match=r"12 .*'y'.*5"):
        read(tmp_path / "rows.npz")
