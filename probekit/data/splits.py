"""Splits of a dataset, and how tables that a reader gives become them: classes, columns, limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Array, Indices, Texts, texts
from probekit.data.dataset import Dataset, Sample
from probekit.data.pictures import check_window, read_content
from probekit.embeddings import UNLABELED, is_real, number_labels
from probekit.errors import InputError, NotFoundError
from probekit.registry import LISTED, nearest

TRAIN, VALIDATION, TEST = "train", "validation", "test"
NO_LABELS = "none"
LABEL_NAMES = (
    *("label", "labels", "y", "target", "targets", "class", "classes"),
    *("category", "cls", "fine_label"),
)
CLIENT_NAMES = ("client_id", "client", "client_ids", "clients")
SPLIT_NAMES = ("split", "subset", "partition", "set")
MAX_CLASS_NUMBER = 100_000
"""Whole numbers beyond are names of classes (zip codes, ids), not class numbers."""
_SPELLINGS = {
    **dict.fromkeys(("train", "training", "trn"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev", "development"), VALIDATION),
    **dict.fromkeys(("test", "testing", "tst", "eval", "evaluation", "t10k"), TEST),
}


def split_role(name: str) -> str | None:
    """train, validation or test for a split of any spelling; None for other names."""
    return _SPELLINGS.get(re.sub(r"[\W_]*(set|split|data)?[\W_]*$", "", name.strip().lower()))


def sort_splits(names: Iterable[str]) -> list[str]:
    """Training first, then validation, test, and others by name."""
    order = (TRAIN, VALIDATION, TEST, None)
    return sorted(names, key=lambda name: (order.index(split_role(name)), name))


def choose_split(names: Sequence[str], split: str | None) -> str:
    """The name of the split that was asked for, however it is spelled."""
    if split is None and len(names) == 1:
        return names[0]
    requested = split or TRAIN
    if requested in names:
        return requested
    namesakes = [name for name in names if split_role(name) == split_role(requested) is not None]
    if len(namesakes) == 1:
        return namesakes[0]
    listed = ", ".join(name for name in names if name) or "none"
    raise NotFoundError(f"No split {requested!r}; found {listed}. Choose one with split (--split).")


@dataclass(frozen=True)
class DataOptions:
    """How to read a dataset; a column that is not named is recognized by its type and name.

    split: the only split to read ("train", "test", ...; of the hub also "train[:1000]").
    label_column: "none" reads rows without labels.
    target_columns: real numbers, or 0/1 for several labels, instead of a label.
    keep_columns: further columns to keep with each sample.
    limit: the first rows of each split.
    window: the gray values that become black and white, for pictures of more than 8 bits.
    """

    split: str | None = None
    label_column: str | None = None
    image_column: str | None = None
    text_column: str | None = None
    client_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    target_columns: tuple[str, ...] = ()
    keep_columns: tuple[str, ...] = ()
    limit: int | None = None
    window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit (--limit) must be at least 1; found {self.limit}.")
        if self.window is not None:
            object.__setattr__(self, "window", check_window(self.window))
        if self.image_column is not None and self.text_column is not None:
            raise InputError(
                "Choose one of image_column (--image-column) and text_column (--text-column)."
            )

    @property
    def requested_columns(self) -> dict[str, str]:
        """The columns that were asked for, with the flag that did it."""
        flags: dict[str | None, str] = {
            self.label_column: "--label-column",
            self.image_column: "--image-column",
            self.text_column: "--text-column",
            self.client_column: "--client-column",
            self.group_column: "--group",
            self.split_column: "--split-column",
        }
        flags |= dict.fromkeys(self.target_columns, "--target-column")
        flags |= dict.fromkeys(self.keep_columns, "--keep-column")
        return {name: flag for name, flag in flags.items() if name and name != NO_LABELS}


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset by name, and what a reader decided that nobody asked for."""

    by_name: Mapping[str, Dataset]
    notes: tuple[str, ...] = ()

    def choose(self, split: str | None = None) -> tuple[str, Dataset]:
        """A split and its name; without a choice the training split, or the only one."""
        name = choose_split(list(self.by_name), split)
        return name, self.by_name[name]


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of one split as a reader gives them; `make_splits` numbers their classes.

    rows: contents by number, as `read_content` takes them: a list, an array, a column.
    label: the column of labels, or of targets (n, k); class_names: what the source declares.
    keys: what rows are called; their numbers where None.
    """

    rows: Any
    kind: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    class_names: tuple[str, ...] = ()
    keys: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, row: int) -> Any:
        return read_content(self.rows[row], self.kind)

    def path(self, row: int) -> str | Path | None:
        """The file of a picture; only of a list, whose rows cost nothing to look at."""
        content = self.rows[row] if self.kind == "image" and isinstance(self.rows, list) else None
        return content if isinstance(content, str | Path) else None

    def column(self, name: str, source: str) -> Any:
        values = self.columns[name][:]  # a column of `datasets` is read at once
        if len(values) != len(self):
            raise InputError(
                f"{source}: expected {len(self)} values of {name!r}; found {len(values)}."
            )
        return values


@dataclass(frozen=True, eq=False)
class TableDataset:
    """Rows whose labels and columns are known, and whose contents are read when asked for.

    indices: the rows of `table` in this split, (n,).
    labels: class numbers (n,), or targets (n, k); label_names says what they mean.
    """

    name: str
    table: Table
    indices: Indices
    labels: NDArray[Any]
    label_names: tuple[str, ...]
    columns: Mapping[str, Texts]

    def __repr__(self) -> str:
        return f"TableDataset({self.name!r}, {len(self)} rows, {len(self.class_names)} classes)"

    @property
    def kind(self) -> str:
        return self.table.kind

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.label_names if self.labels.ndim == 1 else ()

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.label_names if self.labels.ndim == 2 else ()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        position = range(len(self))[index]
        row = int(self.indices[position])
        table = self.table
        sample = Sample(
            key=str(row) if table.keys is None else table.keys[row],
            content=partial(table.read, row),
            columns={name: str(column[position]) for name, column in self.columns.items()},
            path=table.path(row),
        )
        if self.labels.ndim == 1:
            return replace(sample, label=int(self.labels[position]))
        return replace(sample, targets=tuple(self.labels[position].tolist()))

    def take(self, positions: Indices) -> TableDataset:
        columns = {name: column[positions] for name, column in self.columns.items()}
        return replace(
            self, indices=self.indices[positions], labels=self.labels[positions], columns=columns
        )


class FirstRows:
    """The first rows of somebody's own dataset."""

    def __init__(self, dataset: Dataset, limit: int) -> None:
        self.dataset = dataset
        self.rows = range(min(limit, len(dataset)))
        self.name = dataset.name
        self.kind = dataset.kind
        self.class_names = dataset.class_names
        self.target_names = dataset.target_names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self.rows[index]]


