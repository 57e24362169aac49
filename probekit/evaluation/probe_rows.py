"""The rows of a probe: as given, of the cache, or encoded now; with their groups, comparable between both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from probekit.cache.disk import DiskStore
from probekit.datasets import Columns
from probekit.datasets import dataset as find_dataset
from probekit.encoding.extract import ExtractProgress, extract, set_name
from probekit.encoding.reencode import reopen
from probekit.errors import InputError, NotFoundError, StorageError
from probekit.values import EmbeddingSet
from probekit.values.groups import group_numbers

TEST_SPLITS = ("test", "validation", "val")
Progress = Callable[[ExtractProgress], None]


@dataclass(frozen=True)
class RowSource:
    """Where rows come from: what encodes them, where they are kept, and by which column they belong together.

    settings: further fields of `ExtractOptions`.
    """

    backbone: Any = None
    store: DiskStore | None = None
    progress: Progress | None = None
    group: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def kept(self) -> DiskStore:
        """The store that was given, or the user's cache."""
        return self.store if self.store is not None else DiskStore()

    def pair(self, data: Any, test: Any) -> tuple[EmbeddingSet, EmbeddingSet | None]:
        """Training rows and, where there are any, test rows."""
        if test is not None:
            return self.embedded(data), self.embedded(test)
        if not isinstance(data, str) or is_set(data, self.kept):
            return self.embedded(data), None
        for split in TEST_SPLITS:
            try:
                parts = [find_dataset(data, split=one, columns=self._columns) for one in ("train", split)]
            except (NotFoundError, InputError):
                continue  # no such split: whatever else is wrong is said when the data set is read below
            names = (set_name(data, one, str(self.backbone)) for one in ("train", split))
            rows, judged = (self.embedded(one, name=name) for one, name in zip(parts, names, strict=True))
            return rows, judged
        return self.embedded(data), None

    @property
    def _columns(self) -> Columns | None:
        return None if self.group is None else Columns(kept=(self.group,))

    def embedded(self, data: Any, *, name: str = "") -> EmbeddingSet:
        """The embeddings of a data set, of a set of the cache by its name, of arrays, or as they are."""
        if isinstance(data, EmbeddingSet):
            return self._grouped(self._vectors(data))
        if isinstance(data, tuple) and len(data) == 2 and np.ndim(data[0]) == 2:
            return self._grouped(self._vectors(EmbeddingSet.from_numpy(*data)))
        if isinstance(data, str) and is_set(data, self.kept):
            return self._grouped(self._vectors(self.kept.open(data)))
        if self.backbone is None:
            raise InputError(
                "A data set needs a backbone to encode it with: give `backbone`, for example "
                '"packaged:efficientnet-lite0", or vectors that exist already as (X, y).'
            )
        settings = {**self.settings, "group": self.group}
        found = extract(self.backbone, data, store=self.kept, progress=self.progress, **settings)
        if name or isinstance(data, str):
            self._give_name(name or set_name(data, None, str(self.backbone)), found)
        return found

    def _give_name(self, name: str, found: EmbeddingSet) -> None:
        try:
            self.kept.sets.give_name(name, found.digest)
        except StorageError:  # a complete set on a read-only cache needs no name to be used
            return

    def _vectors(self, rows: EmbeddingSet) -> EmbeddingSet:
        if self.backbone is not None:
            raise InputError("These rows are vectors already: leave `backbone` out, or give the data set itself.")
        return rows

    def _grouped(self, rows: EmbeddingSet) -> EmbeddingSet:
        """A set with the groups that were asked for: kept with it, or by its data set's column, read again."""
        if self.group is None or (rows.groups is not None and rows.group_column == self.group):
            return rows
        try:
            data = reopen(rows.source, columns=self._columns)
            told = {sample.name: sample.columns[self.group] for sample in data}
            values = [told[name] for name in rows.names or ()]
        except (InputError, NotFoundError, KeyError) as error:
            raise InputError(
                f"The set of {rows.source} has no groups by {self.group!r}, and its data set does not give them now "
                f"({error}). Extract or import it again with `group`: nothing is encoded anew."
            ) from error
        return replace(rows, groups=group_numbers(values, rows.ids, key=self.kept.group_key()), group_column=self.group)


def is_set(name: str, store: DiskStore) -> bool:
    """Whether the cache has a set of this name."""
    try:
        store.sets.resolve(name)
    except (NotFoundError, InputError):
        return False
    return True


def labelled(rows: EmbeddingSet, what: str) -> EmbeddingSet:
    """The rows that have an embedding and a label."""
    kept = rows.usable[rows.labels[rows.usable] >= 0]
    if not len(kept):
        raise InputError(f"None of the {len(rows)} {what} rows has a label. Name the label column, or give labels.")
    return rows if len(kept) == len(rows) else rows.select(kept)


def with_groups(
    rows: EmbeddingSet,
    test: EmbeddingSet | None,
    groups: ArrayLike | None = None,
    test_groups: ArrayLike | None = None,
) -> tuple[EmbeddingSet, EmbeddingSet | None]:
    """The rows with the groups given, or their own, numbered by first appearance over both: no draw follows a key."""
    if test is None and test_groups is not None:
        raise InputError("`test_groups` are of test rows, and there are none. Give `test`, or leave them out.")
    pairs = ((rows, groups), (test, test_groups))
    found = [
        None if one is None else one.groups if given is None else group_numbers(np.asarray(given).tolist(), one.ids)
        for one, given in pairs
    ]
    order = {
        number: place
        for place, number in enumerate(dict.fromkeys(n for one in found if one is not None for n in one.tolist()))
    }
    numbers = [None if one is None else np.array([order[n] for n in one.tolist()], np.int64) for one in found]
    rows = rows if numbers[0] is None else replace(rows, groups=numbers[0])
    return rows, test if test is None or numbers[1] is None else replace(test, groups=numbers[1])
