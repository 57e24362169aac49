"""Vectors that exist already, read from files: .npy, .npz, .parquet, or a folder as clip-retrieval writes it."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.values import EmbeddingSet
from probekit.values.groups import PROCESS_KEY, group_numbers

VECTORS = ("embedding", "embeddings", "vector", "vectors", "image_embedding", "x")
LABELS, IDS = ("label", "labels", "y", "class", "target"), ("id", "ids", "key", "keys", "image_path", "path", "url")
PARTITION = re.compile(r"^(?P<kind>[A-Za-z_]+?)_(?P<number>\d+)$")
EMPTY = ("", "na", "nan", "none", "null")
"""What a cell of a table says where a target is not known."""
Column = NDArray[Any] | list[Any]


@dataclass(frozen=True)
class ImportOptions:
    """What to take from the files; None: found by the usual names.

    labels: a file of labels (.npy, .csv, .parquet, or text with one in each line).
    join: the column that both the vectors and the labels have; left out, both are in the same order.
    vectors, label, ids, client, group: names of columns or arrays.
    targets: in place of the label several columns of 0 and 1, or of real numbers; an empty cell is not known.
    source: what the vectors are of; sets of one source are taken to be encoded alike.
    """

    labels: Path | None = None
    join: str | None = None
    vectors: str | None = None
    label: str | None = None
    ids: str | None = None
    client: str | None = None
    group: str | None = None
    source: str = ""
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.targets and self.label is not None:
            raise InputError("`label` is one column of classes, `targets` are real columns. Give one of the two.")


@dataclass(frozen=True, eq=False)
class _Table:
    """A matrix and the columns beside it."""

    name: str
    matrix: NDArray[Any]
    columns: dict[str, Column] = field(default_factory=dict)

    def column(self, wanted: str | None, usual: Sequence[str] = ()) -> Column | None:
        """A column by its name, or by the usual ones."""
        if wanted is not None:
            if wanted not in self.columns:
                known = (
                    f"{', '.join(self.columns)}. Name one of these"
                    if self.columns
                    else "none. Give a file with columns"
                )
                raise NotFoundError(f"{self.name} has no column {wanted!r}; it has {known}.")
            return self.columns[wanted]
        return next((column for name, column in self.columns.items() if name.lower() in usual), None)

    def labels(self, how: ImportOptions) -> Column | None:
        """The label of every row, or its targets as a matrix."""
        if not how.targets:
            return self.column(how.label, LABELS)
        return np.stack([_real(name, _listed(self.column(name)), self.name) for name in how.targets], axis=1)


def read_vectors(
    source: str | Path, options: ImportOptions | None = None, *, group_key: bytes = PROCESS_KEY
) -> EmbeddingSet:
    """The set of the vectors in a file or folder, with its labels, in the numbers they are stored in.

    group_key: under which groups are numbered: that of the cache where the set goes.
    """
    how, place = options or ImportOptions(), Path(source)
    if not place.exists():
        raise NotFoundError(f"There is no file or folder {place}. Give the .npy, .npz, .parquet or folder of vectors.")
    for path in (place, *([how.labels] if how.labels else [])):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path} is a pipe or a device, which is read once only. Write it to a file first.")
    table = _read(place, how)
    if table.matrix.ndim != 2:
        raise InputError(
            f"{table.name} holds an array of shape {table.matrix.shape}; vectors are a matrix, a row each."
        )
    labels = _labels(table, how)
    ids = table.column(how.ids if how.ids is not None else how.join, IDS)
    norms = np.linalg.norm(np.asarray(table.matrix[:4096], np.float64), axis=1)
    unit = bool(len(norms)) and bool(np.allclose(norms, 1.0, atol=1e-2))
    origin = f"{how.source or place.stem}, {'of norm 1' if unit else 'as they were'}"
    found = EmbeddingSet.from_numpy(
        table.matrix,
        None if labels is None else _listed(labels),
        ids=None if ids is None else _listed(ids),
        clients=None if how.client is None else _listed(table.column(how.client)),
        source=origin,
        class_names=how.targets,
    )
    if how.group is None:
        return found
    groups = group_numbers(_listed(table.column(how.group)), found.ids, key=group_key)
    return replace(found, groups=groups, group_column=how.group)


def _read(path: Path, how: ImportOptions) -> _Table:
    if path.is_dir():
        return _read_folder(path, how)
    try:
        if path.suffix == ".npy":
            return _Table(path.name, np.load(path, mmap_mode="r", allow_pickle=False))
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            return _chosen(path.name, found, how)
        if path.suffix == ".parquet":
            return _chosen(path.name, _parquet(path), how)
    except (ValueError, EOFError, OSError) as error:
        raise _unreadable(path, error) from error
    raise InputError(f"Vectors come as .npy, .npz, .parquet or a folder of .npy files; found {path.name}.")


def _unreadable(path: Path, error: Exception) -> CorruptError:
    why = "it is damaged, no array at all, or one of Python objects" if "pickle" in str(error) else str(error)
    return CorruptError(f"{path} cannot be read: {why.rstrip('.')}. Write it again, as numbers.")


def _chosen(name: str, columns: dict[str, Column], how: ImportOptions) -> _Table:
    """The matrix among some arrays: the one that was named, or has a usual name, or is the only one."""
    wide = [key for key, column in columns.items() if isinstance(column, np.ndarray) and column.ndim == 2]
    key = how.vectors or next((one for one in wide if one.lower() in VECTORS), wide[0] if len(wide) == 1 else None)
    if key is None or key not in columns:
        known = ", ".join(columns) or "nothing"
        raise NotFoundError(f"{name} holds {known}: say with `vectors` which of them are the vectors.")
    rest = {one: column for one, column in columns.items() if one != key}
    return _Table(name, np.asarray(columns[key]), rest)


def _read_folder(folder: Path, how: ImportOptions) -> _Table:
    """Partitions img_emb_0.npy, ... with metadata_0.parquet, ... beside them or in folders of their own."""
    arrays, notes = _numbered(folder, ".npy", how.vectors), _numbered(folder, ".parquet", None)
    if not arrays:
        raise NotFoundError(
            f"{folder} holds no numbered .npy files such as img_emb/img_emb_0.npy. Name another folder."
        )
    if sorted(arrays) != list(range(len(arrays))):
        missing = min(set(range(max(arrays) + 1)) - set(arrays))
        raise InputError(f"Partition {missing} of the vectors in {folder} is missing. Copy the folder again.")
    if notes and sorted(notes) != sorted(arrays):
        odd = min(set(notes) ^ set(arrays))
        raise InputError(f"Partition {odd} in {folder} has vectors or metadata but not both. Copy the folder again.")
    parts: list[NDArray[Any]] = []
    columns: dict[str, list[Any]] = {}
    for number in sorted(arrays):
        part = _read(arrays[number], how)
        parts.append(part.matrix)
        if notes:
            told = _parquet(notes[number])
            lengths = {len(column) for column in told.values()}
            if lengths != {len(part.matrix)}:
                found = f"{len(part.matrix)} vectors and {max(lengths, default=0)} lines of metadata"
                raise InputError(f"Partition {number} in {folder} has {found}: their order is not known. Refused.")
            for name, column in told.items():
                columns.setdefault(name, []).extend(_listed(column))
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        raise InputError(f"The partitions in {folder} have vectors of different lengths or numbers. Import them apart.")
    return _Table(folder.name, np.concatenate(parts), dict(columns))


def _numbered(folder: Path, suffix: str, kind: str | None) -> dict[int, Path]:
    """Files by their partition's number; of several kinds the named one, or pictures before texts."""
    kinds: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.rglob(f"*{suffix}")):
        if match := PARTITION.match(path.stem):
            kinds.setdefault(match["kind"], {})[int(match["number"])] = path
    if kind is not None:
        return kinds.get(kind, {})
    usual = [one for one in ("img_emb", "metadata", "text_emb") if one in kinds]
    chosen = usual[0] if usual else next(iter(kinds), None) if len(kinds) == 1 else None
    if chosen is None and kinds:
        raise InputError(
            f"{folder} holds several kinds of files: {', '.join(kinds)}. Say with `vectors` which to take."
        )
    return kinds[chosen] if chosen else {}