def list_names(names: Iterable[str]) -> str:
    items = list(names)
    listed = ", ".join(items[:LISTED]) or "none"
    return f"{listed}, ... ({len(items)} in all)" if len(items) > LISTED else listed


def usual_name(names: Iterable[str], candidates: Sequence[str]) -> str | None:
    """The first of some usual names that is there, in any case."""
    by_name = {name.lower(): name for name in names}
    return next((by_name[name] for name in candidates if name in by_name), None)


def check_columns(names: Collection[str], requested: Mapping[str, str], source: object) -> None:
    """Refuse a requested column (whose flag is its value) that is not among these."""
    for column, flag in requested.items():
        if column not in names:
            raise InputError(
                f"{source} has no column {column!r} ({flag}); found {list_names(names)}. "
                f"{nearest(column, list(names))}"
            )


def make_splits(
    source: str, tables: Mapping[str, Table], options: DataOptions, notes: Sequence[str] = ()
) -> Splits:
    """Datasets with one list of classes for all splits, cut to what was asked for."""
    full = {name: tables[name] for name in sort_splits(tables) if len(tables[name])}
    if not full:
        raise InputError(f"{source} has no rows. Check the path, or choose another split.")
    empty = [f"The split {name} of {source} has no rows." for name in tables if name not in full]
    notes = [*notes, *empty]
    columns = {name: _label_column(table, options, source) for name, table in full.items()}
    labels, label_names = number_splits(columns, source=source)
    datasets = {
        name: TableDataset(
            name=source,
            table=replace(table, columns={}),  # not sent to workers
            indices=np.arange(len(table)),
            labels=labels[name],
            label_names=label_names,
            columns=_sample_columns(table, options, source),
        )
        for name, table in full.items()
    }
    column = options.split_column or _split_column(full)
    if column is not None:
        if len(full) > 1:
            raise InputError(f"{source} has splits already. Leave --split-column {column} out.")
        [name] = full
        values = as_texts(full[name].column(column, source))
        datasets = {
            split: datasets[name].take(np.flatnonzero(values == split))
            for split in sort_splits(set(values.tolist()))
        }
        if options.split_column is None:
            notes.append(f"{source}: splits are read from {column!r} (see --split-column).")
    return finish_splits(source, datasets, options, notes)


