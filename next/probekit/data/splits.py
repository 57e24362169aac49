"""Splits of a dataset, and how tables that a reader gives become them: classes, columns, limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from probekit.arrays import Array, Indices, Texts, texts
from probekit.data.dataset import Dataset, Sample
from probekit.data.labels import LabelColumn, as_target_matrix, is_missing, number_splits
from probekit.data.pictures import check_window, read_content
from probekit.embeddings import UNLABELED
from probekit.errors import InputError, NotFoundError
from probekit.registry import LISTED, nearest

TRAIN, VALIDATION, TEST = "train", "validation", "test"
NO_LABELS = "none"
CLIENT_NAMES = ("client_id", "client", "client_ids", "clients")
SPLIT_NAMES = ("split", "subset", "partition", "set")
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
            None if self.label_column == NO_LABELS else self.label_column: "--label-column",
            self.image_column: "--image-column",
            self.text_column: "--text-column",
            self.client_column: "--client-column",
            self.group_column: "--group",
            self.split_column: "--split-column",
        }
        flags |= dict.fromkeys(self.target_columns, "--target-column")
        flags |= dict.fromkeys(self.keep_columns, "--keep-column")
        return {column: flag for column, flag in flags.items() if column is not None}


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
    """

    name: str
    table: Table
    indices: Indices
    labels: Indices
    class_names: tuple[str, ...] = ()
    targets: Array | None = None
    target_names: tuple[str, ...] = ()
    columns: Mapping[str, Texts] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TableDataset({self.name!r}, {len(self)} rows, {len(self.class_names)} classes)"

    @property
    def kind(self) -> str:
        return self.table.kind

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        position = range(len(self))[index]
        row = int(self.indices[position])
        table = self.table
        return Sample(
            key=str(row) if table.keys is None else table.keys[row],
            content=partial(table.read, row),
            label=int(self.labels[position]),
            targets=() if self.targets is None else tuple(self.targets[position].tolist()),
            columns={name: str(column[position]) for name, column in self.columns.items()},
            path=table.path(row),
        )

    def take(self, positions: Indices) -> TableDataset:
        return replace(
            self,
            indices=self.indices[positions],
            labels=self.labels[positions],
            targets=None if self.targets is None else self.targets[positions],
            columns={name: column[positions] for name, column in self.columns.items()},
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


def check_columns(names: Iterable[str], options: DataOptions, source: str) -> None:
    for column, flag in options.requested_columns.items():
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
    labeled = {name: column for name, column in columns.items() if column is not None}
    numbered = number_splits(labeled, source=source)
    datasets = {
        name: TableDataset(
            name=source,
            table=replace(table, columns={}),  # not sent to workers
            indices=np.arange(len(table)),
            labels=numbered.labels.get(name, np.full(len(table), UNLABELED)),
            class_names=numbered.class_names,
            targets=numbered.targets.get(name),
            target_names=numbered.target_names,
            columns=_sample_columns(table, options, source),
        )
        for name, table in full.items()
    }
    column = options.split_column or _split_column(full)
    if column is not None:
        if len(full) > 1:
            raise InputError(f"{source} has splits already. Leave --split-column {column} out.")
        [name] = full
        values = _as_texts(full[name].column(column, source))
        datasets = {
            split: datasets[name].take(np.flatnonzero(values == split))
            for split in sort_splits(set(values.tolist()))
        }
        if options.split_column is None:
            notes.append(f"{source}: splits are read from {column!r} (see --split-column).")
    return finish_splits(source, datasets, options, notes)


def _label_column(table: Table, options: DataOptions, source: str) -> LabelColumn | None:
    check_columns(table.columns, options, source)
    if options.target_columns:
        targets = {name: table.column(name, source) for name in options.target_columns}
        return LabelColumn(as_target_matrix(targets, source=source), options.target_columns)
    if table.label is None or options.label_column == NO_LABELS:
        return None
    values = table.column(table.label, source)
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    return LabelColumn(values, table.class_names, table.label)


def _sample_columns(table: Table, options: DataOptions, source: str) -> dict[str, Texts]:
    """The columns that samples carry: client, group, and those to keep by their own names."""
    roles: dict[str, str | None] = {name: name for name in options.keep_columns}
    roles["client"] = options.client_column or usual_name(table.columns, CLIENT_NAMES)
    roles["group"] = options.group_column
    columns = {role: _as_texts(table.column(name, source)) for role, name in roles.items() if name}
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
            names = set(_as_texts(table.columns[name][:]).tolist()) - {""}
            if names and all(map(split_role, names)):
                return name
    return None


def _as_texts(values: Iterable[object]) -> Texts:
    return texts(as_text(value) for value in values)


def as_text(value: object) -> str:
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
