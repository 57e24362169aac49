"""Vectors that exist already, with the labels and columns that belong to them."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Indices, Texts, texts
from probekit.data.splits import (
    LABEL_NAMES,
    SPLIT_NAMES,
    DataOptions,
    Table,
    TableDataset,
    as_texts,
    check_columns,
    list_names,
    make_splits,
    usual_name,
)
from probekit.embeddings import SHOWN_ROWS, UNLABELED, EmbeddingSet, Skipped, non_finite_rows
from probekit.errors import InputError, NotFoundError
from probekit.extraction.vector_files import (
    Columns,
    arrow_columns,
    find_parts,
    is_readable,
    read_columns,
    read_folder,
)

VECTOR_NAMES = ("embedding", "embeddings", "vector", "vectors", "image_embedding", "features", "x")
OTHER_COLUMNS = (
    "Choose vectors with vector_column (--vector-column), columns of numbers with vector_columns "
    "(--vector-columns 'f*'), or encode pictures and texts with a backbone (-b)."
)
KEY_NAMES = ("id", "ids", "key", "keys", "image_path", "path", "filename", "url")

VectorSets = tuple[dict[str, EmbeddingSet], tuple[str, ...]]
"""Sets by split ("" where there is none), and sentences on what nobody asked for."""


@dataclass(frozen=True)
class VectorOptions(DataOptions):
    """How to read files of vectors; a column that is not named is recognized by its name.

    labels: a file of labels and further columns; in the order of the vectors, or joined by `join`.
    join: the column that both files have.
    vector_column: the column, array, dataset or tensor of the vectors (n, d).
    vector_columns: a pattern ("f*") of numeric columns, taken in the order of their names.
    on_error: "skip" leaves out rows with NaN or without a label; else they are refused.
    """

    labels: Path | None = None
    join: str | None = None
    vector_column: str | None = None
    vector_columns: str | None = None
    on_error: Literal["skip", "raise"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_column and self.target_columns:
            raise InputError("Pass label_column or target_columns; found both.")
        if self.vector_column and self.vector_columns:
            raise InputError("Pass vector_column or vector_columns; found both.")
        if self.join and self.labels is None:
            raise InputError(f"join (--join {self.join}) needs a file of labels (--labels FILE).")

    @property
    def text_columns(self) -> list[str]:
        columns = (self.join, self.client_column, self.group_column, self.split_column)
        return [*(name for name in columns if name), *self.keep_columns]


def is_vector_file(path: Path) -> bool:
    """Whether a file or folder may hold vectors; a table may as well hold pictures or texts."""
    return is_readable(path) or bool(find_parts(path, "*_emb", ".npy"))


def read_vectors(path: Path, options: VectorOptions | None = None) -> VectorSets:
    """The vectors of a file, or of a folder that clip-retrieval wrote."""
    options = options or VectorOptions()
    if path.is_dir():
        columns = read_folder(path, options.vector_column or "img_emb")
    else:
        columns = read_columns(path, "vectors", text_columns=options.text_columns)
    return _read(columns, options, source=str(path))


def read_vector_frame(frame: object, options: VectorOptions | None = None) -> VectorSets:
    """The vectors of a pandas DataFrame: a column of lists, or vector_columns."""
    import pyarrow as pa

    columns = arrow_columns(pa.Table.from_pandas(frame, preserve_index=False))
    return _read(columns, options or VectorOptions(), source="DataFrame")


def _read(columns: Columns, options: VectorOptions, *, source: str) -> VectorSets:
    names = _vector_names(columns, options, source)
    vectors = _as_matrix([columns[name] for name in names], names, options, source)
    columns = {name: column for name, column in columns.items() if name not in names}
    key = options.join or usual_name(columns, KEY_NAMES)
    keys = as_texts(columns[key]) if key in columns else texts(range(len(vectors)))
    label = options.label_column or usual_name(columns, LABEL_NAMES)
    notes: list[str] = []
    problems = {"NaN or infinity": non_finite_rows(vectors)}
    if options.labels is not None:
        more = read_columns(options.labels, "label", text_columns=options.text_columns)
        label = label or _label_column(more, columns, options)
        columns |= _join(columns, more, options, problems, notes)
    table = Table(vectors, "vector", columns, label)
    splits = make_splits(source, {"": table}, options, notes)
    datasets = cast("Mapping[str, TableDataset]", splits.by_name)
    problems["no label"] = np.concatenate([_unlabeled(part) for part in datasets.values()])
    reasons = _skip_reasons(problems, keys, options)
    sets = {
        name: _embedding_set(part, vectors, keys, reasons, source)
        for name, part in datasets.items()
    }
    if not any(map(len, sets.values())):
        raise InputError(f"{source} has no row that can be used; {len(reasons)} were left out.")
    split = usual_name(columns, SPLIT_NAMES)
    if split is None or list(sets) != [""]:
        return sets, splits.notes
    unused = (
        f"The column {split!r} is not used as the split: it holds other names than train, "
        f"validation and test. Use it with --split-column {split}."
    )
    return sets, (*splits.notes, unused)


def _embedding_set(
    dataset: TableDataset,
    vectors: NDArray[Any],
    keys: Texts,
    reasons: Mapping[int, str],
    source: str,
) -> EmbeddingSet:
    """The rows of a split that can be used; the others are listed as skipped."""
    skipped = [row for row in dataset.indices.tolist() if row in reasons]
    part = dataset.take(np.flatnonzero(~np.isin(dataset.indices, skipped)))
    rows = vectors if len(part) == len(vectors) else vectors[part.indices]
    return replace(
        EmbeddingSet.from_numpy(rows, source=source),
        columns={"key": keys[part.indices], **part.columns},
        labels=part.labels if part.class_names else None,
        class_names=part.class_names,
        targets=part.labels if part.target_names else None,
        target_names=part.target_names,
        skipped=tuple(Skipped(str(keys[row]), reasons[row]) for row in skipped),
    )


def _unlabeled(dataset: TableDataset) -> Indices:
    """The rows that have no label although the dataset has labels."""
    missing = (dataset.labels == UNLABELED) & bool(dataset.class_names)
    if dataset.target_names:
        missing = np.isnan(dataset.labels).all(axis=1)
    return np.asarray(dataset.indices[missing])


def _skip_reasons(
    problems: Mapping[str, Indices], keys: Texts, options: VectorOptions
) -> dict[int, str]:
    """Rows to leave out, by number; the first problem of a row is its reason."""
    reasons: dict[int, str] = {}
    for problem, rows in problems.items():
        if len(rows) and options.on_error != "skip":
            first = ", ".join(keys[rows[:SHOWN_ROWS]].tolist())
            raise InputError(
                f"{len(rows)} of {len(keys)} rows cannot be used: {problem} (first: {first}). "
                "Correct them, or leave them out with on_error='skip' (--on-error skip)."
            )
        reasons = dict.fromkeys(rows.tolist(), problem) | reasons
    return reasons


def _vector_names(columns: Columns, options: VectorOptions, source: str) -> list[str]:
    """The column of the vectors, or the columns of their numbers."""
    if options.vector_column:
        check_columns(columns, {options.vector_column: "--vector-column"}, source)
        return [options.vector_column]
    usual = {usual_name(columns, LABEL_NAMES), usual_name(columns, SPLIT_NAMES)}
    reserved = {*options.text_columns, *options.requested_columns, *usual}
    free = [name for name in columns if name not in reserved]
    if options.vector_columns:
        names = fnmatch.filter(free, options.vector_columns)
        if not names:
            raise NotFoundError(
                f"vector_columns (--vector-columns): no column of {source} matches "
                f"{options.vector_columns!r}. It has {list_names(columns)}."
            )
        return sorted(names, key=_natural_order)
    matrices = [name for name in free if columns[name].ndim > 1]
    typical = [name for name in matrices if name.lower() in VECTOR_NAMES]
    for candidates in (typical, matrices, list(columns)):
        if len(candidates) == 1:
            return candidates
    raise InputError(
        f"{source} must have one column of vectors; found {list_names(matrices or columns)}. "
        f"{OTHER_COLUMNS}"
    )


def _as_matrix(
    columns: list[NDArray[Any]], names: list[str], options: VectorOptions, source: str
) -> NDArray[Any]:
    dimensions = 1 if options.vector_columns else 2
    for name, column in zip(names, columns, strict=True):
        if column.ndim != dimensions or column.dtype.kind not in "fiub":
            raise InputError(
                f"Vectors must be numbers of shape (n, d); {name!r} in {source} is {column.dtype} "
                f"of shape {column.shape}. {OTHER_COLUMNS}"
            )
    vectors = columns[0] if dimensions == 2 else np.stack(columns, axis=1)
    return vectors.astype(vectors.dtype.newbyteorder("="), copy=False)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """f2 before f10, in whatever order a file has them."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _label_column(labels: Columns, columns: Columns, options: VectorOptions) -> str | None:
    """The label in a file of labels: by its name, or the only column beside the keys."""
    usual = usual_name(labels, LABEL_NAMES)
    if usual or options.target_columns:
        return usual
    taken = {*columns, *options.text_columns, *KEY_NAMES, *SPLIT_NAMES}
    names = [name for name in labels if name not in taken]
    if len(names) != 1:
        raise InputError(
            f"{options.labels} has no column called label. Choose one with label_column "
            f"(--label-column): {list_names(labels)}."
        )
    return names[0]