@dataclass(frozen=True)
class LabelColumn:
    """Labels as they were read: class numbers or names, None where a row has none; or targets.

    values: (n,), or targets (n, k).
    class_names: what the source declares them to be; numbers count in them.
    """

    values: NDArray[Any] | Sequence[Any]
    class_names: tuple[str, ...] = ()
    name: str = "label"


def _label_column(table: Table, options: DataOptions, source: str) -> LabelColumn:
    check_columns(table.columns, options.requested_columns, source)
    if options.target_columns:
        targets = {name: table.column(name, source) for name in options.target_columns}
        return LabelColumn(as_target_matrix(targets, source=source), options.target_columns)
    if table.label is None or options.label_column == NO_LABELS:
        return LabelColumn(np.full(len(table), np.nan))
    values = table.column(table.label, source)
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    return LabelColumn(values, table.class_names, table.label)


def number_splits(
    columns: Mapping[str, LabelColumn], *, source: str
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """By split class numbers (n,) or targets (n, k), and the names of the classes or targets.

    Texts are numbered in sorted order; declared classes keep theirs; fractions are targets.
    Classes of all splits are united by name, so that a class that one of them lacks does no harm.
    """
    arrays = [_names_or_numbers(column, source) for column in columns.values()]
    if len({array.shape[1:] for array in arrays}) > 1:
        raise InputError(
            f"{source}: labels are classes in one split, targets in another. Read one (--split)."
        )
    joined = np.concatenate(arrays)
    if joined.ndim == 2 or (joined.dtype != object and is_real(joined[np.isfinite(joined)])):
        joined = joined.reshape(len(joined), -1).astype(np.float64)
        width = joined.shape[1]
        column = next(iter(columns.values()))
        numbered = [f"{column.name} {i}" for i in range(width)] if width > 1 else [column.name]
        names = column.class_names if len(column.class_names) == width else tuple(numbered)
    else:
        declared = dict.fromkeys(name for column in columns.values() for name in column.class_names)
        joined, names = _number(joined, tuple(declared))
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    return dict(zip(columns, np.split(joined, ends), strict=True)), names


def _names_or_numbers(column: LabelColumn, source: str) -> NDArray[Any]:
    """Names as objects, None where there is none; numbers, NaN where there is none."""
    array = _as_array(column.values, source)
    if not column.class_names or array.dtype == object or array.ndim == 2:
        return array
    numbers = _class_numbers(array)
    last = len(column.class_names) - 1
    wrong = np.flatnonzero((numbers < UNLABELED) | (numbers > last))
    if len(wrong):
        raise InputError(
            f"{source}, row {wrong[0]}: a label must be -1 (none) to {last}; found "
            f"{numbers[wrong[0]]}. Correct it."
        )
    return np.array([*column.class_names, None], object)[numbers]


def _as_array(values: NDArray[Any] | Sequence[Any], source: str) -> NDArray[Any]:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        return values
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    items = [None if is_missing(value) else value for value in items]
    examples = {type(value): value for value in items if value is not None}
    if all(issubclass(kind, int | float) for kind in examples):
        return np.array(items, np.float64)
    if not examples.keys() <= {str}:
        raise InputError(
            f"{source}: labels must be all numbers or all texts; found {list(examples.values())}. "
            "Choose another column (--label-column), or several (--target-column)."
        )
    return np.array(items, object)


def is_missing(value: object) -> bool:
    return value is None or (isinstance(value, str | float) and (value == "" or value != value))


def _class_numbers(array: NDArray[Any]) -> Indices:
    return np.where(np.isfinite(array), array, np.int64(UNLABELED)).astype(np.int64)


def _number(labels: NDArray[Any], declared: tuple[str, ...]) -> tuple[Indices, tuple[str, ...]]:
    """Class numbers count from 0 to the highest; names are sorted, whole numbers by value."""
    if labels.dtype != object:
        numbers = _class_numbers(labels)
        if numbers.min() >= UNLABELED and numbers.max() <= MAX_CLASS_NUMBER:
            return number_labels(numbers)
        names = [None if number == UNLABELED else str(number) for number in numbers.tolist()]
        labels = np.array(names, object)
    present = {name for name in labels.tolist() if isinstance(name, str)}
    is_whole = all(re.fullmatch(r"0|-?[1-9]\d*", name, re.ASCII) for name in present)
    return number_labels(labels, declared or tuple(sorted(present, key=int if is_whole else str)))


def as_target_matrix(columns: Mapping[str, Sequence[Any]], *, source: str) -> Array:
    """Target columns as (n, k); NaN where a row has none."""
    try:
        return np.array([list(column) for column in columns.values()], np.float64).T
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{source}: targets (--target-column) must be numbers: {error}. Choose other columns."
        ) from error


