"""What a loader of data sets gets besides a name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from probekit.errors import InputError

NOUNS = {"split": "splits to choose from", "columns": "columns to name", "text": "column of texts"}


@dataclass(frozen=True)
class Columns:
    """The columns to read where a dataset has columns; None: found by type and name. `kept`: others to keep."""

    image: str | None = None
    label: str | None = None
    client: str | None = None
    text: str | None = None
    kept: tuple[str, ...] = ()

    def keeping(self, name: str) -> Self:
        """The same columns, and this one kept."""
        return self if name in self.kept else replace(self, kept=(*self.kept, name))


@dataclass(frozen=True)
class DatasetOptions:
    """What a loader gets besides the name. A plugin is a function `load(name: str, options) -> Dataset`.

    split: which part to read.
    columns: where the content, labels and clients stand.
    streaming: rows may be read in passing, without a length; a loader that needs no such help may ignore it.
    """

    split: str | None = None
    columns: Columns = Columns()
    streaming: bool = False

    def refuse(self, *names: str, source: str) -> None:
        """Refuse options that mean nothing to this source, rather than ignore them."""
        columns = None if self.columns == Columns() else self.columns
        given = {"split": self.split, "columns": columns, "text": self.columns.text}
        for name in names:
            if given[name] is not None:
                raise InputError(f"{source} has no {NOUNS[name]}. Leave that option out.")
