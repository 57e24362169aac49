"""Folders of vectors as arrays by name: of slides, splits, and as eva and clip-retrieval write."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import TEXT
from probekit.data.pictures import is_picture_name
from probekit.data.splits import as_texts, sort_splits, split_role
from probekit.embeddings import SHOWN_ROWS
from probekit.errors import InputError, NotFoundError
from probekit.extraction.vector_files import (
    Columns,
    natural_order,
    open_rows,
    read_columns,
    stack_rows,
    usual_vectors,
)
from probekit.registry import LISTED
from probekit.rows import LazyRows, Rows

MANIFEST = "manifest.csv"
"""eva's table of the files that it wrote: origin, embeddings (a path), target, split, ..."""
FILE_SUFFIXES = (".h5", ".hdf5", ".pt", ".pth")
LISTED_SUFFIXES = (*FILE_SUFFIXES, ".npy")
SLIDE = "slide_id"
SPLIT = "split"


def is_vector_folder(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if find_parts(folder, "*_emb", ".npy") or _vector_files(folder) or _split_files(folder):
        return True
    return _is_manifest(folder / MANIFEST)


def read_folder(folder: Path, array: str | None, *, names: str, text_columns: list[str]) -> Columns:
    """The vectors of a folder and what belongs to them.

    array: the array in each file, or clip-retrieval's kind (img_emb, text_emb).
    names: what the column of the files' names is called, where each file is a slide.
    """
    if find_parts(folder, "*_emb", ".npy"):
        return _read_clip_retrieval(folder, array or "img_emb")
    if _is_manifest(folder / MANIFEST):
        return read_columns(folder / MANIFEST, "vectors", text_columns=text_columns)
    split_files = _split_files(folder)
    if split_files:
        arrays = [read_columns(path, path.stem) for path in split_files]
        return {name: column for columns in arrays for name, column in columns.items()}
    files = _vector_files(folder)
    if not files:
        raise NotFoundError(
            f"{folder} must hold h5 or pt files of vectors, {MANIFEST} of eva, or img_emb_0.npy of "
            "clip-retrieval; found none of them. Give another folder, or a file."
        )
    parts = {str(path): open_rows(path, array) for path in files}
    slides = np.array([path.stem for path in files], TEXT)
    if not any(map(len, parts.values())):
        raise InputError(f"The {len(files)} files in {folder} hold no vectors. Encode them again.")
    return {
        "features": stack_rows(parts),
        names: np.repeat(slides, [len(rows) for rows in parts.values()]),
    }


def _vector_files(folder: Path) -> list[Path]:
    """A file of vectors for each slide, as TRIDENT and CLAM write them; none beside pictures."""
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if any(path.is_dir() or is_picture_name(path.name) for path in paths):
        return []
    files = [path for path in paths if path.suffix.lower() in FILE_SUFFIXES]
    return sorted(files, key=lambda path: natural_order(path.name))


def _split_files(folder: Path) -> list[Path]:
    """X_train.npy, y_train.npy, X_test.npy, ...: every file of arrays is one of a split."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in LISTED_SUFFIXES)
    return paths if paths and all(_split_and_name(path.stem) for path in paths) else []


def _is_manifest(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(newline="", errors="replace") as file:
        return bool(usual_vectors(next(csv.reader(file), [])))


def find_parts(folder: Path, kind: str, suffix: str) -> dict[int, Path]:
    """clip-retrieval's files of a kind by number: img_emb_0.npy or img_emb/img_emb_0.npy, ..."""
    paths = [*folder.glob(f"{kind}_*{suffix}"), *folder.glob(f"{kind}/{kind}_*{suffix}")]
    numbers = {path: path.stem.rpartition("_")[2] for path in paths}
    return {int(number): path for path, number in numbers.items() if number.isdecimal()}


def _read_clip_retrieval(folder: Path, kind: str) -> Columns:
    """The vectors of a kind and the metadata beside them, matched by number."""
    vectors = find_parts(folder, kind, ".npy")
    metadata = find_parts(folder, "metadata", ".parquet")
    if not vectors or vectors.keys() != metadata.keys():
        raise NotFoundError(
            f"{folder} must hold {kind}_0.npy, ... and metadata_0.parquet, ... of equal numbers, "
            f"as clip-retrieval writes them; found {len(vectors)} and {len(metadata)}. Copy it "
            "again, or choose img_emb or text_emb with vector_column (--vector-column)."
        )
    parts = {}
    tables = []
    for number, path in sorted(vectors.items()):
        rows = open_rows(path, None)
        table = read_columns(metadata[number], kind)
        _row_count({**table, kind: rows}, f"Part {number} of {folder}")
        parts[str(path)] = rows
        tables.append(table)
    columns: Columns = {
        name: np.concatenate([np.asarray(table[name]) for table in tables])
        for name in tables[0]
        if all(name in table for table in tables)
    }
    return {**columns, kind: stack_rows(parts)}


def read_listed_files(columns: Columns, column: str, folder: Path) -> Columns:
    """A table that names files of vectors: a row for each vector in them."""
    paths = [folder / name for name in as_texts(np.asarray(columns[column])).tolist()]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        listed = ", ".join(map(str, missing[:SHOWN_ROWS]))
        raise NotFoundError(
            f"{len(missing)} of {len(paths)} files of the column {column!r} are missing (first: "
            f"{listed}). Its paths are looked for from {folder}; copy the files there."
        )
    parts = {str(path): open_rows(path, None) for path in dict.fromkeys(paths)}
    if len(parts) < len(paths):
        raise InputError(
            f"The column {column!r} must name each file once; {len(paths) - len(parts)} of "
            f"{len(paths)} rows repeat one. Remove them."
        )
    counts = [len(rows) for rows in parts.values()]
    others: Columns = {
        name: np.repeat(np.asarray(values), counts, axis=0)
        for name, values in columns.items()
        if name != column and len(values) == len(paths)
    }
    return {**others, column: stack_rows(parts)}


def names_files(columns: Columns, column: str | None) -> bool:
    """Whether a column holds paths of files of vectors, as eva's `embeddings` does."""
    values = columns.get(column or "")
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "OUT":
        return False
    return all(str(value).lower().endswith(LISTED_SUFFIXES) for value in values.tolist())


def join_splits(columns: Columns, array: str | None, source: str) -> Columns:
    """X_train, y_train, X_test, y_test (in any such spelling) as X, y and the column `split`.

    Arrays without a split in their names, or with vectors of no split, stay as they are.
    """
    named = {name: _split_and_name(name) for name in columns}
    by_split: dict[str, Columns] = {}
    for name, parts in named.items():
        if parts is not None:
            by_split.setdefault(parts[0], {})[parts[1]] = columns[name]
    is_plain = array in columns or any(
        column.ndim == 2 for name, column in columns.items() if named[name] is None
    )
    if is_plain or len(by_split) < 2:
        return columns
    tables = {split: by_split[split] for split in sort_splits(by_split)}
    first, *others = tables.values()
    if any(set(table) != set(first) for table in others):
        listed = ", ".join(list(columns)[:LISTED])
        raise InputError(
            f"{source}: every split must have the same arrays; found {listed}. Add what is "
            "missing, or choose one array with vector_column (--vector-column)."
        )
    counts = [_row_count(table, f"{split} of {source}") for split, table in tables.items()]
    joined: Columns = {
        name: _concatenate({f"{split} {name}": table[name] for split, table in tables.items()})
        for name in first
    }
    return {**joined, SPLIT: np.repeat(np.array(list(tables), TEXT), counts)}


def _split_and_name(name: str) -> tuple[str, str] | None:
    """("train", "X") of X_train, train_X, train/X or trainX; None without a split."""
    for pattern, split, rest in ((r"(.+?)[_./-](.+)", 1, 2), (r"(.+)[_./-](.+?)", 2, 1)):
        match = re.fullmatch(pattern, name)
        if match and split_role(match[split]):
            return match[split], match[rest]
    return None


def _row_count(table: Mapping[str, Rows], title: str) -> int:
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"{title} must have equally many rows in all arrays; found {lengths}. Save it again."
        )
    return next(iter(lengths.values()))


def _concatenate(parts: dict[str, NDArray[Any] | LazyRows]) -> NDArray[Any] | LazyRows:
    if all(part.ndim == 2 for part in parts.values()):
        return stack_rows(parts)
    return np.concatenate([np.asarray(part) for part in parts.values()])
