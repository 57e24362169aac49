"""Rows of Hugging Face datasets, from everything that can be had without a network."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from probekit.datasets import Columns, dataset
from probekit.errors import InputError, NotFoundError, SampleError

CLASSES = datasets.ClassLabel(names=["zebra", "ant"])


@pytest.fixture
def made(png: Any) -> datasets.Dataset:
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


def _tar(path: Path, png: Any, values: range) -> None:
    with tarfile.open(path, "w") as tar:
        for value in values:
            for ending, content in (("png", png(value)), ("cls", str(value % 3).encode())):
                member = tarfile.TarInfo(f"{value:04}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _check_made(found: Any) -> None:
    samples = list(found)
    assert (found.kind, found.class_names) == ("image", ("zebra", "ant"))
    assert [sample.label for sample in samples] == [1, 0, -1, -1]
    assert [sample.client for sample in samples] == ["7", "7", "8", "9"]
    assert [sample.name for sample in samples] == ["0", "1", "2", "3"]
    assert [samples[row].content().getpixel((0, 0)) for row in (0, 3)] == [0, 3]
    for row, message in ((1, "cannot be read"), (2, "The row has no picture")):
        with pytest.raises(SampleError, match=message):
            samples[row].content()


def test_a_dataset_object_is_wrapped(made: datasets.Dataset) -> None:
    _check_made(dataset(made))


def test_a_broken_row_of_a_stream_harms_nobody_else(made: datasets.Dataset) -> None:
    _check_made(dataset(made.to_iterable_dataset()))


def test_nothing_is_decoded_before_it_is_asked_for(made: datasets.Dataset, decoded: list[Any]) -> None:
    found = dataset(made)
    samples = [found[row] for row in range(4)]
    streamed = list(dataset(made.to_iterable_dataset()))
    assert decoded == []
    samples[3].content()
    streamed[0].content()
    assert len(decoded) == 2


def test_shuffled_and_selected_rows_keep_their_labels(made: datasets.Dataset) -> None:
    found = dataset(made.select([3, 0]))
    assert [(sample.label, sample.client) for sample in found] == [(-1, "9"), (1, "7")]
    assert found[1].content().getpixel((0, 0)) == 0


def test_a_format_is_set_aside_and_a_transform_refused(made: datasets.Dataset) -> None:
    _check_made(dataset(made.with_format("numpy")))
    with pytest.raises(InputError, match="has a transform set"):
        dataset(made.with_transform(lambda rows: rows))


def test_a_dictionary_is_read_at_a_split(made: datasets.Dataset) -> None:
    both = datasets.DatasetDict({"train": made, "test": made.select([3])})
    assert (len(dataset(both)), len(dataset(both, split="test"))) == (4, 1)
    with pytest.raises(NotFoundError, match=r"no split 'dev'. Known and close: test, train"):
        dataset(both, split="dev")
    with pytest.raises(NotFoundError, match="no split 'train'; found rows without a split"):
        dataset(made, split="train")


def test_text_is_read_where_there_is_no_picture(made: datasets.Dataset) -> None:
    found = dataset(made, columns=Columns(text="note"))
    assert (found.kind, found[0].content(), found[0].label) == ("text", "a", 1)
    with pytest.raises(SampleError, match="no text"):
        found[2].content()
    assert dataset(made.remove_columns("image").rename_column("note", "text")).kind == "text"


def test_other_columns_may_be_named(made: datasets.Dataset) -> None:
    found = dataset(made.select([0, 1]), columns=Columns(label="note", client="label"))
    assert found.class_names == ("a", "b")
    assert [(sample.label, sample.client) for sample in found] == [(0, "1"), (1, "0")]


def test_names_as_labels_are_sorted_classes(made: datasets.Dataset) -> None:
    found = dataset(made, columns=Columns(label="note"))
    assert (found.class_names, [sample.label for sample in found]) == (("a", "b", "d"), [0, 1, -1, 2])


def test_a_label_beyond_the_classes_names_its_row(png: Any) -> None:
    rows = datasets.Dataset.from_dict({"image": [png(0)] * 3, "label": [0, 1, 5]})
    assert [sample.label for sample in dataset(rows.cast_column("image", datasets.Image()))] == [0, 1, 5]
    unchecked = rows.cast_column("image", datasets.Image())
    unchecked.info.features["label"] = CLASSES
    with pytest.raises(InputError, match=r"row 2: a label must lie between 0 and 1 .* found 5"):
        dataset(unchecked)


def test_a_missing_client_names_its_row(png: Any) -> None:
    rows = datasets.Dataset.from_dict({"image": [png(0)] * 2, "client_id": ["a", None]})
    with pytest.raises(InputError, match="row 1: the client is missing"):
        dataset(rows)


def test_an_empty_dataset_is_refused(made: datasets.Dataset) -> None:
    with pytest.raises(InputError, match="has no rows"):
        dataset(made.select([]))


def test_a_saved_folder_is_read(tmp_path: Path, made: datasets.Dataset) -> None:
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(tmp_path / "two")
    _check_made(dataset(f"hf:{tmp_path}/one"))
    _check_made(dataset(f"hf:{tmp_path}/two", streaming=True))
    assert len(dataset(f"hf:{tmp_path}/two", split="test")) == 1
    with pytest.raises(NotFoundError, match="no split 'dev'"):
        dataset(f"hf:{tmp_path}/two", split="dev")


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "arrow"])
def test_a_file_of_rows_is_read(tmp_path: Path, png: Any, ending: str) -> None:
    rows = datasets.Dataset.from_dict({"text": ["x", "y", "z"], "label": ["b", "a", "b"]})
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        rows.to_parquet(path)
    elif ending == "jsonl":
        rows.to_json(path)
    else:
        rows.save_to_disk(tmp_path / "saved")
        path.write_bytes(next((tmp_path / "saved").glob("*.arrow")).read_bytes())
    found = dataset(f"hf:{path}")
    assert [(sample.content(), sample.label) for sample in found] == [("x", 1), ("y", 0), ("z", 1)]
    assert (found.class_names, found.name) == (("a", "b"), f"hf:{path}[train]")


def test_a_parquet_file_keeps_its_classes_and_pictures(tmp_path: Path, made: datasets.Dataset) -> None:
    made.to_parquet(tmp_path / "rows.parquet")
    _check_made(dataset(f"hf:{tmp_path}/rows.parquet"))
    _check_made(dataset(f"hf:{tmp_path}/rows.parquet", streaming=True))


@pytest.mark.parametrize(("ending", "comma"), [("csv", ","), ("tsv", "\t")])
def test_a_table_may_name_its_pictures(tmp_path: Path, png: Any, ending: str, comma: str) -> None:
    (tmp_path / "pictures").mkdir()
    for value in range(3):
        (tmp_path / f"pictures/{value}.png").write_bytes(png(value))
    lines = [("image", "label"), *((f"pictures/{value}.png", ["2", "", "1"][value]) for value in range(3))]
    (tmp_path / f"rows.{ending}").write_text("".join(comma.join(line) + "\n" for line in lines))
    found = dataset(f"hf:{tmp_path}/rows.{ending}")
    assert [(sample.name, sample.label) for sample in found] == [
        ("pictures/0.png", 2),
        ("pictures/1.png", -1),
        ("pictures/2.png", 1),
    ]
    assert [sample.content().getpixel((0, 0)) for sample in found] == [0, 1, 2]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_image_folder_is_read(tmp_path: Path, png: Any, streaming: bool) -> None:
    for split, name, value in (("train", "b/2", 2), ("train", "a/1", 1), ("test", "a/3", 3)):
        path = tmp_path / split / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(value))
    (tmp_path / "train/a/0.png").write_bytes(b"broken")
    found = dataset(f"hf:{tmp_path}", streaming=streaming)
    samples = list(found)
    assert found.class_names == ("a", "b")
    assert [sample.label for sample in samples] == [0, 0, 1]
    if not streaming:
        assert [sample.name for sample in samples] == ["train/a/0.png", "train/a/1.png", "train/b/2.png"]
    assert [sample.content().getpixel((0, 0)) for sample in samples[1:]] == [1, 2]
    with pytest.raises(SampleError):
        samples[0].content()
    assert len(list(dataset(f"hf:{tmp_path}", split="test", streaming=streaming))) == 1


def test_shuffled_pictures_are_not_called_by_each_others_paths(tmp_path: Path, png: Any) -> None:
    paths = [str(tmp_path / f"{value}.png") for value in range(9)]
    for value, path in enumerate(paths):
        Path(path).write_bytes(png(value))
    rows = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    assert [sample.name for sample in dataset(rows)] == paths
    for sample in dataset(rows.shuffle(seed=1)):
        own = paths[sample.content().getpixel((0, 0))]
        assert sample.name.isdecimal() or sample.name == own


def test_a_slice_of_a_split_is_read(tmp_path: Path, made: datasets.Dataset) -> None:
    made.to_parquet(tmp_path / "rows.parquet")
    found = dataset(f"hf:{tmp_path}/rows.parquet", split="train[1:3]")
    assert ([sample.client for sample in found], found.name[-12:]) == (["7", "8"], "[train[1:3]]")
    with pytest.raises(NotFoundError, match="dev"):
        dataset(f"hf:{tmp_path}/rows.parquet", split="dev[:2]")


@pytest.mark.parametrize("streaming", [False, True])
def test_tar_files_are_read(tmp_path: Path, png: Any, streaming: bool) -> None:
    _tar(tmp_path / "part-0.tar", png, range(4))
    _tar(tmp_path / "part-1.tar", png, range(4, 6))
    found = dataset(f"hf:{tmp_path}/part-*.tar", streaming=streaming)
    samples = list(found)
    assert [(sample.name, sample.label) for sample in samples] == [(f"{row:04}", row % 3) for row in range(6)]
    assert [sample.content().getpixel((0, 0)) for sample in samples] == list(range(6))
    assert len(list(dataset(f"hf:{tmp_path}/part-1.tar", streaming=streaming))) == 2


def test_a_stream_has_no_length_and_no_row_numbers(made: datasets.Dataset) -> None:
    found = dataset(made.to_iterable_dataset(), limit=3)
    with pytest.raises(TypeError, match="is a stream"):
        len(found)
    with pytest.raises(TypeError, match="is a stream"):
        found[0]
    assert [sample.name for sample in found] == ["0", "1", "2"]
    assert len(list(found)) == len(list(found)) == 3


def test_a_stream_without_known_columns_tells_them_by_its_first_rows(png: Any) -> None:
    def rows() -> Any:
        yield from ({"text": "x", "label": value} for value in (2, 1))

    found = dataset(datasets.IterableDataset.from_generator(rows))
    assert [(sample.content(), sample.label) for sample in found] == [("x", 2), ("x", 1)]


def test_a_stream_cannot_number_names(made: datasets.Dataset) -> None:
    with pytest.raises(InputError, match="whose classes a stream shows too late"):
        dataset(made.to_iterable_dataset(), columns=Columns(label="note"))


@pytest.mark.parametrize("streaming", [False, True])
def test_it_can_be_sent_to_another_process(tmp_path: Path, made: datasets.Dataset, streaming: bool) -> None:
    _check_made(pickle.loads(pickle.dumps(dataset(made.to_iterable_dataset() if streaming else made))))
    made.save_to_disk(tmp_path / "one")
    sample = pickle.loads(pickle.dumps(dataset(f"hf:{tmp_path}/one")[3]))
    assert sample.content().getpixel((0, 0)) == 3


def test_a_folder_may_have_configurations(tmp_path: Path) -> None:
    for name in ("small", "large"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name, "label": 0}))
    entries = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("small", "large"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    assert dataset(f"hf:{tmp_path}:large")[0].content() == "large"
    with pytest.raises(NotFoundError, match=r"no configuration 'huge': .*small.*large"):
        dataset(f"hf:{tmp_path}:huge")
    with pytest.raises(InputError, match=r"Choose a configuration, .*small.*large"):
        dataset(f"hf:{tmp_path}")


def test_labels_are_the_integers_of_a_large_column() -> None:
    numbers = np.random.default_rng(0).integers(0, 50, 5000)
    found: Any = dataset(datasets.Dataset.from_dict({"text": ["t"] * 5000, "label": numbers}))
    assert np.array_equal(found.labels, numbers)
