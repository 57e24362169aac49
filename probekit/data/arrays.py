"""Arrays in memory, in npz files and in the idx files that MNIST came in; lists; own datasets."""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from probekit.data import tables
from probekit.data.dataset import Dataset
from probekit.data.pictures import content_kind, describe
from probekit.data.splits import (
    CLIENT_NAMES,
    LABEL_NAMES,
    DataOptions,
    Splits,
    Table,
    check_columns,
    finish_splits,
    list_names,
    make_splits,
    usual_name,
)
from probekit.embeddings import as_numpy
from probekit.errors import InputError, NotFoundError
from probekit.registry import import_object

IDX_BYTES = 0x800
"""How idx files of unsigned bytes begin; the number of their dimensions is added."""
CONTENT_NAMES = ("images", "image", "x", "data", "inputs", "pixels", "texts", "text")
CLASS_LIST_NAMES = ("class_names", "label_names")
WRITE_AGAIN = (
    "Write it again, without Python objects, which would need pickle: "
    "np.savez(FILE, x=rows, y=labels.astype(str))."
)


def load(name: str, options: DataOptions) -> Splits:
    """What `py:module:factory` gives when it is called without arguments (or holds)."""
    value = import_object(name)
    if callable(value) and not is_dataset(value):
        value = value()
    if isinstance(value, str | Path):
        from probekit.data import read_dataset

        return read_dataset(value, options)
    return wrap(value, f"py:{name}", options)


def is_dataset(value: object) -> TypeGuard[Dataset]:
    names = ("name", "kind", "class_names", "target_names", "__len__", "__getitem__")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def wrap(value: Any, source: str, options: DataOptions) -> Splits:
    """The splits of anything in memory; a mapping has one for each key, or is one of columns."""
    if isinstance(value, Splits):
        return finish_splits(source, value.by_name, options, value.notes)
    is_mapping = isinstance(value, Mapping) and bool(value)
    parts = {str(k): part for k, part in value.items()} if is_mapping else {"": value}
    if all(is_dataset(part) for part in parts.values()):
        check_columns((), options.requested_columns, source)
        return finish_splits(source, parts, options)
    if tables.has_columns(parts):
        return tables.wrap({"": value}, source, options)
    if any(tables.is_table(part) for part in parts.values()):
        return tables.wrap(parts, source, options)
    by_split = {name: _read_rows(part, source) for name, part in parts.items()}
    return make_splits(source, by_split, options)


def _read_rows(value: Any, source: str) -> Table:
    """X, (X, y), or a list of contents or of (content, label) pairs."""
    labels = None
    is_pair = isinstance(value, tuple) and len(value) == 2
    if is_pair and not isinstance(value[0], str | bytes | Path | Image.Image):
        value, labels = value
    rows: Any = as_numpy(value) if hasattr(value, "dtype") else value
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        raise InputError(
            "A dataset must be a path, a name such as packaged:digits, arrays (X, y), a table or "
            f"a list of rows; found {describe(value)}."
        )
    if not len(rows):
        raise InputError(f"{source} has no rows. Pass one or more.")
    first = rows[0]
    class_names: tuple[str, ...] = ()
    if labels is None and _are_pairs(rows, first):
        first = first[0]
        class_names = tuple(str(name) for name in getattr(rows, "classes", ()))
        labels = _pair_labels(rows)
        rows = [content for content, _ in rows] if isinstance(rows, list) else PairContents(rows)
    kind = content_kind(first)
    if kind is None:
        raise InputError(
            f"{source}: a row must be a picture, a text or an array; found {describe(first)}."
        )
    if labels is None:
        return Table(rows, kind)
    array = decoded(as_numpy(labels))
    values = labels if isinstance(labels, list) and array.dtype.kind == "U" else array
    return Table(rows, kind, {"target": values}, "target", class_names)


