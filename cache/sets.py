"""Sets: an ordered list of samples with labels and columns, and the name it was saved under.

Two names may share their columns' file; the source, the backbone's name and the skipped samples are
kept beside each name, as they were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from probekit.arrays import TEXT, Ids, Texts
from probekit.cache.tensors import DIGEST, REPAIR, map_tensors, write_tensors
from probekit.embeddings import EmbeddingSet, Encoding, Rows, Skipped
from probekit.errors import CorruptError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
NUMBERS = ("labels", "targets", "weights")
TEXT_PREFIX = "text:"
"""A column of texts is their JSON, as bytes."""


@dataclass(frozen=True)
class SetDescription:
    """What stands under a set's name.

    digest: of the EmbeddingSet. columns: the sha256 of the file with its ids, labels and columns.
    """

    digest: str
    columns: str
    encoding: Encoding
    rows: int
    width: int
    class_names: tuple[str, ...]
    target_names: tuple[str, ...]
    source: str
    skipped: tuple[Skipped, ...]

    @classmethod
    def of(cls, embeddings: EmbeddingSet, columns: str) -> Self:
        return cls(
            digest=embeddings.digest,
            columns=columns,
            encoding=embeddings.encoding,
            rows=len(embeddings),
            width=embeddings.width,
            class_names=embeddings.class_names,
            target_names=embeddings.target_names,
            source=embeddings.source,
            skipped=embeddings.skipped,
        )

    def __post_init__(self) -> None:
        if not DIGEST.fullmatch(self.columns):
            raise ValueError(f"columns must be a sha256, not {self.columns!r}")

    @property
    def labels(self) -> str:
        """The kind of labels, in words."""
        if self.target_names:
            return f"{len(self.target_names)} targets"
        return f"{len(self.class_names)} classes" if self.class_names else "none"


def write_columns(folder: Path, embeddings: EmbeddingSet) -> str:
    """Write ids, labels or targets, weights and columns; returns the file's name."""
    numbers = {name: getattr(embeddings, name) for name in NUMBERS}
    tensors = {name: np.asarray(array) for name, array in numbers.items() if array is not None}
    tensors["ids"] = embeddings.ids
    for name, column in embeddings.columns.items():
        content = msgspec.json.encode(column.tolist())
        tensors[TEXT_PREFIX + name] = np.frombuffer(content, np.uint8)
    return write_tensors(folder, tensors, {"rows": len(embeddings)})


def read_ids(path: Path) -> Ids:
    """The ids in a file of columns."""
    ids = map_tensors(path)[0].get("ids")
    if ids is None or ids.ndim != 2 or ids.shape[1] != 32:
        raise CorruptError(f"{path} must hold ids (n, 32). {REPAIR}")
    return ids


class StoredColumns(Mapping[str, Texts]):
    """Columns of texts that are decoded when one is first asked for."""

    def __init__(self, path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._path = path
        self._encoded = {
            name.removeprefix(TEXT_PREFIX): tensor
            for name, tensor in tensors.items()
            if name.startswith(TEXT_PREFIX)
        }
        self._decoded: dict[str, Texts] = {}

    def __len__(self) -> int:
        return len(self._encoded)

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoded)

    def __getitem__(self, name: str) -> Texts:
        if name not in self._decoded:
            try:
                values = msgspec.json.decode(self._encoded[name].data, type=list[str])
            except msgspec.DecodeError as error:
                raise CorruptError(f"{self._path} cannot be read ({error}). {REPAIR}") from error
            self._decoded[name] = np.array(values, TEXT)
        return self._decoded[name]


def assemble(description: SetDescription, path: Path, rows: Rows | None = None) -> EmbeddingSet:
    """The set that a description and a file of columns stand for; zeros stand for absent rows."""
    tensors = map_tensors(path)[0]
    if rows is None:
        rows = np.broadcast_to(np.uint8(0), (description.rows, description.width))
    try:
        return EmbeddingSet(
            rows=rows,
            ids=tensors["ids"],
            encoding=description.encoding,
            class_names=description.class_names,
            target_names=description.target_names,
            columns=StoredColumns(path, tensors),
            source=description.source,
            skipped=description.skipped,
            **{name: tensors.get(name) for name in NUMBERS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{path} must fit its description ({error}). {REPAIR}") from error
