"""Arrays in npz and idx files, in memory, lists of rows, own datasets and `py:module:factory`."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image

from probekit.data import DataOptions, Dataset, Sample, read_dataset
from probekit.data.arrays import read_idx
from probekit.errors import InputError, NotFoundError, SampleError

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
PICTURES = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, prefix: str, *, zipped: bool, start: int = 0) -> NDArray[np.uint8]:
    images = (np.arange(5 * 3 * 4) + start).astype(np.uint8).reshape(5, 3, 4)
    labels = np.array([4, 0, 3, 1, 2], dtype=np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        content = gzip.compress(idx(array)) if zipped else idx(array)
        suffix = ".gz" if zipped else ""
        (folder / f"{prefix}-{name}-ubyte{suffix}").write_bytes(content)
    return images


def read(source: object, **options: Any) -> Dataset:
    return read_dataset(source, DataOptions(**options)).choose(options.get("split"))[1]


def pixels(dataset: Dataset) -> list[Any]:
    return [np.asarray(dataset[i].content()).tolist() for i in range(len(dataset))]


def labels_of(dataset: Dataset) -> list[int]:
    return [dataset[i].label for i in range(len(dataset))]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_of_idx_files_has_splits(tmp_path: Path, zipped: bool) -> None:
    train = write_idx(tmp_path, "train", zipped=zipped)
    test = write_idx(tmp_path, "t10k", zipped=zipped, start=9)
    splits = read_dataset(tmp_path)
    assert pixels(splits.choose()[1]) == train.tolist()
    assert pixels(splits.choose("test")[1]) == test.tolist()
    assert labels_of(splits.choose("test")[1]) == [4, 0, 3, 1, 2]
    assert splits.choose("test")[1].class_names == tuple("01234")


@pytest.mark.parametrize("zipped", [False, True])
def test_an_images_file_has_its_labels_beside_it(tmp_path: Path, zipped: bool) -> None:
    images = write_idx(tmp_path, "my", zipped=zipped)
    path = next(tmp_path.glob("my-images*"))
    dataset = read_dataset(path).choose()[1]
    assert pixels(dataset) == images.tolist()


def test_labels_may_be_zipped_though_the_images_are_not(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", zipped=False)
    plain = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    dataset = read_dataset(tmp_path).choose()[1]
    assert dataset[0].label == 4


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=4)), st.booleans())
def test_idx_files_are_read_as_written(array: NDArray[np.uint8], zipped: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
        assert np.array_equal(read_idx(path, dimensions=3), array)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("cut", [-1, 3, 8, 0])
def test_a_short_idx_file_is_refused(tmp_path: Path, zipped: bool, cut: int) -> None:
    images = write_idx(tmp_path, "train", zipped=zipped)
    path = next(tmp_path.glob("train-images*"))
    path.write_bytes(gzip.compress(idx(images)[:cut]) if zipped else idx(images)[:cut])
    with pytest.raises(InputError, match=path.name):
        read_dataset(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content[:20] + b"\0" * 20 + content[40:],
        lambda content: gzip.compress(gzip.decompress(content) + b"more"),
    ],
    ids=["cut", "zeros", "long"],
)
def test_a_damaged_gzip_is_refused(tmp_path: Path, damage: Any) -> None:
    write_idx(tmp_path, "train", zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="Fetch it again"):
        read_dataset(tmp_path)


def test_idx_labels_must_be_there_and_as_many_as_pictures(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(InputError, match="found 4"):
        read_dataset(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(NotFoundError, match="train-labels-idx1-ubyte"):
        read_dataset(tmp_path)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "set.npz", **arrays)
    return path / "set.npz"


@pytest.mark.parametrize(
    ("content", "label"), [("images", "labels"), ("x", "y"), ("X", "Y"), ("data", "targets")]
)
def test_npz_arrays_have_usual_names(tmp_path: Path, content: str, label: str) -> None:
    path = npz(tmp_path, **{content: IMAGES, label: np.array([[1], [0]])})
    dataset = read_dataset(path).choose()[1]
    assert (labels_of(dataset), pixels(dataset)) == ([1, 0], IMAGES.tolist())


@pytest.mark.parametrize("pattern", ["{split}_{noun}", "{noun}_{split}"])
def test_npz_splits_stand_before_or_after(tmp_path: Path, pattern: str) -> None:
    arrays = {
        pattern.format(split=split, noun=noun): array
        for split, count in (("test", 1), ("train", 2))
        for noun, array in (("x", IMAGES[:count] + count), ("y", np.arange(count)))
    }
    splits = read_dataset(npz(tmp_path, **arrays))
    assert list(splits.by_name) == ["train", "test"]
    assert pixels(splits.choose("test")[1]) == (IMAGES[:1] + 1).tolist()
    assert splits.choose("test")[1].class_names == ("0", "1")


def test_npz_columns_classes_and_texts(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        texts=np.array(["one", "two"]),
        labels=np.array([1, 0]),
        class_names=np.array(["cat", "dog", "eel"]),
        client_ids=np.array([7, 8]),
        ward=np.array(["w1", "w2"]),
        part=np.array(["train", "holdout"]),
        wrong=np.arange(3),
    )
    options = DataOptions(group_column="ward", keep_columns=("part",), split_column="part")
    splits = read_dataset(path, options)
    sample = splits.by_name["holdout"][0]
    assert splits.by_name["holdout"].kind == "text"
    assert (sample.content(), sample.label, sample.key) == ("two", 0, "1")
    assert dict(sample.columns) == {"client": "8", "group": "w2", "part": "holdout"}
    assert splits.by_name["train"].class_names == ("cat", "dog", "eel")
    with pytest.raises(InputError, match="wrong"):
        read_dataset(path, DataOptions(keep_columns=("wrong",)))
    with pytest.raises(InputError, match="--label-column"):
        read_dataset(path, DataOptions(label_column="labls"))


def test_npz_targets(tmp_path: Path) -> None:
    path = npz(tmp_path, x=IMAGES, age=np.array([1.5, 2]), height=np.array([3, 4]))
    dataset = read_dataset(path, DataOptions(target_columns=("age", "height"))).choose()[1]
    assert dataset.target_names == ("age", "height")
    assert dataset[0].targets == (1.5, 3.0)


@pytest.mark.parametrize(
    ("arrays", "mentioned"),
    [
        ({"pictures": IMAGES}, "--image-column"),
        ({"x": IMAGES, "y": np.arange(3)}, "found 3"),
        ({"x": np.array([object()])}, "np.savez"),
        ({"x": np.zeros(3)}, "float64"),
    ],
)
def test_npz_files_that_cannot_be_are_refused(
    tmp_path: Path, arrays: dict[str, Any], mentioned: str
) -> None:
    with pytest.raises(InputError, match=mentioned):
        read_dataset(npz(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 half an archive"])
def test_damaged_npz_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"set\.npz"):
        read_dataset(tmp_path / "set.npz")


def test_numbers_that_are_not_finite_harm_their_own_row_only(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.array([[1.0, 2.0], [np.nan, 1.0]]), y=[0, 1])
    dataset = read_dataset(path).choose()[1]
    assert (dataset.kind, dataset[0].content().tolist()) == ("array", [1.0, 2.0])
    with pytest.raises(SampleError, match="nan"):
        dataset[1].content()


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b", "a"],
        np.array(["b", "a", "b", "a"]),
        np.array(["b", "a", "b", "a"], object),
        np.array([b"b", b"a", b"b", b"a"]),
    ],
)
def test_arrays_with_labels_of_texts(labels: Any) -> None:
    dataset = read((PICTURES, labels))
    assert (dataset.kind, dataset.class_names) == ("image", ("a", "b"))
    assert labels_of(dataset) == [1, 0, 1, 0]
    assert pixels(dataset) == PICTURES.tolist()


def test_arrays_without_labels() -> None:
    dataset = read(PICTURES)
    assert (labels_of(dataset), dataset.class_names) == ([-1] * 4, ())


def test_pictures_with_channels_first_or_last() -> None:
    colors = np.arange(2 * 3 * 5 * 6, dtype=np.uint8).reshape(2, 3, 5, 6)
    last = np.moveaxis(colors, 1, 3)
    for source in (colors, last, torch.tensor(colors), list(colors), list(torch.tensor(colors))):
        assert pixels(read(source)) == last.tolist()
    gray = read(torch.tensor(colors[:, :1]))
    assert pixels(gray) == colors[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_of_numbers(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 3, 4, 4, dtype=dtype)
    dataset = read((tensor, torch.tensor([1, 0])))
    assert (dataset.kind, labels_of(dataset)) == ("array", [1, 0])
    assert dataset[0].content().shape == (3, 4, 4)


def test_16_bit_pictures_keep_their_depth() -> None:
    dataset = read(np.full((2, 3, 3), 4000, np.uint16))
    assert dataset[0].content().mode == "I;16"


def test_targets() -> None:
    matrix = read((PICTURES, np.eye(4)[:, :2]))
    assert matrix.target_names == ("target 0", "target 1")
    assert matrix[1].targets == (0.0, 1.0)
    column = read((PICTURES, [0.5, 1, 2, 3]))
    assert column[0].targets == (0.5,)


def test_lists_of_contents_and_of_pairs(tmp_path: Path, png: Any) -> None:
    path = tmp_path / "1.png"
    path.write_bytes(png(1))
    picture = Image.new("L", (4, 3), 2)
    contents = [png(0), path, picture, np.full((3, 4), 3, np.uint8)]
    for source in (contents, [(c, "x") for c in contents], (contents, ["x"] * 4)):
        dataset = read(source)
        assert [dataset[i].content().getpixel((0, 0)) for i in range(4)] == [0, 1, 2, 3]
        assert [dataset[i].path for i in range(4)] == [None, path, None, None]
    assert read([(c, 5) for c in contents])[0].label == 5
    assert labels_of(read([("some text", "b"), ("another", "a")])) == [1, 0]
    assert read(["some text", "another"]).kind == "text"


def test_a_row_of_another_kind_harms_nobody_else() -> None:
    dataset = read(["text", 7, "text"])
    assert dataset[2].content() == "text"
    with pytest.raises(SampleError, match="int"):
        dataset[1].content()


class TorchvisionLike:
    """A map-style dataset that decodes on access."""

    classes = ("cat", "dog")

    def __init__(self, *, with_targets: bool) -> None:
        self.decoded: list[int] = []
        if with_targets:
            self.targets = [1, 0, 1]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        self.decoded.append(row)
        return Image.new("L", (2, 2), row), [1, 0, 1][row]


def test_torchvision_data_sets() -> None:
    for with_targets, decoded in ((True, [0]), (False, [0, 0, 1, 2])):
        rows = TorchvisionLike(with_targets=with_targets)
        dataset = read(rows)
        assert (dataset.class_names, labels_of(dataset)) == (("cat", "dog"), [1, 0, 1])
        assert rows.decoded == decoded


@pytest.mark.parametrize(
    ("source", "mentioned"),
    [
        (7, "int"),
        (None, "None"),
        ([], "no rows"),
        ({}, "no rows"),
        ((PICTURES, [1, 2]), "found 2"),
        ([object()], "object"),
        (np.zeros(3), "float64"),
        (np.array([object()]), "object"),
        ([(PICTURES[0], 1), PICTURES[1]], "tuple"),
        ([("a", "x"), ("b", 3)], "3"),
    ],
)
def test_what_is_no_data_set_is_refused(source: object, mentioned: str) -> None:
    with pytest.raises(InputError, match=mentioned):
        read(source)


def test_columns_of_arrays_are_refused() -> None:
    with pytest.raises(InputError, match="--label-column"):
        read(PICTURES, label_column="x")


class OwnDataset:
    """Somebody's own dataset; imports nothing of ours but the sample."""

    name = "own"
    kind = "text"
    class_names = ("a", "b")
    target_names = ()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Sample:
        return Sample(str(index), lambda: "text", index % 2)


