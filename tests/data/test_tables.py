"""Tables: `datasets` objects, saved folders, csv, parquet, jsonl and tar files, DataFrames."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
from PIL import Image

from probekit.data import DataOptions, Dataset, read_dataset
from probekit.errors import InputError, NotFoundError, SampleError

CLASSES = datasets.ClassLabel(names=["zebra", "ant"])


def read(source: object, **options: Any) -> Dataset:
    return read_dataset(source, DataOptions(**options)).choose(options.get("split"))[1]


def labels_of(dataset: Dataset) -> list[int]:
    return [dataset[i].label for i in range(len(dataset))]


@pytest.fixture
def table(png: Any) -> datasets.Dataset:
    """Four rows: one broken, one without a picture, one without a label."""
    return datasets.Dataset.from_dict(
        {
            "image": [png(0), b"broken", None, png(3)],
            "label": [1, 0, None, -1],
            "client_id": [7, 7, 8, 9],
            "note": ["a", "b", None, "d"],
        },
        features=datasets.Features(
            {
                "image": datasets.Image(),
                "label": CLASSES,
                "client_id": datasets.Value("int32"),
                "note": datasets.Value("string"),
            }
        ),
    )


def check_table(dataset: Dataset) -> None:
    samples = [dataset[i] for i in range(4)]
    assert (dataset.kind, dataset.class_names) == ("image", ("zebra", "ant"))
    assert [sample.label for sample in samples] == [1, 0, -1, -1]
    assert [sample.columns["client"] for sample in samples] == ["7", "7", "8", "9"]
    assert [sample.key for sample in samples] == ["0", "1", "2", "3"]
    assert [samples[row].content().getpixel((0, 0)) for row in (0, 3)] == [0, 3]
    for row in (1, 2):
        with pytest.raises(SampleError):
            samples[row].content()


def test_a_dataset_object(table: datasets.Dataset) -> None:
    check_table(read(table))
    check_table(pickle.loads(pickle.dumps(read(table))))
    check_table(read(table.with_format("numpy")))
    with pytest.raises(InputError, match="transform"):
        read(table.with_transform(lambda rows: rows))
    with pytest.raises(InputError, match="no rows"):
        read(table.select([]))
    with pytest.raises(InputError, match="IterableDataset"):
        read(table.to_iterable_dataset())


def test_shuffled_and_selected_rows_keep_their_labels(table: datasets.Dataset) -> None:
    dataset = read(table.select([3, 0]))
    assert [dataset[i].columns["client"] for i in (0, 1)] == ["9", "7"]
    assert dataset[1].content().getpixel((0, 0)) == 0


def test_the_test_split_of_a_dictionary_is_there(table: datasets.Dataset) -> None:
    both = datasets.DatasetDict({"test": table.select([3]), "train": table})
    splits = read_dataset(both)
    assert (len(splits.choose()[1]), len(splits.choose("test")[1])) == (4, 1)
    assert any("test (1 rows)" in note for note in splits.notes)
    with pytest.raises(NotFoundError, match="dev"):
        read(both, split="dev")


def test_columns_are_named(table: datasets.Dataset) -> None:
    dataset = read(table, text_column="note", label_column="client_id", keep_columns=("label",))
    assert (dataset.kind, dataset[0].content(), dataset[0].columns["label"]) == ("text", "a", "1")
    assert labels_of(dataset) == [7, 7, 8, 9]
    with pytest.raises(SampleError, match="None"):
        dataset[2].content()
    named = read(table, label_column="note", group_column="client_id")
    assert (named.class_names, labels_of(named)) == (("a", "b", "d"), [0, 1, -1, 2])
    assert named[2].columns["group"] == "8"
    for option in ("label_column", "image_column", "client_column", "split_column"):
        with pytest.raises(InputError, match=r"'nte'.*note"):
            read(table, **{option: "nte"})
    with pytest.raises(InputError, match="client_id"):
        read(table, text_column="client_id")


def test_several_targets(table: datasets.Dataset) -> None:
    dataset = read(table, target_columns=("client_id", "label"))
    assert dataset.target_names == ("client_id", "label")
    assert dataset[0].targets == (7.0, 1.0)
    assert np.isnan(dataset[2].targets[1])
    assert dataset[0].label == -1


def frame(*columns: str, rows: int = 2) -> datasets.Dataset:
    values = {name: [f"{name} {row}" for row in range(rows)] for name in columns}
    return datasets.Dataset.from_dict(values)


@pytest.mark.parametrize(
    ("columns", "content", "label"),
    [
        (("text", "label"), "text", "label"),
        (("id", "sentence", "Category"), "sentence", "Category"),
        (("utterance", "class"), "utterance", "class"),
        (("document", "title", "target"), "document", "target"),
        (("text",), "text", None),
        (("text", "split"), "text", None),
    ],
)
def test_columns_are_recognized_where_unambiguous(
    columns: tuple[str, ...], content: str, label: str | None
) -> None:
    dataset = read(frame(*columns))
    assert dataset[1].content() == f"{content} 1"
    expected = () if label is None else (f"{label} 0", f"{label} 1")
    assert dataset.class_names == expected


@pytest.mark.parametrize(
    ("columns", "flag"),
    [
        (("text", "sentiment"), "--label-column"),
        (("text", "label", "target"), "--label-column"),
        (("question", "answer", "label"), "--text-column"),
    ],
)
def test_ambiguous_columns_name_the_flag(columns: tuple[str, ...], flag: str) -> None:
    with pytest.raises(InputError, match=flag) as caught:
        read(frame(*columns))
    assert columns[1] in str(caught.value)


def test_no_more_than_ten_columns_are_listed() -> None:
    names = [f"column{number}" for number in range(512)]
    with pytest.raises(InputError, match="512") as caught:
        read(datasets.Dataset.from_dict({name: [1.0] for name in names}))
    assert str(caught.value).count("column1") <= 10


def test_rows_without_labels_can_be_asked_for() -> None:
    assert read(frame("text", "sentiment"), label_column="none").class_names == ()


def test_a_label_beyond_the_classes_is_refused(png: Any) -> None:
    rows = datasets.Dataset.from_dict({"text": ["x"] * 3, "label": [0, 1, 5]})
    rows.info.features["label"] = CLASSES
    with pytest.raises(InputError, match=r"row 2.*5"):
        read(rows)


def test_a_missing_client_names_its_row() -> None:
    rows = datasets.Dataset.from_dict({"text": ["x", "y"], "client_id": ["a", None]})
    with pytest.raises(InputError, match=r"row 1.*--client-column"):
        read(rows)


def test_a_saved_folder(tmp_path: Path, table: datasets.Dataset) -> None:
    table.save_to_disk(tmp_path / "one")
    both = datasets.DatasetDict({"train": table, "test": table.select([0])})
    both.save_to_disk(tmp_path / "two")
    check_table(read(tmp_path / "one"))
    check_table(read(str(tmp_path / "two")))
    test = read_dataset(tmp_path / "two").choose("test")[1]
    assert len(test) == 1
    sample = pickle.loads(pickle.dumps(read(tmp_path / "one")[3]))
    assert sample.content().getpixel((0, 0)) == 3


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv", "tsv", "json"])
def test_a_table_file(tmp_path: Path, suffix: str) -> None:
    rows = pandas.DataFrame({"text": ["x", "NA", "z"], "label": ["b", "None", "b"]})
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        rows.to_parquet(path)
    elif suffix in ("json", "jsonl"):
        rows.to_json(path, orient="records", lines=suffix == "jsonl")
    else:
        rows.to_csv(path, sep="\t" if suffix == "tsv" else ",", index=False)
    splits = read_dataset(path)
    dataset = splits.choose()[1]
    assert list(splits.by_name) == [""]
    assert [dataset[i].content() for i in range(3)] == ["x", "NA", "z"]
    assert (dataset.class_names, labels_of(dataset)) == (("None", "b"), [1, 0, 1])
    assert dataset.name == str(path)


def test_a_parquet_file_keeps_its_classes_and_pictures(
    tmp_path: Path, table: datasets.Dataset
) -> None:
    table.to_parquet(tmp_path / "rows.parquet")
    check_table(read(tmp_path / "rows.parquet"))


def test_a_split_column_is_used_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label,split\nx,a,test\ny,b,train\nz,b,train\n")
    splits = read_dataset(path)
    assert list(splits.by_name) == ["train", "test"]
    test = splits.choose("test")[1]
    assert (test[0].content(), test[0].key, test.class_names) == ("x", "0", ("a", "b"))
    assert any("'split'" in note and "--split-column" in note for note in splits.notes)
    assert len(read(path, split="test")) == 1


def test_any_column_can_be_named_as_splits(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label,fold\nx,a,1\ny,b,2\nz,b,1\n")
    splits = read_dataset(path, DataOptions(split_column="fold"))
    assert {name: len(dataset) for name, dataset in splits.by_name.items()} == {"1": 2, "2": 1}
    other = tmp_path / "other.csv"
    other.write_text("text,label,set\nx,a,red\ny,b,blue\n")
    assert list(read_dataset(other).by_name) == [""]


def test_a_column_of_splits_beside_splits_is_refused() -> None:
    rows = frame("text", "label", "fold")
    with pytest.raises(InputError, match="--split-column fold"):
        read_dataset({"train": rows, "test": rows}, DataOptions(split_column="fold"))


@pytest.mark.parametrize("column", ["image", "path", "where"])
def test_a_table_may_name_its_pictures(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    fill(tmp_path, "pictures/0.png", "pictures/1.png", "pictures/2.png")
    lines = [f"pictures/{row}.png,{label}" for row, label in enumerate(("2", "", "1"))]
    (tmp_path / "rows.csv").write_text("\n".join([f"{column},label", *lines]))
    monkeypatch.chdir(tmp_path.parent)
    dataset = read(tmp_path / "rows.csv")
    assert [(dataset[i].key, dataset[i].label) for i in range(3)] == [
        ("pictures/0.png", 2),
        ("pictures/1.png", -1),
        ("pictures/2.png", 1),
    ]
    assert dataset[2].path == tmp_path / "pictures/2.png"
    assert [dataset[i].content().getpixel((0, 0)) for i in range(3)] == [0, 1, 2]


def test_shuffled_pictures_are_not_called_by_each_others_paths(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path, *(f"{value}.png" for value in range(9)))
    paths = [str(tmp_path / f"{value}.png") for value in range(9)]
    rows = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    assert [read(rows)[i].key for i in range(9)] == paths
    shuffled = read(rows.shuffle(seed=1))
    for index in range(9):
        sample = shuffled[index]
        path = paths[sample.content().getpixel((0, 0))]
        assert sample.key.isdecimal() or sample.key == path
        assert sample.path is None or str(sample.path) == path


def test_equal_paths_are_no_keys(png: Any) -> None:
    cells = [{"bytes": png(value), "path": "image.png"} for value in range(2)]
    rows = datasets.Dataset.from_dict({"image": cells}).cast_column("image", datasets.Image())
    dataset = read(rows)
    assert [dataset[i].key for i in range(2)] == ["0", "1"]
    assert [dataset[i].path for i in range(2)] == [None, None]


def test_an_empty_split_is_noted() -> None:
    full = datasets.Dataset.from_dict({"text": ["x"], "label": ["a"]})
    splits = read_dataset(datasets.DatasetDict({"train": full, "test": full.select([])}))
    assert list(splits.by_name) == ["train"]
    assert any("test" in note for note in splits.notes)


def test_a_split_without_labels_is_unlabeled() -> None:
    train = datasets.Dataset.from_dict({"text": ["x"], "label": ["a"]})
    test = datasets.Dataset.from_dict({"text": ["y"]})
    splits = read_dataset(datasets.DatasetDict({"train": train, "test": test}))
    assert labels_of(splits.by_name["test"]) == [-1]


def test_a_folder_of_tables_has_splits(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nx,NA\ny,b\n")
    (tmp_path / "test.csv").write_text("text,label\nz,b\n")
    splits = read_dataset(tmp_path)
    assert {name: len(dataset) for name, dataset in splits.by_name.items()} == {
        "train": 2,
        "test": 1,
    }
    assert splits.by_name["test"].class_names == ("NA", "b")


def test_tar_files(tmp_path: Path, png: Any) -> None:
    for part, values in enumerate((range(4), range(4, 6))):
        with tarfile.open(tmp_path / f"part-{part}.tar", "w") as tar:
            for value in values:
                for suffix, content in (("png", png(value)), ("cls", str(value % 3).encode())):
                    member = tarfile.TarInfo(f"{value:04}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    dataset = read(tmp_path)
    assert [(dataset[i].key, dataset[i].label) for i in range(6)] == [
        (f"{row:04}", row % 3) for row in range(6)
    ]
    assert [dataset[i].content().getpixel((0, 0)) for i in range(6)] == list(range(6))


@pytest.mark.parametrize("content", [b"", b"PAR1 not parquet PAR1"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.parquet"):
        read(tmp_path / "x.parquet")


def test_nothing_is_printed_and_progress_bars_are_as_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text("text,label\nhello,1\n")
    before = datasets.are_progress_bars_disabled()
    read(tmp_path / "x.csv")
    assert capfd.readouterr() == ("", "")
    assert datasets.are_progress_bars_disabled() == before


def test_a_frame() -> None:
    rows = pandas.DataFrame(
        {
            "text": ["x", "y", "z"],
            "label": pandas.Categorical(["b", "a", None]),
            "client": ["n", "s", "s"],
        },
        index=[5, 5, 9],
    )
    dataset = read(rows)
    assert (dataset.class_names, labels_of(dataset)) == (("a", "b"), [1, 0, -1])
    assert dataset[0].columns["client"] == "n"


def test_frames_as_splits() -> None:
    rows = pandas.DataFrame({"text": ["x", "y"], "label": ["b", "a"]})
    splits = read_dataset({"test": rows[:1], "train": rows})
    assert list(splits.by_name) == ["train", "test"]
    assert labels_of(splits.by_name["test"]) == [1]


def test_a_dictionary_of_columns(png: Any) -> None:
    picture = Image.open(io.BytesIO(png(7)))
    dataset = read({"image": [picture, picture], "label": ["b", "a"]})
    assert (dataset.kind, labels_of(dataset)) == ("image", [1, 0])
    assert dataset[0].content().getpixel((0, 0)) == 7


def test_a_frame_of_objects_is_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match="paths or encoded bytes"):
        read(pandas.DataFrame({"image": [object()], "label": [1]}))
