"""Pictures in folders."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from probekit.data import DataOptions, Dataset, folder, pictures, read_dataset
from probekit.errors import InputError, NotFoundError, SampleError


def read(path: Path, **options: Any) -> Dataset:
    _, dataset = read_dataset(path, DataOptions(**options)).choose(options.get("split"))
    return dataset


def rows(dataset: Dataset) -> list[tuple[str, int]]:
    return [(dataset[i].key, dataset[i].label) for i in range(len(dataset))]


def gray(dataset: Dataset) -> list[int]:
    return [dataset[i].content().getpixel((0, 0)) for i in range(len(dataset))]


def test_classes_are_sorted_folders_and_rows_sorted_paths(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "b/2.png", "b/deep/1.JPG", "a/9.png", "a-b/0.png", "b/10.png")
    decoded = []
    decode = pictures.decode
    monkeypatch.setattr(pictures, "decode", lambda path: decoded.append(path) or decode(path))
    dataset = read(tmp_path)
    assert dataset.class_names == ("a", "a-b", "b")
    assert rows(dataset) == [
        ("a/9.png", 0),
        ("a-b/0.png", 1),
        ("b/10.png", 2),
        ("b/2.png", 2),
        ("b/deep/1.JPG", 2),
    ]
    assert dataset[0].path == str(tmp_path / "a/9.png")
    assert decoded == []
    assert gray(dataset) == [2, 3, 4, 0, 1]


def test_each_folder_is_listed_once(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(
        tmp_path,
        *(
            f"{split}/{name}/{i}.png"
            for split in ("train", "test")
            for name in "ab"
            for i in range(9)
        ),
    )
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(Path(path)) or scandir(path))
    files = list(folder.walk(tmp_path))
    assert len(files) == 36
    assert sorted(listed) == sorted({tmp_path, *tmp_path.glob("*"), *tmp_path.glob("*/[ab]")})


@pytest.mark.parametrize("name", ["photos", "./photos", "photos/"])
def test_a_bare_path_is_a_folder(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fill(tmp_path, "photos/a/1.png", "photos/b/2.png")
    monkeypatch.chdir(tmp_path)
    dataset = read_dataset(name).choose()[1]
    assert (len(dataset), dataset.name, dataset.kind) == (2, name, "image")


def test_hidden_files_are_left_out_and_others_noted(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "a/1.png", "a/.2.png", ".git/3.png", "__MACOSX/a/4.png", "a/notes.txt", "me.md")
    splits = read_dataset(tmp_path)
    assert rows(splits.choose()[1]) == [("a/1.png", 0)]
    assert any("2 files" in note for note in splits.notes)


def test_a_flat_folder_has_no_labels_and_a_table_beside_it_is_noted(
    tmp_path: Path, fill: Any
) -> None:
    fill(tmp_path, "b.png", "a.png")
    (tmp_path / "labels.csv").write_text("x,y\n")
    splits = read_dataset(tmp_path)
    assert rows(splits.choose()[1]) == [("a.png", -1), ("b.png", -1)]
    assert any("labels.csv" in note for note in splits.notes)


def test_pictures_beside_class_folders_have_no_label(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "a/1.png", "loose.png")
    assert rows(read(tmp_path)) == [("a/1.png", 0), ("loose.png", -1)]


@pytest.mark.parametrize(
    "names", [("train", "val", "test"), ("Training", "dev", "Testing"), ("TRAIN", "Valid", "Test")]
)
def test_split_folders_however_spelled(
    tmp_path: Path, fill: Any, names: tuple[str, str, str]
) -> None:
    train, validation, test = names
    fill(
        tmp_path, f"{train}/a/1.png", f"{train}/b/2.png", f"{test}/b/3.png", f"{validation}/a/4.png"
    )
    splits = read_dataset(tmp_path)
    assert list(splits.by_name) == list(names)
    assert rows(splits.choose("test")[1]) == [(f"{test}/b/3.png", 1)]
    assert splits.choose("test")[1].class_names == ("a", "b")
    assert all(name in splits.notes[-1] for name in names)
    assert rows(read(tmp_path, split="validation")) == [(f"{validation}/a/4.png", 0)]
    with pytest.raises(NotFoundError, match="holdout"):
        read(tmp_path, split="holdout")


def test_split_names_beside_other_folders_are_classes(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "train/1.png", "test/3.png", "plane/1.png")
    assert read(tmp_path).class_names == ("plane", "test", "train")


def test_folders_without_pictures_are_neither_splits_nor_classes(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "train/a/1.png", "test/a/2.png")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/boxes.json").write_text("{}")
    splits = read_dataset(tmp_path)
    assert list(splits.by_name) == ["train", "test"]
    assert any("boxes.json" in note for note in splits.notes)


def test_an_unusual_split_can_be_asked_for(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "train/a/1.png", "extra/a/2.png", "extra/b/2.png")
    assert rows(read(tmp_path, split="extra")) == [("extra/a/2.png", 0), ("extra/b/2.png", 1)]


def test_metadata_gives_labels_clients_groups_and_columns(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "x/1.png", "x/2.png", "y/3.png")
    (tmp_path / "metadata.csv").write_text(
        "file_name,label,client_id,patient,age\n"
        "y/3.png,cat,south,p2,3.5\nx/1.png,dog,north,p1,\nx/2.png,,north,p1,2\n"
    )
    dataset = read(tmp_path, group_column="patient", keep_columns=("age",))
    assert rows(dataset) == [("x/1.png", 1), ("x/2.png", -1), ("y/3.png", 0)]
    assert dataset.class_names == ("cat", "dog")
    assert dict(dataset[2].columns) == {"client": "south", "group": "p2", "age": "3.5"}
    targets = read(tmp_path, target_columns=("age",))
    assert [targets[i].targets for i in (1, 2)] == [(2.0,), (3.5,)]
    assert targets.target_names == ("age",)


def test_whole_numbers_in_metadata_are_class_numbers(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "1.png", "2.png", "3.png")
    (tmp_path / "metadata.csv").write_text("file_name,label\n1.png,10\n2.png,2\n3.png,\n")
    assert [label for _, label in rows(read(tmp_path))] == [10, 2, -1]


def test_metadata_without_labels_leaves_the_folders_labels(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "metadata.csv").write_text("path,site\na/1.png,x\nb/2.png,y\n")
    dataset = read(tmp_path, image_column="path", client_column="site")
    assert [(dataset[i].label, dataset[i].columns["client"]) for i in (0, 1)] == [
        (0, "x"),
        (1, "y"),
    ]


def test_a_split_column_in_metadata_is_used_and_noted(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "a/1.png", "b/2.png", "b/3.png")
    (tmp_path / "metadata.csv").write_text(
        "file_name,split\na/1.png,train\nb/2.png,test\nb/3.png,train\n"
    )
    splits = read_dataset(tmp_path)
    assert {name: len(dataset) for name, dataset in splits.by_name.items()} == {
        "train": 2,
        "test": 1,
    }
    assert any("--split-column" in note for note in splits.notes)


def test_metadata_lies_above_the_splits_or_in_each(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "train/a/1.png", "test/a/1.png")
    above = "file_name,client_id\ntrain/a/1.png,north\ntest/a/1.png,south\n"
    (tmp_path / "metadata.csv").write_text(above)
    assert clients(tmp_path) == {"train": "north", "test": "south"}
    (tmp_path / "metadata.csv").unlink()
    (tmp_path / "train/metadata.csv").write_text("file_name,client_id\na/1.png,east\n")
    (tmp_path / "test/metadata.csv").write_text("file_name,client_id\na/1.png,west\n")
    assert clients(tmp_path) == {"train": "east", "test": "west"}


def clients(path: Path) -> dict[str, str]:
    splits = read_dataset(path).by_name
    return {name: dataset[0].columns["client"] for name, dataset in splits.items()}


@pytest.mark.parametrize(
    ("text", "options", "mentioned"),
    [
        ("name,label\n1.png,a\n", {}, "file_name"),
        ("file_name,label\n1.png,a\n", {"client_column": "site"}, "site"),
        ("file_name,label\n1.png,a\n1.png,b\n", {}, r"1\.png.*twice"),
        ("file_name,label\n9.png,a\n", {}, r"9\.png"),
        ("file_name,client_id\n1.png,a\n", {}, "row 1"),
        ("file_name,label\n\xff", {}, "UTF-8"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(
    tmp_path: Path, fill: Any, text: str, options: dict[str, str], mentioned: str
) -> None:
    fill(tmp_path, "1.png", "2.png")
    (tmp_path / "metadata.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises((InputError, NotFoundError), match=mentioned):
        read(tmp_path, **options)


def test_columns_without_metadata_are_refused(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "a/1.png")
    with pytest.raises(InputError, match="--client-column"):
        read(tmp_path, client_column="site")
    assert read(tmp_path, label_column="none").class_names == ()


def test_links_may_leave_the_folder_but_not_run_in_circles(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path / "elsewhere", "1.png", "2.png")
    fill(tmp_path / "set", "a/0.png")
    (tmp_path / "set/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/a/round").symlink_to(tmp_path / "set")
    (tmp_path / "set/a/file.png").symlink_to(tmp_path / "elsewhere/2.png")
    keys = [key for key, _ in rows(read(tmp_path / "set"))]
    assert keys == ["a/0.png", "a/file.png", "b/1.png", "b/2.png"]


def test_a_broken_picture_or_link_harms_its_own_row_only(
    tmp_path: Path, fill: Any, png: Any
) -> None:
    fill(tmp_path, "a/1.png")
    (tmp_path / "a/2.png").write_bytes(png(1)[:40])
    (tmp_path / "a/3.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "a/4.png").symlink_to(tmp_path / "a/4.png")
    dataset = read(tmp_path)
    assert dataset[0].content().size == (4, 3)
    for row in (1, 2, 3):
        with pytest.raises(SampleError):
            dataset[row].content()


def test_names_of_any_bytes_can_be_written_as_text(tmp_path: Path, png: Any) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (tmp_path / os.fsdecode(b"caf\xe9/1.png")).write_bytes(png(3))
    dataset = read(tmp_path)
    assert (dataset.class_names, dataset[0].key) == (("caf\\xe9",), "caf\\xe9/1.png")
    assert gray(dataset) == [3]


def test_it_can_be_sent_to_another_process(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, "a/1.png", "b/2.png")
    assert gray(pickle.loads(pickle.dumps(read(tmp_path)))) == [0, 1]