def _sample_columns(table: Table, options: DataOptions, source: str) -> dict[str, Texts]:
    """The columns that samples carry: client, group, and those to keep by their own names."""
    roles: dict[str, str | None] = {name: name for name in options.keep_columns}
    roles["client"] = options.client_column or usual_name(table.columns, CLIENT_NAMES)
    roles["group"] = options.group_column
    columns = {role: as_texts(table.column(name, source)) for role, name in roles.items() if name}
    if options.client_column is None and not any(columns.get("client", ())):
        columns.pop("client", None)
    for role in columns.keys() & {"client", "group"}:
        missing = np.flatnonzero(columns[role] == "")
        if len(missing):
            raise InputError(
                f"{source}: every row needs a {role}; {len(missing)} have none (first: row "
                f"{missing[0]}). Fill in {roles[role]!r}, or choose another column "
                "(--client-column, --group)."
            )
    return columns


def _split_column(tables: Mapping[str, Table]) -> str | None:
    """A column of the only table with a usual name that holds nothing but names of splits."""
    if len(tables) > 1:
        return None
    [table] = tables.values()
    for name in table.columns:
        if name.lower() in SPLIT_NAMES:
            names = set(as_texts(table.columns[name][:]).tolist()) - {""}
            if names and all(map(split_role, names)):
                return name
    return None


def as_texts(values: Iterable[object]) -> Texts:
    items = values.tolist() if isinstance(values, np.ndarray) else values
    return texts(_as_text(value) for value in items)


def _as_text(value: object) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # whole numbers beside missing ones are read as floats
    return str(value)


def finish_splits(
    source: str, by_name: Mapping[str, Dataset], options: DataOptions, notes: Sequence[str] = ()
) -> Splits:
    """Apply `split` and `limit`, and note what nobody chose."""
    notes = list(notes)
    names = sort_splits(by_name)
    if options.split is not None:
        names = [choose_split(names, options.split)]
    elif len(names) > 1 or split_role(names[0]) in (VALIDATION, TEST):
        counts = ", ".join(f"{name} ({len(by_name[name]):,} rows)" for name in names)
        notes.append(f"{source} has the splits {counts}; --split takes one alone.")
    chosen: dict[str, Dataset] = {}
    for name in names:
        dataset = by_name[name]
        if isinstance(dataset, TableDataset):
            dataset = replace(dataset, name=f"{source}[{name}]" if name else source)
        if options.limit is not None and options.limit < len(dataset):
            dataset = _first_rows(dataset, options.limit, notes)
        chosen[name] = dataset
    return Splits(chosen, tuple(notes))


def _first_rows(dataset: Dataset, limit: int, notes: list[str]) -> Dataset:
    if isinstance(dataset, TableDataset):
        dataset = dataset.take(np.arange(limit))
    else:
        dataset = FirstRows(dataset, limit)
    present = {dataset[row].label for row in range(limit)} - {UNLABELED}
    if len(present) < len(dataset.class_names):
        notes.append(
            f"The first {limit:,} rows of {dataset.name} hold {len(present)} of "
            f"{len(dataset.class_names)} classes; --limit takes rows in order."
        )
    return dataset
