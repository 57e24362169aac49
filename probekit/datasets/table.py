"""Rows whose labels and names are known beforehand and whose contents are read when asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from probekit.errors import InputError, NotFoundError, SampleError
from probekit.protocols import Dataset, Sample
from probekit.registry import nearest
from probekit.values import UNLABELLED

LIMIT = 2**31
"""No class number is as high as this: whatever is, is not a class number."""


@dataclass(frozen=True, eq=False)
class Table:
    """A dataset that knows its rows. `reader(row)` gives the function that reads the content of that row.

    Rows without a name of their own are named by their number. `ignored` counts files that are not samples. `note` is
    what a person should know of how it was read.
    """

    name: str
    kind: str
    reader: Callable[[int], Callable[[], Any]]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...] = ()
    names: Sequence[str] | None = None
    clients: Sequence[str] | None = None
    ignored: int = 0
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        for column in (self.names, self.clients, *self.columns.values()):
            if column is not None and len(column) != len(self.labels):
                raise InputError(f"{self.name}: wanted {len(self.labels)} entries per column, found {len(column)}.")
        self.labels.setflags(write=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Sample:
        row = range(len(self))[row]
        return Sample(
            name=str(row) if self.names is None else self.names[row],
            label=int(self.labels[row]),
            client=None if self.clients is None else self.clients[row],
            content=self.reader(row),
            columns={name: column[row] for name, column in self.columns.items()},
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))


class FirstRows:
    """The first rows of a dataset, with all its classes, also those whose rows were left out."""

    def __init__(self, whole: Dataset, limit: int) -> None:
        if limit < 1:
            raise InputError(f"A limit must leave at least one row; found {limit}. Leave it out for all rows.")
        self.whole, self.limit, self.name = whole, limit, f"{whole.name}[:{limit}]"
        self.kind, self.class_names, self.note = whole.kind, whole.class_names, str(getattr(whole, "note", ""))

    def __len__(self) -> int:
        return min(self.limit, len(self.whole))

    def __getitem__(self, row: int) -> Sample:
        return self.whole[range(len(self))[row]]

    def __iter__(self) -> Iterator[Sample]:
        return islice(self.whole, self.limit)


class RowRange:
    """Some rows of a dataset, one after the other, by its own name and with all its classes."""

    def __init__(self, whole: Dataset, start: int, stop: int) -> None:
        self.whole, self.start, self.stop, self.name = whole, start, stop, whole.name
        self.kind, self.class_names = whole.kind, whole.class_names

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, row: int) -> Sample:
        return self.whole[range(self.start, self.stop)[row]]

    def __iter__(self) -> Iterator[Sample]:
        return (self.whole[row] for row in range(self.start, self.stop))


@dataclass(eq=False)
class Mapped:
    """An array in a file, opened when first used; another process is sent the way to open it."""

    opener: Callable[[], NDArray[Any]]

    @cached_property
    def array(self) -> NDArray[Any]:
        """The array itself."""
        return self.opener()

    def __getitem__(self, row: int) -> NDArray[Any]:
        return np.asarray(self.array[row])

    def __reduce__(self) -> tuple[type[Mapped], tuple[Callable[[], NDArray[Any]]]]:
        return Mapped, (self.opener,)


def picture(pixels: NDArray[Any]) -> Image.Image:
    """The picture of H x W or H x W x channels bytes, or of H x W 16-bit numbers."""
    plane = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    return Image.fromarray(np.ascontiguousarray(plane))


def array_kind(content: Any) -> str | None:
    """What one sample in an array is: a picture of H x W [x channels] bytes or H x W 16 bits, a row of numbers, or
    neither."""
    if not isinstance(content, np.ndarray):
        return None
    if content.ndim == 1 and content.dtype.kind in "fiu":
        return "array"
    pixels = content.ndim == 2 or (content.ndim == 3 and content.shape[2] in (1, 3, 4))
    grey = pixels and (content.ndim == 2 or content.shape[2] == 1)
    return "image" if (pixels and content.dtype == np.uint8) or (grey and content.dtype == np.uint16) else None


def vector(numbers: NDArray[Any]) -> NDArray[Any]:
    """A row of numbers, all of them finite."""
    if not np.isfinite(numbers).all():
        place = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise SampleError(f"A row must be finite; found {numbers[place]} in column {place}. Fill it or drop the row.")
    return numbers


def item_reader(kind: str, rows: Any, row: int) -> Callable[[], Any]:
    """The function that reads one row of an array as a picture or as numbers; it carries that row only."""
    return partial(picture if kind == "image" else vector, rows[row])


def choose_split(wanted: str | None, known: Sequence[str], *, source: str) -> str:
    """The split that was asked for; if none was, the only one or `train`."""
    default = known[0] if len(known) == 1 else "train"
    chosen = default if wanted is None else wanted
    if chosen in known:
        return chosen
    if wanted is None:
        raise InputError(f"{source} has the splits {', '.join(known)}: choose one with `split`.")
    raise NotFoundError(f"{source} has no split {wanted!r}. {nearest(wanted, list(known))}")


def classify(
    values: Sequence[Any] | NDArray[Any], class_names: Sequence[str] = (), *, source: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as class numbers, and the classes. Strings are numbered in sorted order; missing ones are -1."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        wrong = np.flatnonzero((values < UNLABELLED) | (values >= (len(class_names) or LIMIT)))
        for row in wrong[:1].tolist():
            class_number(values[row].item(), class_names, where=f"{source}, row {row}")
        return values.astype(np.int64), tuple(class_names)
    values = values.tolist() if isinstance(values, np.ndarray) else values
    named = class_names or sorted({value for value in values if isinstance(value, str) and value})
    order = {name: number for number, name in enumerate(named)}
    numbers = []
    for row, value in enumerate(values):
        known = isinstance(value, str) and value in order
        if named and not class_names and not known and not _missing(value):
            raise InputError(f"{source}, row {row}: other labels are names, this one is {value!r}. Use one of the two.")
        numbers.append(order[value] if known else class_number(value, named, where=f"{source}, row {row}"))
    return np.asarray(numbers, dtype=np.int64), tuple(named)


def class_number(value: Any, class_names: Sequence[str], *, where: str) -> int:
    """The number of one class: a name is looked up, a number is checked if the classes are known."""
    if _missing(value):
        return UNLABELLED
    if isinstance(value, str):
        if value not in class_names:
            raise InputError(f"{where}: {value!r} is none of the classes. {nearest(value, list(class_names))}")
        return class_names.index(value)
    if not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise InputError(f"{where}: a label must be one class number or name; found {value!r}.")
    if not UNLABELLED <= value < (len(class_names) or LIMIT):
        most = str(len(class_names) - 1) if class_names else "any number"
        raise InputError(f"{where}: a label must lie between 0 and {most} (-1 for none); found {value}.")
    return int(value)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str | float) and (value == "" or value != value))


def client_names(values: Sequence[Any], *, source: str) -> tuple[str, ...] | None:
    """The client of every row as text; None if no row has one."""
    if all(_missing(value) for value in values):
        return None
    return tuple(client_name(value, where=f"{source}, row {row}") for row, value in enumerate(values))


def client_name(value: Any, *, where: str) -> str:
    """One client as text; a row that belongs to nobody could be forgotten by nobody, so it is refused."""
    if _missing(value):
        raise InputError(f"{where}: the client is missing, and other rows have one. Fill it in or rename the column.")
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)
