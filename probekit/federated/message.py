"""Questions to clients and their answers: as values, and as the bytes in which they travel.

A message is 8 bytes with the length of its header, the header (canonical JSON: a note, and name, type and shape of
every array), the arrays one after the other, and the sha256 of all that. A symmetric matrix travels as its lower
triangle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import CorruptError, InputError
from probekit.values import Json, canonical

LENGTH = 8
CHECKSUM = hashlib.sha256().digest_size
MOST_HEADER = 1 << 26
TYPES = ("<f8", "<f4", "<i8", "|u1", "|b1")

Arrays = Mapping[str, NDArray[Any]]


def encode(note: Mapping[str, Json], arrays: Arrays, symmetric: tuple[str, ...] = ()) -> bytes:
    """The one way to write a note and arrays as bytes."""
    head = _header(note, arrays, symmetric)
    parts = [_packed(array, name in symmetric).tobytes() for name, array in sorted(arrays.items())]
    content = b"".join([len(head).to_bytes(LENGTH, "little"), head, *parts])
    return content + hashlib.sha256(content).digest()


def encoded_size(note: Mapping[str, Json], arrays: Arrays, symmetric: tuple[str, ...] = ()) -> int:
    """The length of those bytes, without making them."""
    sizes = (_stored(array.shape, name in symmetric) * _type(array).itemsize for name, array in arrays.items())
    return LENGTH + len(_header(note, arrays, symmetric)) + sum(sizes) + CHECKSUM


def decode(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]], tuple[str, ...]]:
    """The note, the arrays and the names of those sent as triangles; anything else than a whole message is refused."""
    content, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    try:
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError("its bytes are not those that were sent")
        size = int.from_bytes(content[:LENGTH], "little")
        if len(content) < LENGTH or size > min(MOST_HEADER, len(content)):
            raise ValueError("it is cut short")
        header = json.loads(content[LENGTH : LENGTH + size])
        arrays, place = {}, LENGTH + size
        for name, kind, shape, packed in header["arrays"]:
            square = not packed or (len(shape) > 1 and shape[-1] == shape[-2])
            if kind not in TYPES or not square or any(type(side) is not int or side < 0 for side in shape):
                raise ValueError(f"{name} has type {kind!r} and shape {shape!r}")
            end = place + _stored(shape, packed) * np.dtype(kind).itemsize
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
    return note, arrays, tuple(name for name, _, _, packed in header["arrays"] if packed)


def _stored(shape: Sequence[int], packed: bool) -> int:
    """How many numbers an array is sent as."""
    sides, rows = (shape[:-2], shape[-1]) if packed else (shape, 1)
    return math.prod(sides) * (rows * (rows + 1) // 2)


def _header(note: Mapping[str, Json], arrays: Arrays, symmetric: tuple[str, ...]) -> bytes:
    each = sorted(arrays.items())
    listed: Any = [[name, _type(array).str, list(array.shape), name in symmetric] for name, array in each]
    return canonical({"note": dict(note), "arrays": listed}).encode()


def _type(array: NDArray[Any]) -> np.dtype[Any]:
    found = array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype
    if found.str not in TYPES:
        raise InputError(f"Arrays of type {array.dtype} are not sent. Take one of {', '.join(TYPES)}.")
    return found


def _settled(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays as a decoded message has them: read-only and in C order, on which the bits of products hang."""
    found = {name: np.asarray(array, order="C").view() for name, array in arrays.items()}
    for array in found.values():
        array.flags.writeable = False
    return found


def _fields(note: dict[str, Any], kinds: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The note, if it has these fields and no others, each of its type."""
    if note.keys() != kinds.keys():
        raise CorruptError(f"This is not {what}: it has {', '.join(note) or 'no fields'}. Ask again.")
    for name, value in note.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise CorruptError(f"This is not {what}: its {name} is {str(value)[:40]!r}. Ask again.")
    return note


def _packed(array: NDArray[Any], symmetric: bool) -> NDArray[Any]:
    """The array in its own type and order, or its lower triangle."""
    array = np.asarray(array, _type(array), order="C")
    return array[..., *np.tril_indices(array.shape[-1])] if symmetric else array


def _unpacked(flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    low, high = np.tril_indices(shape[-1])
    matrix = np.empty(shape, flat.dtype)
    matrix[..., low, high] = matrix[..., high, low] = flat.reshape(*shape[:-2], len(low))
    return matrix


SELECTIONS = ("own", "only", "all-but")


@dataclass(frozen=True)
class Selection:
    """Which of its rows a client answers for: its own, only those with these sample ids, or all but these."""

    kind: str = "own"
    ids: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.kind not in SELECTIONS:
            raise InputError(f"Rows are selected by one of {', '.join(SELECTIONS)}; found {self.kind!r}.")


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", _settled(self.arrays))

    @property
    def note(self) -> dict[str, Json]:
        """All but the arrays, in plain values."""
        given = {name: getattr(self, name) for name in ASK_FIELDS}
        return {**given, "plan": dict(self.plan), "rows": [self.rows.kind, sorted(self.rows.ids)]}

    @cached_property
    def encoded(self) -> bytes:
        """The question as bytes."""
        return encode(self.note, self.arrays)

    @property
    def size(self) -> int:
        """How many bytes that are, whatever the job is called: the same work counts alike however it is carried."""
        return encoded_size({**self.note, "job": ""}, self.arrays)

    @cached_property
    def digest(self) -> str:
        """Its identity: the sha256 of its bytes."""
        return hashlib.sha256(self.encoded).hexdigest()

    @classmethod
    def decode(cls, content: bytes) -> Ask:
        """The question in bytes."""
        note, arrays, _ = decode(content)
        found = _fields(note, ASK_FIELDS, "a question")
        try:
            kind, ids = found.pop("rows")
            return cls(arrays=arrays, rows=Selection(kind, frozenset(ids)), **found)
        except (TypeError, ValueError) as error:
            raise CorruptError(f"This is not a question: {error}. Ask again.") from error


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client says: sums over its rows, how many these are, and plain numbers. Never a mean."""

    client: str
    count: int
    arrays: Arrays = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    symmetric: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", _settled(self.arrays))

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
        note, arrays, symmetric = decode(content)
        found = _fields(note, ANSWER_FIELDS, "an answer")
        if not all(isinstance(value, int | float) for value in found["values"].values()):
            raise CorruptError("This is not an answer: a value is no number. Ask again.")
        return cls(found["client"], found["count"], arrays, found["values"], symmetric), found["ask"]


TEXTS: dict[str, Any] = dict.fromkeys(("kind", "job", "problem", "precision"), str)
ASK_FIELDS: dict[str, Any] = {**TEXTS, "plan": dict, "number": int, "rows": list, "trigger": str | None}
ANSWER_FIELDS: dict[str, Any] = {"client": str, "count": int, "values": dict, "ask": str}
