"""Vectors that exist already, with the labels and columns that belong to them."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Indices, Texts, texts
from probekit.data.splits import (
    CLIENT_NAMES,
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
from probekit.embeddings import (
    SHOWN_ROWS,
    UNLABELED,
    EmbeddingSet,
    Encoding,
    Skipped,
    as_matrix,
    as_numpy,
    non_finite_rows,
    vector_ids,
)
from probekit.errors import InputError, NotFoundError
from probekit.extraction import vector_files, vector_folders
from probekit.extraction.pooling import POOLS, Pool, pool_rows
from probekit.extraction.vector_files import Columns, read_columns
from probekit.extraction.vector_folders import SLIDE, read_folder
from probekit.rows import LazyRows, Rows, pick_rows

OTHER_COLUMNS = (
    "Choose vectors with vector_column (--vector-column), columns of numbers with vector_columns "
    "(--vector-columns 'f*'), or encode pictures and texts with a backbone (-b)."
)
KEY_NAMES = ("id", "ids", "key", "keys", "image_path", "path", "filename", "url", "origin")

VectorSets = tuple[dict[str, EmbeddingSet], tuple[str, ...]]
"""Sets by split ("" where there is none), and sentences on what nobody asked for."""


@dataclass(frozen=True)
class VectorOptions(DataOptions):
    """How to read files of vectors; a column that is not named is recognized by its name.

    labels: a file of labels and further columns; in the order of the vectors, or joined by `join`.
    join: the column that both files have.
    vector_column: the column, array, dataset (of h5 a path inside) or tensor of the vectors (n, d).
    vector_columns: a pattern ("f*") of numeric columns, taken in the order of their names.
    pool: "mean" or "max" of the rows that have one value in the column `by` (by default `join`).
    on_error: "skip" leaves out rows with NaN or without a label; else they are refused.
    """

    labels: Path | None = None
    join: str | None = None
    vector_column: str | None = None
    vector_columns: str | None = None
    pool: Pool | None = None
    by: str | None = None
    on_error: Literal["skip", "raise"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_column and self.target_columns:
            raise InputError("Pass label_column or target_columns; found both.")
        if self.vector_column and self.vector_columns:
            raise InputError("Pass vector_column or vector_columns; found both.")
        if self.join and self.labels is None:
            raise InputError(f"join (--join {self.join}) needs a file of labels (--labels FILE).")
        if self.pool is not None and self.pool not in POOLS:
            raise InputError(
                f"pool (--pool) must be one of {', '.join(POOLS)}; found {self.pool!r}."
            )
        if self.by and self.pool is None:
            raise InputError(f"by (--by {self.by}) needs pool (--pool mean, --pool max).")

    @property
    def text_columns(self) -> list[str]:
        columns = (
            *(self.join, self.by, self.client_column, self.group_column, self.split_column),
            *self.keep_columns,
        )
        return [name for name in columns if name]


def is_vector_file(path: Path) -> bool:
    """Whether a file or folder may hold vectors; a table may as well hold pictures or texts."""
    return vector_files.is_readable(path) or vector_folders.is_vector_folder(path)


def read_vectors(path: Path, options: VectorOptions | None = None) -> VectorSets:
    """The vectors of a file or folder, by split."""
    options = options or VectorOptions()
    if not path.is_dir():
        columns = read_columns(path, "vectors", text_columns=options.text_columns)
        return _read(columns, options, source=str(path), folder=path.parent)
    names = options.by or options.join or SLIDE
    texts = options.text_columns
    columns = read_folder(path, options.vector_column, names=names, text_columns=texts)
    return _read(columns, options, source=str(path), folder=path)


def read_arrays(arrays: Mapping[str, object], options: VectorOptions | None = None) -> VectorSets:
    """Arrays in memory by name, as npz files have them: X and y, or X_train, y_train, ..."""
    columns: Columns = {name: as_numpy(array) for name, array in arrays.items()}
    return _read(columns, options or VectorOptions(), source="arrays")


def read_vector_frame(frame: object, options: VectorOptions | None = None) -> VectorSets:
    """The vectors of a pandas DataFrame: a column of lists, or vector_columns."""
    import pyarrow as pa

    columns = vector_files.arrow_columns(pa.Table.from_pandas(frame, preserve_index=False))
    return _read(columns, options or VectorOptions(), source="DataFrame")


def _read(
    columns: Columns, options: VectorOptions, *, source: str, folder: Path | None = None
) -> VectorSets:
    joined = vector_folders.join_splits(columns, options.vector_column, source)
    if joined is not columns:
        columns = joined
        options = replace(options, split_column=options.split_column or vector_folders.SPLIT)
    names = _vector_names(columns, options, source)
    if folder is not None and vector_folders.names_files(columns, names[0]):
        columns = vector_folders.read_listed_files(columns, names[0], folder)
    vectors = _as_matrix([columns[name] for name in names], names, options, source)
    columns = {name: column for name, column in columns.items() if name not in names}
    bag_column = _bag_column(columns, options, source)
    labels: Columns = {}
    if options.labels is not None:
        labels = read_columns(options.labels, "label", text_columns=options.text_columns)
    table = _Joined(vectors, columns, _keys(columns, len(vectors), options))
    if labels and (bag_column is None or bag_column != options.join):
        table = _join(table, labels, options)
        labels = {}
    skipped: list[Skipped] = []
    if bag_column is not None:
        table, skipped = _pool(table, bag_column, labels, options, source)
    else:
        table = _checked(table, options)
    if labels:
        table = _join(table, labels, options)
    return _sets(table, skipped, options, source)


def _checked(table: _Joined, options: VectorOptions) -> _Joined:
    """With rows that hold NaN as a problem, and a note on tiles that are not kept together."""
    problems = {**table.problems, "NaN or infinity": non_finite_rows(table.vectors)}
    slides = table.columns.get(SLIDE)
    notes = table.notes
    if slides is not None and options.group_column is None:
        slide_count = len(np.unique(np.asarray(slides)))
        if slide_count < len(table.vectors):
            notes = (
                *notes,
                f"{len(table.vectors):,} rows are of {slide_count:,} values of {SLIDE!r}: keep "
                f"those of one together with --group {SLIDE}, or pool them with --pool mean.",
            )
    return replace(table, problems=problems, notes=notes)


@dataclass(frozen=True, eq=False)
class _Joined:
    """Vectors with their columns.

    label: the column of a file of labels that is taken for the label.
    problems: numbers of rows that cannot be used, by what is wrong with them.
    """

    vectors: Rows
    columns: Columns
    keys: Texts
    label: str | None = None
    problems: dict[str, Indices] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _sets(
    table: _Joined, skipped: list[Skipped], options: VectorOptions, source: str
) -> VectorSets:
    """The rows of each split that can be used; the others are listed as skipped."""
    vectors = table.vectors
    label = options.label_column or usual_name(table.columns, LABEL_NAMES) or table.label
    rows = Table(vectors, "vector", table.columns, label)
    splits = make_splits(source, {"": rows}, options, table.notes)
    datasets = cast("Mapping[str, TableDataset]", splits.by_name)
    unlabeled = np.concatenate([_unlabeled(part) for part in datasets.values()])
    problems = {**table.problems, "no label": unlabeled}
    reasons = _skip_reasons(problems, table.keys, options)
    sets = {
        name: _embedding_set(part, vectors, table.keys, reasons, source)
        for name, part in datasets.items()
    }
    if not any(map(len, sets.values())):
        raise InputError(f"{source} has no row that can be used; {len(reasons)} were left out.")
    if skipped:
        name, first = next(iter(sets.items()))
        sets[name] = replace(first, skipped=(*skipped, *first.skipped))
    split = usual_name(table.columns, SPLIT_NAMES)
    if split is None or list(sets) != [""]:
        return sets, splits.notes
    unused = (
        f"The column {split!r} is not used as the split: it holds other names than train, "
        f"validation and test. Use it with --split-column {split}."
    )
    return sets, (*splits.notes, unused)


def _embedding_set(
    dataset: TableDataset, vectors: Rows, keys: Texts, reasons: Mapping[int, str], source: str
) -> EmbeddingSet:
    skipped = [row for row in dataset.indices.tolist() if row in reasons]
    part = dataset.take(np.flatnonzero(~np.isin(dataset.indices, skipped)))
    rows = vectors if len(part) == len(vectors) else pick_rows(vectors, part.indices)
    return EmbeddingSet(
        rows=rows,
        ids=vector_ids(rows),
        encoding=Encoding.of_vectors(source, rows.shape[1], rows.dtype.name),
        columns={"key": keys[part.indices], **part.columns},
        labels=part.labels if part.class_names else None,
        class_names=part.class_names,
        targets=part.labels if part.target_names else None,
        target_names=part.target_names,
        source=source,
        skipped=tuple(Skipped(str(keys[row]), reasons[row]) for row in skipped),
    )


def _keys(columns: Columns, count: int, options: VectorOptions) -> Texts:
    """What rows are called: by a column of keys, or by number."""
    name = options.join if options.join in columns else usual_name(columns, KEY_NAMES)
    values = columns.get(name or "")
    if values is None or len(values) != count:
        return texts(range(count))
    return _as_texts(values)


def _bag_column(columns: Columns, options: VectorOptions, source: str) -> str | None:
    """The column of which each value is a bag of rows to be pooled."""
    if options.pool is None:
        return None
    name = options.by or options.join or (SLIDE if SLIDE in columns else None)
    if name is None:
        raise InputError(
            f"pool (--pool {options.pool}) needs the column whose values are bags: by (--by "
            f"COLUMN). {source} has {list_names(columns)}."
        )
    if options.labels is None:
        check_columns(columns, {name: "--by"}, source)
    return name


def _pool(
    table: _Joined, by: str, labels: Columns, options: VectorOptions, source: str
) -> tuple[_Joined, list[Skipped]]:
    """A row for each bag, and the rows that are in none. labels: will be joined to bags."""
    assert options.pool is not None
    usual = {
        table.label or usual_name(table.columns, LABEL_NAMES): "--label-column",
        usual_name(table.columns, SPLIT_NAMES): "--split-column",
        usual_name(table.columns, CLIENT_NAMES): "--client-column",
    }
    required = {name: flag for name, flag in usual.items() if name} | options.requested_columns
    columns = {
        name: column for name, column in table.columns.items() if name == by or name not in labels
    }
    reasons = _skip_reasons(table.problems, table.keys, options)
    bags = pool_rows(
        table.vectors,
        columns,
        pool=options.pool,
        by=by,
        required=required,
        without=np.array(sorted(reasons), np.int64),
        source=source,
    )
    reasons |= _skip_reasons({"NaN or infinity": bags.not_finite}, table.keys, options)
    skipped = [Skipped(str(table.keys[row]), reason) for row, reason in sorted(reasons.items())]
    note = f"{len(table.vectors):,} rows were pooled into {len(bags.names):,} by {by!r}."
    pooled = replace(
        table,
        vectors=bags.vectors,
        columns={**bags.columns},
        keys=bags.names,
        problems={},
        notes=(*table.notes, note),
    )
    return pooled, skipped


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
        name = options.vector_column.strip("/")
        check_columns(columns, {name: "--vector-column"}, source)
        return [name]
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
        return sorted(names, key=vector_files.natural_order)
    matrices = [name for name in free if columns[name].ndim > 1]
    typical = vector_files.usual_vectors(matrices) or [
        name
        for name in vector_files.usual_vectors(free)
        if vector_folders.names_files(columns, name)
    ]
    for candidates in (typical, matrices, list(columns)):
        if len(candidates) == 1:
            return candidates
    raise InputError(
        f"{source} must have one column of vectors; found {list_names(matrices or columns)}. "
        f"{OTHER_COLUMNS}"
    )


def _as_matrix(
    columns: list[NDArray[Any] | LazyRows], names: list[str], options: VectorOptions, source: str
) -> Rows:
    dimensions = 1 if options.vector_columns else 2
    for name, column in zip(names, columns, strict=True):
        if column.ndim != dimensions or column.dtype.kind not in "fiub":
            raise InputError(
                f"Vectors must be numbers of shape (n, d); {name!r} in {source} is {column.dtype} "
                f"of shape {column.shape}. {OTHER_COLUMNS}"
            )
    vectors = columns[0] if dimensions == 2 else np.stack(columns, axis=1)
    if isinstance(vectors, LazyRows):
        return as_matrix(vectors)
    return as_matrix(vectors.astype(vectors.dtype.newbyteorder("="), copy=False))


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


def _join(table: _Joined, labels: Columns, options: VectorOptions) -> _Joined:
    """With the columns of a file of labels; vectors that are not in it are a problem."""
    columns = table.columns
    usual = options.label_column or usual_name(columns, LABEL_NAMES)
    label = usual or _label_column(labels, columns, options)
    if options.join is None:
        _check_order(columns, labels, options)
        count = len(labels.get(label or "", next(iter(labels.values()))))
        if count != len(table.vectors):
            raise InputError(
                f"{options.labels} must have a row for each of the {len(table.vectors)} vectors; "
                f"found {count}. Join by a column of both (--join), or save the vectors and "
                "labels of each split in one file (np.savez)."
            )
        return replace(table, columns=columns | labels, label=label)
    check_columns(columns, {options.join: "--join"}, "The file of vectors")
    check_columns(labels, {options.join: "--join"}, options.labels)
    vector_keys = _as_texts(columns[options.join]).tolist()
    label_keys = _as_texts(labels[options.join]).tolist()
    rows = {key: row for row, key in enumerate(label_keys) if key}
    repeats = Counter(label_keys)
    positions = np.array([rows.get(key, -1) for key in vector_keys], np.int64)
    shown = ", ".join(list(rows)[:SHOWN_ROWS])
    absent = f"their {options.join} is not in {options.labels} (which has {shown}, ...)"
    problems = {
        absent: np.flatnonzero(positions < 0),
        f"{options.labels} repeats their {options.join}": np.flatnonzero(
            [repeats[key] > 1 for key in vector_keys]
        ),
    }
    notes = table.notes
    unused = len(set(label_keys) - set(vector_keys))
    if unused:
        notes = (*notes, f"{unused} rows of {options.labels} match no vector.")
    joined: Columns = {
        name: np.asarray(column)[positions]
        for name, column in labels.items()
        if len(column) == len(label_keys) and name != options.join
    }
    return replace(
        table,
        columns=columns | joined,
        label=label,
        problems={**table.problems, **problems},
        notes=notes,
    )


def _check_order(columns: Columns, labels: Columns, options: VectorOptions) -> None:
    """Refuse labels by position where a column that both files have is in another order."""
    for name in columns.keys() & labels.keys():
        is_key = name.lower() not in (*LABEL_NAMES, *SPLIT_NAMES)
        if is_key and not np.array_equal(_as_texts(columns[name]), _as_texts(labels[name])):
            raise InputError(
                f"{options.labels} and the vectors both have a column {name!r}, with other values "
                f"or in another order. Join by it: join={name!r} (--join {name})."
            )


def _as_texts(column: NDArray[Any] | LazyRows) -> Texts:
    return as_texts(np.asarray(column))
