"""Questions to clients and their answers: as values, and as the bytes in which they travel.

A message is 8 bytes with the length of its header, the header (canonical JSON: a note, and name, type and shape of
every array), then the arrays one after the other. A symmetric matrix travels as its lower triangle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import CorruptError
from probekit.values import Json, canonical

LENGTH = 8
MOST_HEADER = 1 << 26
TYPES = ("<f8", "<f4", "<i8", "|u1", "|b1")

Arrays = Mapping[str, NDArray[Any]]


def encode(note: Mapping[str, Json], arrays: Arrays, symmetric: tuple[str, ...] = ()) -> bytes:
    """The one way to write a note and arrays as bytes."""
    head = _header(note, arrays, symmetric)
    parts = [_packed(array, name in symmetric).tobytes() for name, array in sorted(arrays.items())]
    return b"".join([len(head).to_bytes(LENGTH, "little"), head, *parts])


def encoded_size(note: Mapping[str, Json], arrays: Arrays, symmetric: tuple[str, ...] = ()) -> int:
    """The length of those bytes, without making them."""
    length = LENGTH + len(_header(note, arrays, symmetric))
    for name, array in arrays.items():
        rows = array.shape[-1] if name in symmetric else 0
        stored = array.size // rows**2 * (rows * (rows + 1) // 2) if rows else array.size
        length += stored * _type(array).itemsize
    return length


def decode(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The note and the arrays in bytes; anything else than a whole message is refused."""
    try:
        size = int.from_bytes(content[:LENGTH], "little")
        if len(content) < LENGTH or size > min(MOST_HEADER, len(content)):
            raise ValueError("it is cut short")
        header = json.loads(content[LENGTH : LENGTH + size])
        arrays, place = {}, LENGTH + size
        for name, kind, shape, packed in header["arrays"]:
            if kind not in TYPES or any(type(side) is not int or side < 0 for side in shape):
                raise ValueError(f"{name} has type {kind!r} and shape {shape!r}")
            count = int(np.prod(shape, dtype=object))
            if packed:
                count = count // shape[-1] ** 2 * (shape[-1] * (shape[-1] + 1) // 2)
            end = place + count * np.dtype(kind).itemsize
            if end > len(content):
                raise ValueError(f"{name} is cut short")
            found = np.frombuffer(content[place:end], kind)
            arrays[name] = _unpacked(found, tuple(shape)) if packed else found.reshape(shape)
            place = end
        if place != len(content):
            raise ValueError(f"{len(content) - place} bytes follow its end")
        note = header["note"]
        if not isinstance(note, dict):
            raise ValueError("it has no note")
    except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError, RecursionError) as error:
        raise CorruptError(f"This is not a message: {error}. Ask for it again.") from error
    return note, arrays


def _header(note: Mapping[str, Json], arrays: Arrays, symmetric: tuple[str, ...]) -> bytes:
    listed: list[Json] = [
        [name, _type(array).str, list(array.shape), name in symmetric] for name, array in sorted(arrays.items())
    ]
    return canonical({"note": dict(note), "arrays": listed}).encode()


def _type(array: NDArray[Any]) -> np.dtype[Any]:
    return array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype


def _packed(array: NDArray[Any], symmetric: bool) -> NDArray[Any]:
    """The array in its own type and order, or its lower triangle."""
    array = np.asarray(array, _type(array), order="C")
    return array[..., *np.tril_indices(array.shape[-1])] if symmetric else array


def _unpacked(flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    low, high = np.tril_indices(shape[-1])
    matrix = np.empty(shape, flat.dtype)
    parts = flat.reshape(*shape[:-2], len(low))
    matrix[..., low, high] = parts
    matrix[..., high, low] = parts
    return matrix


@dataclass(frozen=True)
class Selection:
    """Which of its rows a client answers for: its own, only those with these sample ids, or all but these."""

    kind: str = "own"
    ids: frozenset[str] = frozenset()

    @property
    def plain(self) -> Json:
        """In plain values."""
        return [self.kind, sorted(self.ids)]


OWN = Selection()


@dataclass(frozen=True, eq=False)
class Ask:
    """A question. `problem` is the digest of what is trained; `job` and `number` say where in which work it comes."""

    kind: str
    arrays: Arrays = field(default_factory=dict)
    plan: Mapping[str, Json] = field(default_factory=dict)
    job: str = ""
    number: int = 0
    problem: str = ""
    rows: Selection = OWN
    trigger: str | None = None
    precision: str = "float64"

    @property
    def note(self) -> dict[str, Json]:
        """All but the arrays, in plain values."""
        return {
            "kind": self.kind,
            "plan": dict(self.plan),
            "job": self.job,
            "number": self.number,
            "problem": self.problem,
            "rows": self.rows.plain,
            "trigger": self.trigger,
            "precision": self.precision,
        }

    @cached_property
    def encoded(self) -> bytes:
        """The question as bytes."""
        return encode(self.note, self.arrays)

    @property
    def size(self) -> int:
        """How many bytes that are."""
        return encoded_size(self.note, self.arrays)

    @cached_property
    def digest(self) -> str:
        """Its identity: the sha256 of its bytes."""
        return hashlib.sha256(self.encoded).hexdigest()

    @classmethod
    def decode(cls, content: bytes) -> Ask:
        """The question in bytes."""
        note, arrays = decode(content)
        try:
            kind, ids = note.pop("rows")
            return cls(arrays=arrays, rows=Selection(kind, frozenset(ids)), **note)
        except (TypeError, ValueError, KeyError) as error:
            raise CorruptError(f"This is not a question: {error}. Ask again.") from error


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client says: sums over its rows, how many these are, and plain numbers. Never a mean."""

    client: str
    count: int
    arrays: Arrays = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    symmetric: tuple[str, ...] = ()

    @property
    def note(self) -> dict[str, Json]:
        """All but the arrays."""
        return {"client": self.client, "count": self.count, "values": dict(self.values)}

    def encode(self, ask: str = "") -> bytes:
        """The answer as bytes; it names the digest of its question."""
        return encode({**self.note, "ask": ask}, self.arrays, self.symmetric)

    @property
    def size(self) -> int:
        """The length of its bytes, whatever the question's digest."""
        return encoded_size({**self.note, "ask": "0" * 64}, self.arrays, self.symmetric)

    @classmethod
    def decode(cls, content: bytes) -> tuple[Answer, str]:
        """The answer in bytes, and the digest of its question."""
        note, arrays = decode(content)
        try:
            asked = str(note.pop("ask"))
            return cls(arrays=arrays, **note), asked
        except (TypeError, KeyError) as error:
            raise CorruptError(f"This is not an answer: {error}. Ask again.") from error
