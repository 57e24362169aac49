"""Identity: the one JSON text of a value, digests, and what determines the numbers of an embedding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError

SCHEMA = 1
"""The version of our own rules for identity and storage; raised when equal specs would mean other numbers."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
DTYPES = ("float32", "float16", "float64")
LONGEST_REPR = 160


def canonical(value: Json) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Json) -> str:
    """The sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The same array, read-only."""
    array.setflags(write=False)
    return array


def one_line(value: Any) -> str:
    """A repr for values of many numbers: arrays by type and shape, the long by its length, nothing empty."""

    def short(part: Any) -> str:
        if hasattr(part, "shape"):
            return f"{part.dtype}{list(part.shape)}"
        if hasattr(part, "__len__") and not isinstance(part, str):
            return f"{len(part)} entries"
        return text if len(text := repr(part)) <= LONGEST_REPR else type(part).__name__

    parts = ((one.name, getattr(value, one.name)) for one in fields(value))
    empty = (None, "", ())
    given = (
        (name, part)
        for name, part in parts
        if not (isinstance(part, dict) and not part)
        if not any(part is one for one in empty)
    )
    shown = [f"{name}={short(part)}" for name, part in given]
    return f"{type(value).__name__}({', '.join(shown)})"


@dataclass(frozen=True)
class EncodingSpec:
    """What determines the numbers of an embedding, and nothing else. Equal specs have equal digests.

    backbone: the name a person knows; it may hold a path or a movable tag, so it is not part of the identity.
    weights: the sha256 of architecture and weights.
    preprocessing: all that determines what the model sees of a sample, in plain values.
    view: which of the model's tensors is the embedding.
    dtype, precision: how rows are stored, and what the model computed in.
    trigger: the name of what was pasted on every picture.
    """

    backbone: str = field(compare=False)
    weights: str
    preprocessing: Mapping[str, Json]
    view: str
    dtype: str = "float32"
    precision: str = "float32"
    trigger: str | None = None
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"Cannot store embeddings as {self.dtype!r}: choose one of {', '.join(DTYPES)}.")
        object.__setattr__(self, "preprocessing", json.loads(canonical(self.preprocessing)))

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def identity(self) -> dict[str, Json]:
        """The fields that the digest covers."""
        return {name: value for name, value in asdict(self).items() if name != "backbone"}

    @property
    def digest(self) -> str:
        """The sha256 that names this spec."""
        return digest(self.identity)

    def untriggered(self) -> Self:
        """The same encoding of the pictures as they are, without a trigger pasted on them."""
        return replace(self, trigger=None)


def content_id(kind: str, *parts: bytes) -> str:
    """The id of a sample: the sha256 of its kind and content, each part preceded by its length."""
    hasher = hashlib.sha256(kind.encode() + b"\0")
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()
