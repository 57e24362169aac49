"""Rows of Hugging Face datasets: from the hub, from folders and files, or in passing as a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets.utils.file_utils import xopen
from numpy.typing import NDArray

from probekit.datasets import hub, pictures
from probekit.datasets.columns import ChosenColumns, choose
from probekit.datasets.options import DatasetOptions
from probekit.datasets.table import Table, choose_split, class_number, classify, client_name, client_names
from probekit.errors import InputError, NotFoundError, SampleError
from probekit.protocols import Dataset, Sample
from probekit.values import UNLABELLED
from probekit.values.groups import column_text


def load(name: str, options: DatasetOptions) -> Dataset:
    """The dataset of a hub name `NAME[@REVISION][:CONFIG]`, of a local folder, or of a file or pattern."""
    place = hub.locate(name)
    sliced = options.split if re.search(r"[\[+]", options.split or "") and not options.streaming else None
    found = hub.read(place, streaming=options.streaming, split=sliced)
    if sliced:
        return _rows(found, options, source=f"hf:{name}[{sliced}]", folder=place.folder)
    return _part(found, options, source=f"hf:{name}", folder=place.folder)


def wrap(data: Any, options: DatasetOptions) -> Dataset:
    """The dataset of a `datasets.Dataset`, an `IterableDataset` or a dictionary of either."""
    if not isinstance(data, datasets.Dataset | datasets.IterableDataset | dict):
        raise InputError(f"Wanted a Hugging Face dataset, found {type(data).__name__}. Load it with load_dataset.")
    return _part(data, options, source="python:datasets", folder=None)


def _part(found: Any, options: DatasetOptions, *, source: str, folder: Path | None) -> Dataset:
    """The rows of one split of what was loaded."""
    if isinstance(found, dict):
        split: str | None = choose_split(options.split, list(found), source=source)
        found = found[split]
    else:
        split = str(found.split) if found.split is not None else None
        if options.split not in (None, split):
            raise NotFoundError(f"{source} has no split {options.split!r}; found {split or 'rows without a split'}.")
    return _rows(found, options, source=source + (f"[{split}]" if split else ""), folder=folder)


def _rows(data: Any, options: DatasetOptions, *, source: str, folder: Path | None) -> Dataset:
    if isinstance(data, datasets.IterableDataset):
        return _stream(data, options, source=source, folder=folder)
    if not len(data):
        raise InputError(f"{source} has no rows. Choose another split.")
    if data.format["type"] == "custom":
        raise InputError(f"{source} has a transform set, which would be lost. Pass data.with_format(None) or use map.")
    chosen = choose(data.features, options.columns, source=source)
    data = _undecoded(data.with_format(None), chosen)
    labels, class_names = np.full(len(data), UNLABELLED), chosen.class_names
    if chosen.label is not None:
        labels, class_names = classify(_values(data, chosen.label), class_names, source=source)
    clients = client_names(list(_values(data, chosen.client)), source=source) if chosen.client is not None else None
    reader = partial(partial, _fetched, data.select_columns([chosen.content]), chosen, folder)  # what is left: the row
    names = _names(data, chosen, folder)
    kept = {name: [column_text(value) for value in list(_values(data, name))] for name in chosen.kept}
    return Table(source, chosen.kind, reader, labels, class_names, names=names, clients=clients, columns=kept)


def _undecoded(data: Any, chosen: ChosenColumns) -> Any:
    """The same rows with pictures left as bytes or paths, so that a broken one harms nobody else."""
    return data.cast_column(chosen.content, datasets.Image(decode=False)) if chosen.kind == "image" else data


def _values(data: Any, column: str) -> NDArray[Any] | list[Any]:
    """One whole column, none of the others being read."""
    values = data.select_columns([column]).with_format("arrow")[:].column(column)
    if pa.types.is_integer(values.type) and not values.null_count:
        return np.asarray(values.to_numpy())
    return list(values.to_pylist())


def _names(data: Any, chosen: ChosenColumns, folder: Path | None) -> list[str] | None:
    """What the rows call themselves, if each has its own name: a webdataset's key, or a picture's path."""
    if "__key__" in data.features:
        names = _values(data, "__key__")
    elif chosen.kind == "image" and data._indices is None:  # through indices, paths could not be had without the bytes
        names = pc.struct_field(data.data.column(chosen.content), "path").to_pylist()
    else:
        return None
    if any(not isinstance(name, str) for name in names) or len(set(names)) < len(names):
        return None
    top = f"{folder.absolute().as_posix()}/" if folder else ""
    return [Path(name).as_posix().removeprefix(top) for name in names]


def _fetched(data: Any, chosen: ChosenColumns, folder: Path | None, row: int) -> Any:
    return _content(chosen.kind, data[row][chosen.content], folder)


def _content(kind: str, cell: Any, folder: Path | None) -> Any:
    if kind == "text":
        if not isinstance(cell, str):
            raise SampleError(f"The row has no text: found {cell!r}.")
        return cell
    if cell is None or (cell["bytes"] is None and not cell["path"]):
        raise SampleError("The row has no picture: neither bytes nor a path.")
    if cell["bytes"] is not None:
        return pictures.decode(cell["bytes"])
    if "://" not in cell["path"]:
        return pictures.decode((folder or Path()) / cell["path"])
    with xopen(cell["path"], "rb") as file:
        return pictures.decode(file.read())


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows in passing: no length, no row numbers to ask for, one pass in the order they come."""

    name: str
    kind: str
    class_names: tuple[str, ...]
    rows: Any
    chosen: ChosenColumns
    folder: Path | None

    def __len__(self) -> int:
        raise TypeError(f"{self.name} is a stream: its length is known only at its end.")

    def __getitem__(self, row: int) -> NoReturn:
        raise TypeError(f"{self.name} is a stream: its rows can only be read in order.")

    def __iter__(self) -> Iterator[Sample]:
        return (self._sample(number, row) for number, row in enumerate(self.rows))

    def _sample(self, number: int, row: Mapping[str, Any]) -> Sample:
        where, chosen = f"{self.name}, row {number}", self.chosen
        value = None if chosen.label is None else row[chosen.label]
        label = class_number(value, self.class_names, where=where)
        client = None if chosen.client is None else client_name(row[chosen.client], where=where)
        content = partial(_content, self.kind, row[chosen.content], self.folder)
        kept = {name: column_text(row[name]) for name in chosen.kept}
        return Sample(str(row.get("__key__", number)), label, client, content, kept)


def _stream(data: Any, options: DatasetOptions, *, source: str, folder: Path | None) -> Stream:
    data = data.with_format(None)
    # A stream may learn its columns from its first rows only; the library has no public way to ask for that.
    data = data if data.features is not None else data._resolve_features()
    chosen = choose(data.features, options.columns, source=source)
    if chosen.label is not None and not chosen.class_names and "string" in str(data.features[chosen.label].dtype):
        remedy = "Load it without streaming, or cast the column to ClassLabel."
        raise InputError(
            f"{source}: the label {chosen.label!r} is text, whose classes a stream shows too late. {remedy}"
        )
    return Stream(source, chosen.kind, chosen.class_names, _undecoded(data, chosen), chosen, folder)