def decoded(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


@dataclass(frozen=True, eq=False)
class PairContents:
    """The contents of (content, label) rows that are made on access, as torchvision's are."""

    pairs: Sequence[tuple[Any, Any]]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> Any:
        return self.pairs[row][0]


def _are_pairs(rows: Sequence[Any], first: Any) -> bool:
    """Whether rows are (content, label); of rows that are made on access the first tells."""
    shown = rows if isinstance(rows, list) else [first]
    return all(isinstance(row, tuple) and len(row) == 2 for row in shown)


def _pair_labels(rows: Any) -> Any:
    """Labels of (content, label) rows; torchvision's `targets` spare decoding the contents."""
    targets = getattr(rows, "targets", None)
    is_plain = getattr(rows, "target_transform", None) is None
    if targets is not None and is_plain and len(targets) == len(rows):
        return targets
    return [rows[row][1] for row in range(len(rows))]


def read_npz(path: Path, source: str, options: DataOptions) -> Splits:
    """Arrays that np.savez wrote, by name: images or x, labels or y, client_ids, class_names.

    A split stands before or after them: train_images, x_test.
    """
    by_split = {}
    for split, arrays in _npz_splits(load_npz(path)).items():
        check_columns(arrays, options.requested_columns, source)
        content = options.image_column or options.text_column or usual_name(arrays, CONTENT_NAMES)
        if content is None:
            raise InputError(
                f"{source} must have an array named {', '.join(CONTENT_NAMES[:4])}; found "
                f"{list_names(arrays)}. Name it with --image-column or --text-column."
            )
        label = options.label_column or usual_name(arrays, LABEL_NAMES)
        class_list = usual_name(arrays, CLASS_LIST_NAMES)
        names = tuple(map(str, arrays[class_list].tolist())) if class_list else ()
        rows = _read_rows(arrays[content], f"{source}, {content}")
        by_split[split] = replace(rows, columns=arrays, label=label, class_names=names)
    return make_splits(source, by_split, options)


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:  # np.load would leave a broken file open
            return {key: decoded(array) for key, array in np.load(file).items()}
    except (ValueError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}). {WRITE_AGAIN}") from error


def _npz_splits(arrays: dict[str, NDArray[Any]]) -> dict[str, dict[str, NDArray[Any]]]:
    """The arrays of each split by their names without it; those of no split belong to all."""
    words = "|".join((*CONTENT_NAMES, *LABEL_NAMES, *CLIENT_NAMES))
    pattern = re.compile(rf"(?:(.+)_({words})|({words})_(.+))", re.IGNORECASE)
    matches = {key: match for key in arrays if (match := pattern.fullmatch(key))}
    if not matches or usual_name(arrays, CONTENT_NAMES):
        return {"": arrays}
    common = {key: array for key, array in arrays.items() if key not in matches}
    by_split: dict[str, dict[str, NDArray[Any]]] = {}
    for key, match in matches.items():
        split = by_split.setdefault(match[1] or match[4], dict(common))
        split[match[2] or match[3]] = arrays[key]
    return by_split


def read_idx_splits(files: Mapping[str, Path], source: str, options: DataOptions) -> Splits:
    """The splits of idx files: their images, with the labels that lie beside them."""
    by_split = {}
    for split, path in files.items():
        images = read_idx(path, dimensions=3)
        labels = read_idx(_labels_beside(path), dimensions=1)
        by_split[split] = Table(images, "image", {"label": labels}, "label")
    return make_splits(source, by_split, options)


def _labels_beside(images: Path) -> Path:
    name = images.name.replace("images", "labels").replace("idx3", "idx1").removesuffix(".gz")
    for candidate in (name, f"{name}.gz"):
        if images.with_name(candidate).is_file():
            return images.with_name(candidate)
    raise NotFoundError(
        f"Expected the labels of {images} beside it: {name} or {name}.gz. Put them there."
    )


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of one idx file, plain or gzipped, as an array."""
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        magic, *shape = np.frombuffer(content, ">u4", 1 + dimensions).tolist()
        if magic != IDX_BYTES + dimensions:
            raise ValueError(f"it begins with {magic:08x}")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} must be an idx file of bytes, of {dimensions} dimensions: {error}. Fetch it "
            "again."
        ) from error
