"""Datasets in array files: the idx files that MNIST came in, and NumPy's npz."""

from __future__ import annotations

import gzip
import math
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from probekit.datasets.options import DatasetOptions
from probekit.datasets.table import Mapped, Table, array_kind, choose_split, classify, client_names, item_reader
from probekit.errors import InputError, NotFoundError
from probekit.values.groups import column_text

CONTENTS = ("images", "image", "x", "data", "embeddings", "inputs")
LABELS = ("labels", "label", "y", "targets", "target")
CLIENTS = ("client_ids", "client_id", "clients", "client")
CLASSES = ("class_names", "label_names", "classes")


def load_idx(name: str, options: DatasetOptions) -> Table:
    """The pictures of an idx file with its labels beside it, or of one split in a folder of such files."""
    path, source = Path(name).expanduser(), f"idx:{name}"
    options.refuse("columns", source=source)
    if not name or not (path.is_file() or path.is_dir()):
        raise NotFoundError(f"There is no file or folder {name!r}. Give a folder of idx files, or an images file.")
    if path.is_dir():
        files = _idx_files(path)
        wanted = "t10k" if options.split == "test" and "test" not in files else options.split
        split = choose_split(wanted, list(files), source=source)
        path, source = files[split], f"{source}[{split}]"
    else:
        options.refuse("split", source=source)
    images, shape = _open_idx(path, dimensions=3)
    if 0 in shape:
        raise InputError(f"{path} must hold pictures; its header says {_times(shape)}.")
    labels_path = _labels_beside(path)
    labels, counted = _open_idx(labels_path, dimensions=1)
    if counted != shape[:1]:
        raise InputError(f"{labels_path} must hold one label for each of {shape[0]} pictures; found {counted[0]}.")
    numbers, _ = classify(np.asarray(labels.array), source=source)
    return Table(source, "image", partial(item_reader, "image", images), numbers)


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of one idx file, plain or gzipped, as an array."""
    return _open_idx(path, dimensions=dimensions)[0].array


def _idx_files(folder: Path) -> dict[str, Path]:
    """The images file of each split in a folder; an unpacked one is preferred to its gzipped copy."""
    pattern = re.compile(r"(.+?)[-_.]images[-_.]idx3[-_.]ubyte(\.gz)?", re.IGNORECASE)
    files = sorted(folder.iterdir(), reverse=True)
    found = {match[1]: path for path in files if (match := pattern.fullmatch(path.name))}
    if not found:
        raise NotFoundError(f"{folder} holds no idx files; wanted for example train-images-idx3-ubyte.gz.")
    return dict(sorted(found.items()))


def _labels_beside(images: Path) -> Path:
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    plain = name.removesuffix(".gz")
    for candidate in (images.with_name(end) for end in (name, plain, f"{plain}.gz")):
        if candidate != images and candidate.is_file():
            return candidate
    raise NotFoundError(f"There are no labels beside {images}; wanted {plain} or {plain}.gz in the same folder.")


def _open_idx(path: Path, *, dimensions: int) -> tuple[Mapped, tuple[int, ...]]:
    """The bytes of an idx file and their shape; mapped if they lie in a plain file, in memory if gzipped."""
    with path.open("rb") as file:
        zipped, offset = file.read(2) == b"\x1f\x8b", 4 + 4 * dimensions
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape = _idx_shape(file.read(offset), path, dimensions=dimensions)
            size = math.prod(shape)
            content = file.read(size + 1) if zipped else b""
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged or not complete: {error}. Fetch it again.") from error
    found = len(content) if zipped else path.stat().st_size - offset
    if found != size:
        count = f"more than {size}" if zipped and found > size else str(found)
        raise InputError(f"{path} should hold {_times(shape)} = {size} bytes after its header; found {count}.")
    if zipped:
        return Mapped(partial(np.asarray, np.frombuffer(content, dtype=np.uint8).reshape(shape))), shape
    return Mapped(partial(np.memmap, path.absolute(), dtype=np.uint8, mode="r", offset=offset, shape=shape)), shape


def _idx_shape(header: bytes, path: Path, *, dimensions: int) -> tuple[int, ...]:
    magic, found = bytes((0, 0, 8, dimensions)), header[:4]  # 8: unsigned bytes
    if len(header) < 4 + 4 * dimensions or found != magic:
        wanted = f"idx file of bytes in {dimensions} dimensions: it must begin with {magic.hex()} and its sizes"
        rest = max(len(header) - 4, 0)
        raise InputError(f"{path} is no {wanted}; found {found.hex() or 'nothing'} and {rest} bytes.")
    return tuple(np.frombuffer(header, dtype=">u4", offset=4).tolist())


def _times(shape: Sequence[int]) -> str:
    return " x ".join(str(size) for size in shape)


def load_npz(name: str, options: DatasetOptions) -> Table:
    """Pictures (N x H x W [x 3] bytes) or rows of numbers (N x d) from a file that np.savez wrote.

    Arrays are found by name: images, x, data or embeddings; labels, y or targets; client_ids; class_names.
    A split stands before or after them: train_images, x_test.
    """
    options.refuse("text", source=f"npz:{name}")
    path = Path(name).expanduser()
    if not name or not path.is_file():
        raise NotFoundError(f"There is no file {name!r}. Give a file that np.savez wrote.")
    # np.load would leave the file open when it is no whole archive.
    with path.open("rb") as handle, _opened(handle, path) as file:
        split, keys = _npz_keys(file.files, options, source=f"npz:{name}")
        arrays = {noun: _array(file, key, path=path) for noun, key in keys.items()}
    source = f"npz:{name}" + (f"[{split}]" if split else "")
    content = arrays["image"]
    kind = _content_kind(content, key=keys["image"], path=path)
    for noun in arrays.keys() - {"image", "classes"}:
        arrays[noun] = _column(arrays[noun], len(content), key=keys[noun], path=path)
    class_names = [str(value) for value in arrays.get("classes", np.empty(0)).tolist()]
    numbers, classes = classify(arrays.get("label", np.full(len(content), -1)), class_names, source=source)
    clients = client_names(arrays["client"].tolist(), source=source) if "client" in arrays else None
    kept = {name: [column_text(value) for value in arrays[f"kept {name}"].tolist()] for name in options.columns.kept}
    return Table(source, kind, partial(item_reader, kind, content), numbers, classes, clients=clients, columns=kept)


def _opened(handle: IO[bytes], path: Path) -> np.lib.npyio.NpzFile:
    try:
        file = np.load(handle, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is not a whole npz file: {error}. Write it with np.savez.") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise InputError(f"{path} holds one array without a name. Use np.savez(path, images=..., labels=...).")
    return file


def _array(file: Mapping[str, NDArray[Any]], key: str, *, path: Path) -> NDArray[Any]:
    try:
        array = file[key]
    except ValueError as error:
        remedy = "Python objects in a file can run code when loaded. Save it as plain numbers or text."
        raise InputError(f"{path}: the array {key!r} cannot be read safely: {error} {remedy}") from error
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: the array {key!r} is damaged: {error}. Write the file again.") from error
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="))


def _npz_keys(known: Sequence[str], options: DatasetOptions, *, source: str) -> tuple[str | None, dict[str, str]]:
    """The split that is read and the array that holds each noun."""
    columns = options.columns
    for key in (columns.image, columns.label, columns.client, *columns.kept):
        if key is not None and key not in known:
            raise InputError(f"{source} has no array {key!r}; found {', '.join(known)}.")
    split = _npz_split(known, options.split, source=source) if columns.image is None else options.split
    found = {
        "image": columns.image or _first(known, CONTENTS, split),
        "label": columns.label or _first(known, LABELS, split),
        "client": columns.client or _first(known, CLIENTS, split),
        # Class names belong to the file as a whole, so they need no split.
        "classes": _first(known, CLASSES, split) or _first(known, CLASSES, None),
        **{f"kept {name}": name for name in columns.kept},
    }
    if found["image"] is None:
        there = f"an array named {', '.join(CONTENTS)}; found {', '.join(known) or 'none'}"
        raise InputError(f"{source} must have {there}. Name it with Columns(image=...).")
    return split, {noun: key for noun, key in found.items() if key is not None}


def _npz_split(known: Sequence[str], wanted: str | None, *, source: str) -> str | None:
    if wanted is None and _first(known, CONTENTS, None):
        return None
    words = "|".join(CONTENTS)
    pattern = re.compile(rf"(?:(.+)_(?:{words})|(?:{words})_(.+))", re.IGNORECASE)
    splits = sorted({match[1] or match[2] for key in known if (match := pattern.fullmatch(key))})
    if wanted is not None and not splits:
        raise NotFoundError(f"{source} has no split {wanted!r}, nor any other. Leave the split out.")
    return choose_split(wanted, splits, source=source) if splits else None


def _first(known: Sequence[str], words: Sequence[str], split: str | None) -> str | None:
    lower = {key.lower(): key for key in known}
    wanted = (
        words if split is None else [key.lower() for word in words for key in (f"{split}_{word}", f"{word}_{split}")]
    )
    return next((lower[key] for key in wanted if key in lower), None)


def _column(array: NDArray[Any], rows: int, *, key: str, path: Path) -> NDArray[Any]:
    if array.shape not in ((rows,), (rows, 1)):
        raise InputError(f"{path}: {key!r} must hold one value for each of {rows} rows; found shape {array.shape}.")
    return array.reshape(rows)


def _content_kind(array: NDArray[Any], *, key: str, path: Path) -> str:
    if array.ndim and array.size and (kind := array_kind(array[0])):
        return kind
    found = f"{array.dtype} of shape {array.shape}. Scale pictures to 0..255 and put the channels last."
    raise InputError(
        f"{path}: {key!r} must be N x H x W or N x H x W x 3 bytes (uint8), or N x d numbers; found {found}"
    )
