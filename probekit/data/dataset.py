"""Dataset and Sample: what every reader of pictures, texts or arrays gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from probekit.embeddings import UNLABELED


@dataclass(frozen=True)
class Sample:
    """One sample. `content` decodes it: a PIL picture, a text, or an array.

    key: what a person calls it (a path, a row number).
    targets: real numbers, or 0/1 for several labels, instead of a label.
    columns: further texts by name (`client`, `group`, and what --keep-column names).
    path: the file that `content` reads and nothing else, so that it need not be decoded again.
    """

    key: str
    content: Callable[[], Any]
    label: int = UNLABELED
    targets: tuple[float, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    path: str | Path | None = None


class Dataset(Protocol):
    """Samples of one split, by number. `kind` is "image", "text" or "array"."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def target_names(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Sample: ...