def test_any_object_that_is_a_dataset() -> None:
    own = OwnDataset()
    assert read(own) is own
    limited = read(own, limit=2)
    assert (len(limited), limited.name, limited.class_names) == (2, "own", ("a", "b"))
    assert (limited.kind, limited.target_names, limited[1].label) == ("text", (), 1)
    with pytest.raises(IndexError):
        limited[2]
    splits = read_dataset({"test": own, "train": own})
    assert list(splits.by_name) == ["train", "test"]
    assert read_dataset(splits).by_name == splits.by_name


MODULE = """
import numpy as np
def pictures():
    pictures = np.zeros((4, 2, 2), np.uint8)
    return {"train": (pictures, list("abab")), "test": pictures[:1]}
table = [("x", "b"), ("y", "a")]
def path():
    return "digits"
def nothing():
    return None
"""


def test_factories_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories_of_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    splits = read_dataset("py:factories_of_data:pictures")
    assert {name: len(dataset) for name, dataset in splits.by_name.items()} == {
        "train": 4,
        "test": 1,
    }
    assert splits.by_name["test"].class_names == ("a", "b")
    assert splits.by_name["train"].name == "py:factories_of_data:pictures[train]"
    assert labels_of(read("py:factories_of_data:table")) == [1, 0]
    assert len(read("py:factories_of_data:path", split="test")) == 397
    with pytest.raises(InputError, match="None"):
        read("py:factories_of_data:nothing")
    with pytest.raises(NotFoundError, match="pictures"):
        read("py:factories_of_data:picture")
    with pytest.raises(NotFoundError, match="no_such_module"):
        read("py:no_such_module:x")