def _parquet(path: Path) -> dict[str, Column]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{path} cannot be read: {error}. Write it again.") from error
    columns: dict[str, Column] = {}
    for name in found.column_names:
        column = found.column(name).combine_chunks()
        if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            flat = column.flatten().to_numpy(zero_copy_only=False)
            if len(column) and len(flat) % len(column) == 0:
                columns[name] = flat.reshape(len(column), -1)
        else:
            columns[name] = column.to_pylist()
    return columns


def _labels(table: _Table, how: ImportOptions) -> Column | None:
    if how.labels is None:
        return table.labels(how)
    told = _label_file(how.labels)
    if how.join is None:
        labels = told.labels(how) if told.columns or how.targets else told.matrix
        if labels is None or len(labels) != len(table.matrix):
            found = 0 if labels is None else len(labels)
            raise InputError(
                f"{how.labels} has {found} labels for {len(table.matrix)} vectors. Give a file with one each, or "
                "`join`, a column that both have."
            )
        return labels
    keys, own = told.column(how.join), table.column(how.join)
    values = told.labels(how)
    if keys is None or own is None or values is None:
        raise NotFoundError(f"{how.labels} has no column of labels. Say with `label` which it is.")
    known = dict(zip(map(str, _listed(keys)), _listed(values), strict=True))
    if len(known) != len(keys):
        raise InputError(f"{how.join} in {how.labels} names the same row twice. Give each key once.")
    missing = [str(key) for key in _listed(own) if str(key) not in known]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(own)} vectors have no label in {how.labels}; the first is {missing[0]!r}. "
            "Add them, or leave those vectors out."
        )
    return [known[str(key)] for key in _listed(own)]


def _label_file(path: Path) -> _Table:
    if not path.exists():
        raise NotFoundError(f"There is no file {path} of labels. Give another.")
    nothing = np.empty(0)
    if path.suffix == ".npy":
        try:
            return _Table(path.name, np.load(path, allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise _unreadable(path, error) from error
    if path.suffix == ".parquet":
        return _Table(path.name, nothing, _parquet(path))
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix not in (".csv", ".tsv"):
            return _Table(path.name, np.array(file.read().splitlines()))
        lines = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    names = list(lines[0]) if lines else []
    return _Table(path.name, nothing, {name: [line[name] for line in lines] for name in names})


def _real(name: str, column: list[Any], where: str) -> NDArray[np.float64]:
    """A column as real numbers; what is empty is not known."""
    found = np.full(len(column), np.nan)
    for row, cell in enumerate(column):
        text = "" if cell is None else str(cell).strip()
        if text.lower() in EMPTY:
            continue
        try:
            found[row] = float(text)
        except ValueError:
            raise InputError(
                f"Targets are numbers, empty where unknown; row {row} of {name!r} in {where} is {text!r}. Correct it."
            ) from None
    return found


def _listed(column: Column | None) -> list[Any]:
    if column is None:
        return []
    return column.tolist() if isinstance(column, np.ndarray) else column
