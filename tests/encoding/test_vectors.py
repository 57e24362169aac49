"""Vectors from files: every format, joined by a key or by order, and refused where the order is not known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cli.main import run
from probekit.encoding.vectors import ImportOptions, read_vectors
from probekit.errors import CorruptError, InputError, NotFoundError

ROWS = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float16)
NAMES = ["cat", "dog", "dog"] * 4


def test_an_array_with_labels_in_its_order(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    (tmp_path / "labels.txt").write_text("\n".join(NAMES) + "\n")
    found = read_vectors(tmp_path / "rows.npy", ImportOptions(tmp_path / "labels.txt"))
    assert found.embeddings.dtype == np.float16
    assert np.array_equal(found.to_numpy(), ROWS)
    assert [found.class_names[label] for label in found.labels] == NAMES
    (tmp_path / "labels.txt").write_text("\n".join(NAMES[:-1]))
    with pytest.raises(InputError, match="11 labels for 12 vectors"):
        read_vectors(tmp_path / "rows.npy", ImportOptions(tmp_path / "labels.txt"))


def test_a_table_joined_with_labels_by_a_key(tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(12)]
    table = pa.table({"embedding": list(ROWS.astype(np.float32)), "key": keys, "patient": ["a", "b", "c"] * 4})
    pq.write_table(table, tmp_path / "rows.parquet")
    turned = np.random.default_rng(1).permutation(12)
    lines = [f"{keys[at]},{NAMES[at]}" for at in turned]
    (tmp_path / "labels.csv").write_text("key,label\n" + "\n".join(lines) + "\n")
    how = ImportOptions(tmp_path / "labels.csv", join="key", group="patient", client="patient")
    found = read_vectors(tmp_path / "rows.parquet", how)
    assert [found.class_names[label] for label in found.labels] == NAMES
    assert found.names == tuple(keys)
    assert found.clients == ("a", "b", "c") * 4
    assert found.groups is not None
    assert found.groups.tolist() == found.groups[:3].tolist() * 4
    assert len(set(found.groups.tolist())) == 3
    kept = DiskStore(tmp_path / "cache").adopt(found, "rows")
    assert kept.groups is not None
    assert kept.groups.tolist() == found.groups.tolist()
    (tmp_path / "labels.csv").write_text("key,label\n" + "\n".join(lines[1:]) + "\n")
    with pytest.raises(InputError, match="1 of 12 vectors have no label"):
        read_vectors(tmp_path / "rows.parquet", how)
    (tmp_path / "labels.csv").write_text("key,label\n" + "\n".join([*lines, lines[0]]) + "\n")
    with pytest.raises(InputError, match="twice"):
        read_vectors(tmp_path / "rows.parquet", how)
    with pytest.raises(NotFoundError, match="no column 'nope'"):
        read_vectors(tmp_path / "rows.parquet", ImportOptions(label="nope"))


def clip_retrieval(folder: Path, parts: list[NDArray[Any]]) -> Path:
    for kind in ("img_emb", "metadata"):
        (folder / kind).mkdir(parents=True)
    start = 0
    for number, part in enumerate(parts):
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", part)
        told = {"image_path": [f"{row}.jpg" for row in range(start, start + len(part))]}
        told["label"] = NAMES[start : start + len(part)]
        pq.write_table(pa.table(told), folder / "metadata" / f"metadata_{number}.parquet")
        start += len(part)
    return folder


def test_a_folder_of_clip_retrieval_is_matched_by_number_and_count(tmp_path: Path) -> None:
    folder = clip_retrieval(tmp_path / "out", [ROWS[:3], ROWS[3:4], ROWS[4:]])
    found = read_vectors(folder)
    assert np.array_equal(found.to_numpy(), ROWS)
    assert [found.class_names[label] for label in found.labels] == NAMES
    assert found.names is not None
    assert found.names[11] == "11.jpg"
    np.save(folder / "img_emb" / "img_emb_1.npy", ROWS[3:5])
    with pytest.raises(InputError, match="2 vectors and 1 lines"):
        read_vectors(folder)
    (folder / "metadata" / "metadata_1.parquet").unlink()
    with pytest.raises(InputError, match="Partition 1"):
        read_vectors(folder)
    (folder / "img_emb" / "img_emb_1.npy").unlink()
    with pytest.raises(InputError, match="Partition 1 of the vectors"):
        read_vectors(folder)


def test_named_arrays_and_what_cannot_be_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=ROWS, y=np.arange(12) % 3)
    assert read_vectors(tmp_path / "rows.npz").labels.tolist() == [0, 1, 2] * 4
    np.savez(tmp_path / "two.npz", a=ROWS, b=ROWS)
    with pytest.raises(NotFoundError, match="which of them"):
        read_vectors(tmp_path / "two.npz")
    assert len(read_vectors(tmp_path / "two.npz", ImportOptions(vectors="b"))) == 12
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY no")
    with pytest.raises(CorruptError, match="cannot be read"):
        read_vectors(tmp_path / "bad.npy")
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(CorruptError, match="cannot be read"):
        read_vectors(tmp_path / "bad.parquet")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptError, match="cannot be read"):
        read_vectors(tmp_path / "objects.npy")
    with pytest.raises(NotFoundError, match="no file or folder"):
        read_vectors(tmp_path / "nowhere.npy")
    (tmp_path / "rows.txt").write_text("")
    with pytest.raises(InputError, match=r"rows\.txt"):
        read_vectors(tmp_path / "rows.txt")


def test_norms_are_part_of_the_identity(tmp_path: Path) -> None:
    unit = (ROWS / np.linalg.norm(ROWS.astype(np.float64), axis=1)[:, None]).astype(np.float32)
    for name, rows in (("train", unit), ("test", unit[:4]), ("raw", ROWS.astype(np.float32))):
        np.save(tmp_path / f"{name}.npy", rows)
    specs = [
        read_vectors(tmp_path / f"{name}.npy", ImportOptions(source="clip")).spec for name in ("train", "test", "raw")
    ]
    assert specs[0] == specs[1] != specs[2]


def test_the_command_keeps_the_set_for_every_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "mine.npz", x=ROWS.astype(np.float32), y=np.arange(12) % 2)
    cache = ["--cache", str(tmp_path / "cache")]
    assert run(["import", str(tmp_path / "mine.npz"), "--json", *cache]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["set"], told["rows"], told["classes"], told["labelled"]) == ("mine", 12, 2, 12)
    kept = DiskStore(tmp_path / "cache").open("mine")
    assert np.array_equal(kept.to_numpy(), ROWS.astype(np.float32))
    assert run(["probe", "mine", "--no-controls", *cache]) == 0
    assert "each left out in turn" in capsys.readouterr().out
    assert run(["import", str(tmp_path / "nowhere.npy"), *cache]) == 3


def test_several_labels_and_real_targets_by_their_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    drawn = np.random.default_rng(2)
    rows = drawn.normal(size=(120, 5))
    np.savez(tmp_path / "scans.npz", embedding=rows, key=np.array([f"k{number}" for number in range(120)]))
    sick = rows @ drawn.normal(size=(5, 2)) + drawn.normal(size=(120, 2)) > 0
    lines = [f"k{n},{int(a)},{'' if n % 5 == 0 else int(b)},{rows[n, 0]:.6f}" for n, (a, b) in enumerate(sick)]
    table = tmp_path / "findings.csv"
    table.write_text("\n".join(["key,fluid,nodule,age", *reversed(lines)]) + "\n")
    given = ["import", str(tmp_path / "scans.npz"), "--labels", str(table), "--join", "key", "--json"]
    assert run([*given, "--targets", "fluid,nodule", "--name", "sick"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["targets"], told["labelled"]) == (["fluid", "nodule"], 120)
    made = DiskStore().open("sick")
    assert made.targets is not None
    assert np.array_equal(made.targets[:, 0], sick[:, 0])
    assert np.array_equal(np.isnan(made.targets[:, 1]), np.arange(120) % 5 == 0)
    assert run([*given, "--targets", "age", "--name", "old"]) == 0
    capsys.readouterr()
    files = ["--csv", str(tmp_path / "table.csv"), "--picture", str(tmp_path / "table.svg")]
    assert run(["probe", "sick", "old", *files, "--json"]) == 0
    cells = {(cell["data_set"], cell["control"]): cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert cells["sick", False]["metric"] == "average precision"
    assert cells["sick", False]["mean_auc"] > 0.7
    assert cells["old", False]["metric"] == "r2"
    assert cells["old", False]["value"] > 0.99
    assert not any(cell["suspicious"] for cell in cells.values())
    assert run(["probe", "sick", "--no-controls"]) == 0
    assert "mean average precision" in capsys.readouterr().out
    assert run([*given, "--targets", "fluid,lung"]) == 3
    assert run([*given, "--targets", "fluid,key"]) == 2
    assert "row 0 of 'key'" in capsys.readouterr().err
    assert run([*given, "--targets", "fluid", "--label-column", "nodule"]) == 2
    np.save(tmp_path / "matrix.npy", sick.astype(np.int8))
    both = read_vectors(tmp_path / "scans.npz", ImportOptions(tmp_path / "matrix.npy"))
    assert both.targets is not None
    assert both.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("flat.npy", np.arange(3.0), "of shape (3,)"), ("cube.npy", np.zeros((2, 2, 2)), "of shape (2, 2, 2)")],
)
def test_arrays_that_are_no_matrix_are_refused(tmp_path: Path, name: str, content: Any, said: str) -> None:
    np.save(tmp_path / name, content)
    with pytest.raises(InputError, match=re.escape(said)):
        read_vectors(tmp_path / name)


def test_junk_in_place_of_an_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.npy").write_bytes(b"not an array")
    np.save(tmp_path / "v.npy", np.eye(3))
    with pytest.raises(CorruptError, match=r"junk\.npy cannot be read: it is damaged"):
        read_vectors(tmp_path / "junk.npy")
    with pytest.raises(CorruptError, match=r"junk\.npy cannot be read: it is damaged"):
        read_vectors(tmp_path / "v.npy", ImportOptions(tmp_path / "junk.npy"))
