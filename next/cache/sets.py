"""Sets: an ordered list of samples with labels and columns, and the name it was saved under.

Two names may share their columns' file; the source, the backbone's name and the skipped samples are
kept beside each name, as they were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import TEXT, Ids, Json, Texts
from probekit.cache.tensors import REPAIR, Blocks, checked_digest, map_tensors, write_tensors
from probekit.embeddings import EmbeddingSet, Encoding, Rows, Skipped
from probekit.errors import CorruptError, InputError
from probekit.files import read_json

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
TEXT_PREFIX = "text:"
ENDS_PREFIX = "ends:"
"""A column of texts is two tensors: the texts' bytes, and where each text ends."""


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(
            "A set's name has letters, digits, dots, dashes and underscores, and begins with a "
            f"letter or digit; found {name!r}. Choose another name (--name)."
        )
    return name


class StoredColumns(Mapping[str, Texts]):
    """Columns of texts, each decoded when it is first read."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        names = [name for name in tensors if name.startswith(TEXT_PREFIX)]
        self._names = [name.removeprefix(TEXT_PREFIX) for name in names]
        self._tensors = tensors
        self._decoded: dict[str, Texts] = {}

    def __getitem__(self, name: str) -> Texts:
        if name not in self._decoded:
            content = self._tensors[TEXT_PREFIX + name].tobytes()
            ends = self._tensors[ENDS_PREFIX + name].tolist()
            try:
                values = [content[start:end].decode() for start, end in pairwise([0, *ends])]
            except UnicodeDecodeError as error:
                raise CorruptError(f"Column {name!r} is damaged ({error}). {REPAIR}") from error
            self._decoded[name] = np.array(values, dtype=TEXT)
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
    def of(cls, embeddings: EmbeddingSet, columns: str) -> SetDescription:
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

    @property
    def labels(self) -> str:
        """The kind of labels, in words."""
        if self.target_names:
            return f"{len(self.target_names)} targets"
        return f"{len(self.class_names)} classes" if self.class_names else "none"

    def to_dict(self) -> dict[str, Json]:
        return {**asdict(self), "encoding_digest": self.encoding.digest}


def read_description(path: Path) -> SetDescription:
    """The description in a file; anything but what `save` writes raises CorruptError."""
    value = read_json(path)
    try:
        encoding = Encoding.from_dict(value["encoding"])
        if encoding.digest != value.pop("encoding_digest"):
            raise ValueError(f"its encoding has the digest {encoding.digest[:12]}")
        checked_digest(value["columns"], path)
        skipped = tuple(Skipped(**sample) for sample in value["skipped"])
        names = {key: tuple(value[key]) for key in ("class_names", "target_names")}
        sizes = {key: int(value[key]) for key in ("rows", "width")}
        changed = {"encoding": encoding, "skipped": skipped, **names, **sizes}
        return SetDescription(**{**value, **changed})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"{path} must describe a set ({error!r}). {REPAIR}") from error


def write_columns(folder: Path, embeddings: EmbeddingSet) -> str:
    """Write ids, labels or targets, weights and columns; returns the file's name."""
    numbers = {
        "labels": embeddings.labels,
        "targets": embeddings.targets,
        "weights": embeddings.weights,
    }
    tensors: dict[str, NDArray[Any]] = {
        name: np.asarray(array) for name, array in numbers.items() if array is not None
    }
    contents = {}
    for name, column in embeddings.columns.items():
        encoded = [text.encode() for text in column.tolist()]
        tensors[ENDS_PREFIX + name] = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        contents[TEXT_PREFIX + name] = np.frombuffer(b"".join(encoded), np.uint8)
    tensors |= {"ids": embeddings.ids, **contents}
    blocks = {name: Blocks.of(array) for name, array in tensors.items()}
    return write_tensors(folder, blocks, {"rows": len(embeddings)})


def read_ids(path: Path) -> Ids:
    """The ids in a file of columns."""
    ids = map_tensors(path)[0].get("ids")
    if ids is None or ids.ndim != 2 or ids.shape[1] != 32:
        raise CorruptError(f"{path} must hold ids (n, 32). {REPAIR}")
    return ids


def assemble(description: SetDescription, path: Path, rows: Rows) -> EmbeddingSet:
    """The set that a description and a file of columns stand for."""
    tensors = map_tensors(path)[0]
    try:
        return EmbeddingSet(
            rows=rows,
            ids=tensors["ids"],
            encoding=description.encoding,
            labels=tensors.get("labels"),
            class_names=description.class_names,
            targets=tensors.get("targets"),
            target_names=description.target_names,
            weights=tensors.get("weights"),
            columns=StoredColumns(tensors),
            source=description.source,
            skipped=description.skipped,
        )
    except (KeyError, InputError) as error:
        raise CorruptError(f"{path} must fit its description ({error}). {REPAIR}") from error