def _join(
    columns: Columns,
    labels: Columns,
    options: VectorOptions,
    problems: dict[str, Indices],
    notes: list[str],
) -> Columns:
    """The columns of a file of labels, a row for each vector; vectors without are a problem."""
    if options.join is None:
        _check_order(columns, labels, options)
        return labels
    check_columns(columns, {options.join: "--join"}, "The file of vectors")
    check_columns(labels, {options.join: "--join"}, options.labels)
    vector_keys = as_texts(columns[options.join]).tolist()
    label_keys = as_texts(labels[options.join]).tolist()
    rows = {key: row for row, key in enumerate(label_keys) if key}
    repeats = Counter(label_keys)
    positions = np.array([rows.get(key, -1) for key in vector_keys], np.int64)
    problems[f"their {options.join} is not in {options.labels}"] = np.flatnonzero(positions < 0)
    problems[f"{options.labels} repeats their {options.join}"] = np.flatnonzero(
        [repeats[key] > 1 for key in vector_keys]
    )
    unused = len(set(label_keys) - set(vector_keys))
    if unused:
        notes.append(f"{unused} rows of {options.labels} match no vector.")
    return {
        name: column[positions]
        for name, column in labels.items()
        if len(column) == len(label_keys) and name != options.join
    }


def _check_order(columns: Columns, labels: Columns, options: VectorOptions) -> None:
    """Refuse labels by position where a column that both files have is in another order."""
    for name in columns.keys() & labels.keys():
        is_key = name.lower() not in (*LABEL_NAMES, *SPLIT_NAMES)
        if is_key and not np.array_equal(as_texts(columns[name]), as_texts(labels[name])):
            raise InputError(
                f"{options.labels} and the vectors both have a column {name!r}, with other values "
                f"or in another order. Join by it: join={name!r} (--join {name})."
            )
