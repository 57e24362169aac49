"""idx and npz files."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from probekit.datasets import Columns, dataset
from probekit.datasets.arrays import read_idx
from probekit.errors import InputError, NotFoundError, SampleError


def _idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def _write(folder: Path, prefix: str, *, zipped: bool, start: int = 0) -> NDArray[np.uint8]:
    images = (np.arange(5 * 3 * 4) + start).astype(np.uint8).reshape(5, 3, 4)
    labels = np.array([4, 0, 3, 1, 2], dtype=np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        content = gzip.compress(_idx(array)) if zipped else _idx(array)
        (folder / f"{prefix}-{name}-ubyte{'.gz' if zipped else ''}").write_bytes(content)
    return images


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_of_idx_files_is_read_by_split(tmp_path: Path, zipped: bool) -> None:
    train, test = (_write(tmp_path, split, zipped=zipped, start=start) for split, start in (("train", 0), ("t10k", 9)))
    for split, images in ((None, train), ("train", train), ("test", test), ("t10k", test)):
        found = dataset(f"idx:{tmp_path}", split=split)
        assert [sample.label for sample in found] == [4, 0, 3, 1, 2]
        assert (found.kind, found.class_names, found[0].name) == ("image", (), "0")
        for sample, pixels in zip(found, images, strict=True):
            picture = sample.content()
            assert (picture.mode, picture.size) == ("L", (4, 3))
            assert np.array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize("zipped", [False, True])
def test_an_images_file_finds_its_labels(tmp_path: Path, zipped: bool) -> None:
    images = _write(tmp_path, "my", zipped=zipped)
    found = dataset(f"idx:{tmp_path}/my-images-idx3-ubyte{'.gz' if zipped else ''}")
    assert np.array_equal(np.asarray(found[4].content()), images[4])
    assert found[4].label == 2


def test_labels_may_be_zipped_though_the_images_are_not(tmp_path: Path) -> None:
    _write(tmp_path, "train", zipped=False)
    plain = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert dataset(f"idx:{tmp_path}")[0].label == 4


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=4)), st.booleans())
def test_what_is_written_is_read(array: NDArray[np.uint8], zipped: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(gzip.compress(_idx(array)) if zipped else _idx(array))
        assert np.array_equal(read_idx(path, dimensions=3), array)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("cut", "message"), [(-1, "found 59"), (3, "no idx file"), (8, "no idx file"), (0, "nothing")])
def test_a_short_file_is_refused(tmp_path: Path, zipped: bool, cut: int, message: str) -> None:
    images = _write(tmp_path, "train", zipped=zipped)
    path = next(tmp_path.glob("train-images*"))
    path.write_bytes(gzip.compress(_idx(images)[:cut]) if zipped else _idx(images)[:cut])
    with pytest.raises(InputError, match=message):
        dataset(f"idx:{tmp_path}")


def test_a_long_file_is_refused(tmp_path: Path) -> None:
    images = _write(tmp_path, "train", zipped=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(images) + b"more"))
    with pytest.raises(InputError, match="5 x 3 x 4 = 60 bytes after its header; found more than 60"):
        dataset(f"idx:{tmp_path}")


@pytest.mark.parametrize("damage", [lambda raw: raw[:-20], lambda raw: raw[:20] + b"\0" * 20 + raw[40:]])
def test_a_damaged_gzip_is_refused(tmp_path: Path, damage: Any) -> None:
    _write(tmp_path, "train", zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="damaged or not complete"):
        dataset(f"idx:{tmp_path}")


def test_labels_must_be_as_many_as_pictures(tmp_path: Path) -> None:
    _write(tmp_path, "train", zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(InputError, match="one label for each of 5 pictures; found 4"):
        dataset(f"idx:{tmp_path}")


def test_pictures_without_pixels_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, "train", zipped=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(_idx(np.zeros((5, 0, 4), dtype=np.uint8)))
    with pytest.raises(InputError, match="5 x 0 x 4"):
        dataset(f"idx:{tmp_path}")


def test_what_is_missing_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no file or folder"):
        dataset(f"idx:{tmp_path}/none")
    with pytest.raises(NotFoundError, match="holds no idx files"):
        dataset(f"idx:{tmp_path}")
    _write(tmp_path, "train", zipped=False)
    with pytest.raises(NotFoundError, match="no split 'dev'"):
        dataset(f"idx:{tmp_path}", split="dev")
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(NotFoundError, match=r"wanted train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz"):
        dataset(f"idx:{tmp_path}")


def test_idx_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no columns to name"):
        dataset(f"idx:{tmp_path}", columns=Columns(label="x"))


def test_plain_idx_files_are_mapped_not_sent(tmp_path: Path) -> None:
    images = np.zeros((2000, 28, 28), dtype=np.uint8)
    images[1999] = 7
    (tmp_path / "train-images-idx3-ubyte").write_bytes(_idx(images))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(np.zeros(2000, dtype=np.uint8)))
    found = dataset(f"idx:{tmp_path}")
    sent = pickle.dumps(found)
    assert len(sent) < 2000 * 8 + 2000
    assert pickle.loads(sent)[1999].content().getpixel((5, 5)) == 7
    assert len(pickle.dumps(found[1999])) < 2000


def _npz(path: Path, **arrays: Any) -> str:
    np.savez(path / "set.npz", **arrays)
    return f"npz:{path}/set.npz"


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize(("content", "label"), [("images", "labels"), ("x", "y"), ("X", "Y"), ("data", "targets")])
def test_arrays_are_found_by_name(tmp_path: Path, content: str, label: str) -> None:
    found = dataset(_npz(tmp_path, **{content: IMAGES, label: np.array([[1], [0]])}))
    assert [sample.label for sample in found] == [1, 0]
    assert np.array_equal(np.asarray(found[1].content()), IMAGES[1])


@pytest.mark.parametrize("key", ["{split}_{noun}", "{noun}_{split}"])
def test_splits_stand_before_or_after_the_name(tmp_path: Path, key: str) -> None:
    names = {(noun, split): key.format(noun=noun, split=split) for noun in "xy" for split in ("train", "test")}
    content = {"train": IMAGES, "test": IMAGES[:1] + 100}
    arrays = {
        name: content[split] if noun == "x" else np.arange(len(content[split])) for (noun, split), name in names.items()
    }
    name = _npz(tmp_path, **arrays)
    assert len(dataset(name)) == 2
    found = dataset(name, split="test")
    assert (len(found), found.name) == (1, f"{name}[test]")
    assert found[0].content().getpixel((0, 0)) == 100
    with pytest.raises(NotFoundError, match=r"no split 'val'. Known and close: test, train"):
        dataset(name, split="val")


def test_colours_classes_and_clients_are_kept(tmp_path: Path) -> None:
    colours = np.zeros((2, 3, 4, 3), dtype=np.uint8)
    colours[..., 1] = 200
    name = _npz(
        tmp_path,
        images=colours,
        labels=np.array([1, -1]),
        client_ids=np.array([7, 8]),
        class_names=np.array(["cat", "dog"]),
    )
    found = dataset(name)
    assert found.class_names == ("cat", "dog")
    assert [(sample.label, sample.client) for sample in found] == [(1, "7"), (-1, "8")]
    assert found[0].content().getpixel((0, 0)) == (0, 200, 0)


def test_text_labels_are_classes(tmp_path: Path) -> None:
    for labels in (np.array(["dog", "cat"]), np.array([b"dog", b"cat"])):
        found = dataset(_npz(tmp_path, images=IMAGES, labels=labels))
        assert (found.class_names, found[0].label) == (("cat", "dog"), 1)


def test_arrays_may_be_named(tmp_path: Path) -> None:
    name = _npz(tmp_path, left=IMAGES, right=IMAGES + 1, coarse=np.array([0, 0]), site=np.array(["a", "b"]))
    found = dataset(name, columns=Columns(image="right", label="coarse", client="site"))
    assert (found[0].content().getpixel((0, 0)), found[1].label, found[1].client) == (1, 0, "b")
    with pytest.raises(InputError, match="no array 'up'; found left, right"):
        dataset(name, columns=Columns(image="up"))
    with pytest.raises(InputError, match="must have an array named images"):
        dataset(name)


@pytest.mark.parametrize("dtype", ["float32", ">f8", "int16"])
def test_a_matrix_is_rows_of_numbers(tmp_path: Path, dtype: str) -> None:
    matrix = np.arange(6).reshape(3, 2).astype(dtype)
    found = dataset(_npz(tmp_path, embeddings=matrix))
    assert (found.kind, [sample.label for sample in found]) == ("array", [-1, -1, -1])
    assert found[2].content().tolist() == [4, 5]
    assert found[2].content().dtype.isnative


def test_a_number_that_is_none_harms_its_own_row_only(tmp_path: Path) -> None:
    found = dataset(_npz(tmp_path, x=np.array([[0.0, np.nan], [1.0, 2.0]])))
    with pytest.raises(SampleError, match="A row must be finite"):
        found[0].content()
    assert found[1].content().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 3, 4))}, "found float64 of shape"),
        ({"images": np.zeros((2, 3, 32, 32), dtype=np.uint8)}, "put the channels last"),
        ({"images": np.zeros((0, 3, 4), dtype=np.uint8)}, r"shape \(0, 3, 4\)"),
        ({"images": np.uint8(3)}, r"shape \(\)"),
        ({"images": IMAGES, "labels": np.arange(3)}, "one value for each of 2 rows"),
        ({"images": IMAGES, "labels": np.array([0, 0.5])}, "row 1: a label must be one class number"),
        (
            {"images": IMAGES, "labels": np.array([0, 2]), "classes": np.array(["a", "b"])},
            "row 1: .* found 2",
        ),
        ({"x": np.array([["a"], ["b"]])}, "found <U1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataset(_npz(tmp_path, **arrays))


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    for arrays in ({"images": np.array([{}, {}])}, {"images": IMAGES, "labels": np.array(["a", None])}):
        with pytest.raises(InputError, match="can run code when loaded"):
            dataset(_npz(tmp_path, **arrays))


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.save(tmp_path / "one.npy", IMAGES)
    _npz(tmp_path, images=IMAGES)
    whole = path.read_bytes()
    for content, message in (
        (b"", "not a whole npz file"),
        (b"text", "not a whole npz file"),
        (whole[:-30], "not a whole npz file"),
        ((tmp_path / "one.npy").read_bytes(), "one array without a name"),
        (whole.replace(IMAGES.tobytes(), bytes(24)), "'images' is damaged"),
        (pickle.dumps([1]), "not a whole npz file"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            dataset(f"npz:{path}")
    with pytest.raises(NotFoundError, match="There is no file"):
        dataset(f"npz:{tmp_path}/none.npz")


def test_a_split_that_the_file_does_not_know_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no split 'train', nor any other"):
        dataset(_npz(tmp_path, images=IMAGES), split="train")


def test_npz_rows_can_be_sent_to_another_process(tmp_path: Path) -> None:
    found = pickle.loads(pickle.dumps(dataset(_npz(tmp_path, images=IMAGES))))
    assert np.array_equal(np.asarray(found[1].content()), IMAGES[1])
