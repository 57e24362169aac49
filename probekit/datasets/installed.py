"""The packaged sets: digits, which comes with scikit-learn, and three that `probekit dataset get` keeps."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from probekit.datasets.options import DatasetOptions
from probekit.datasets.sources import Split, cifar10, fashion_mnist, mnist
from probekit.datasets.table import Mapped, Table, choose_split, classify, item_reader
from probekit.errors import CorruptError, NotFoundError, StorageError
from probekit.files import default_root, new_file, new_folder
from probekit.registry import nearest

DIGITS_TRAIN = 1400


@dataclass(frozen=True)
class Facts:
    """What is known of a set before it is fetched. `sha256` is of pixels and labels, train then test."""

    fetch: Callable[[Path, Callable[[str], None]], dict[str, Split]]
    shape: tuple[int, ...]
    counts: Mapping[str, int]
    class_names: tuple[str, ...]
    sha256: str


NUMERALS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MNIST = {"train": 60000, "test": 10000}
CIFAR = {"train": 50000, "test": 10000}
SETS = {
    "mnist": Facts(
        mnist, (28, 28), MNIST, NUMERALS, "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b"
    ),
    "fashion-mnist": Facts(
        fashion_mnist, (28, 28), MNIST, CLOTHES, "ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619"
    ),
    "cifar10": Facts(
        cifar10, (32, 32, 3), CIFAR, THINGS, "6b3883dca6c867f1e58def548c063d1865569b8575fcbce06b3e468a89f9895a"
    ),
}


def load(name: str, options: DatasetOptions) -> Table:
    """A packaged set by name: `digits`, or one that was installed in the default cache."""
    options.refuse("columns", source=f"packaged:{name}")
    if name == "digits":
        return _digits(options.split)
    if name not in SETS:
        raise NotFoundError(f"There is no packaged dataset {name!r}. {nearest(name, ['digits', *SETS])}")
    return read(name, default_root(), split=options.split)


def read(name: str, root: Path, *, split: str | None = None) -> Table:
    """One split (`train` unless another is asked for) of a set that was installed below a cache folder."""
    facts, folder = SETS[name], root / "datasets" / name
    chosen = choose_split(split, list(facts.counts), source=f"packaged:{name}")
    if not folder.is_dir():
        raise NotFoundError(f"The dataset {name!r} is not installed in {root}. Run `probekit dataset get {name}`.")
    files = (folder / f"{chosen}-{noun}.npy" for noun in ("images", "labels"))
    images, labels = (Mapped(partial(np.load, file, mmap_mode="r", allow_pickle=False)) for file in files)
    count, found = facts.counts[chosen], ""
    try:
        if (images.array.shape, labels.array.shape) != (
            (count, *facts.shape),
            (count,),
        ) or images.array.dtype != np.uint8:
            found = f"found {images.array.dtype} of shape {images.array.shape}"
    except (OSError, ValueError, EOFError) as error:
        found = str(error)
    if found:
        remedy = f"Run `probekit dataset get {name}` again."
        raise CorruptError(f"The dataset {name!r} in {folder} is damaged: {found}. {remedy}")
    source = f"packaged:{name}[{chosen}]"
    numbers, classes = classify(np.array(labels.array), facts.class_names, source=source)
    return Table(source, "image", partial(item_reader, "image", images), numbers, classes)


def install(name: str, root: Path, *, progress: Callable[[str], None] | None = None) -> Path:
    """Fetch a set and keep it below a cache folder, whole or not at all; what is there already stays."""
    if name not in SETS:
        raise NotFoundError(f"There is no dataset {name!r} to get. {nearest(name, list(SETS))}")
    folder = root / "datasets" / name
    if is_installed(name, root):
        return folder
    say = progress or (lambda step: None)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent, ignore_cleanup_errors=True) as work:
            splits = SETS[name].fetch(Path(work), say)
            say(f"checking {name}")
            _check(name, splits)
            if not is_installed(name, root):  # another process may have been faster
                with new_folder(folder) as ready:
                    for split, arrays in splits.items():
                        for noun, array in zip(("images", "labels"), arrays, strict=True):
                            with new_file(ready / f"{split}-{noun}.npy") as file:
                                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}. Make room, or choose another cache.") from error
    return folder


def is_installed(name: str, root: Path) -> bool:
    """Whether a set is there and can be read."""
    try:
        for split in SETS[name].counts:
            read(name, root, split=split)
    except (NotFoundError, CorruptError):
        return False
    return True


def _digits(split: str | None) -> Table:
    """1,797 handwritten numerals of 8 x 8: all, or the first 1,400 as `train` and the last 397 as `test`."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # scikit-learn counts ink from 0 to 16.
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)
    parts = {"all": slice(None), "train": slice(DIGITS_TRAIN), "test": slice(DIGITS_TRAIN, None)}
    chosen = parts[choose_split(split or "all", list(parts), source="packaged:digits")]
    source = "packaged:digits" + (f"[{split}]" if split else "")
    labels, classes = classify(digits.target[chosen].astype(np.int64), NUMERALS, source=source)
    return Table(source, "image", partial(item_reader, "image", images[chosen]), labels, classes)


def _check(name: str, splits: Mapping[str, Split]) -> None:
    """Refuse a download that is not the set it should be."""
    facts, hasher = SETS[name], hashlib.sha256()
    for split, count in facts.counts.items():
        images, labels = splits[split]
        if images.shape != (count, *facts.shape) or labels.shape != (count,):
            wanted, found = f"{count} {split} pictures of {facts.shape}", f"{images.shape} and {labels.shape}"
            raise CorruptError(f"{name} should have {wanted} and as many labels; found {found}. Nothing was kept.")
        hasher.update(np.ascontiguousarray(images).data)
        hasher.update(np.ascontiguousarray(labels, dtype="<i8").data)
    if (found := hasher.hexdigest()) != facts.sha256:
        raise CorruptError(f"{name} should have the sha256 {facts.sha256}; found {found}. Nothing was kept.")
