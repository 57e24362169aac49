"""Numbered slots in a Merkle tree: what a run commits to of every client, told to nobody before it is opened.

leaf  = H(00, tag, run, slot, salt, H(name), public key or zeros, rows, digest of row ids, digest of statistics)
empty = H(02, tag)
node  = H(01, height, left, right)
root  = H(03, run, slots, state, top)

H is sha256. Every field has its width and every kind its length, so that no leaf can pass for a node. Slots are given
out in random order and never again; where their number is no power of two, empty leaves fill the tree.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from hashlib import sha256
from typing import Any, Self, TypeVar, cast

from probekit.errors import InputError, VerificationError

WIDTH = 32
"""Bytes of a digest, a salt, a run's id and a public key."""
NONE = bytes(WIDTH)
"""Where a client has no key, or a run keeps no statistics."""
LARGEST = 2**32
"""More slots, states or rows than this are refused; at most 32 levels."""
TAG = b"probekit.slot.v1"
EMPTY = sha256(b"\x02" + TAG).digest()
_LEAF = struct.Struct(">B16s32sQ32s32s32sQ32s32s")
_ROOT = struct.Struct(">B32sQQ32s")
Kind = TypeVar("Kind")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def height_of(slots: int) -> int:
    """The levels above the leaves of a tree with so many slots."""
    return max(slots - 1, 0).bit_length()


def node(height: int, left: bytes, right: bytes) -> bytes:
    """The digest of two subtrees; leaves stand at height 0."""
    return sha256(bytes((1, height)) + left + right).digest()


@cache
def empty(height: int) -> bytes:
    """The digest of a subtree of empty leaves."""
    return node(height, empty(height - 1), empty(height - 1)) if height else EMPTY


def lift(top: bytes, height: int, to: int) -> bytes:
    """The digest of a tree that grew by empty slots to its right."""
    for level in range(height, to):
        top = node(level + 1, top, empty(level))
    return top


def row_ids_digest(ids: Iterable[str]) -> bytes:
    """One digest of the ids of a client's rows, whatever their order."""
    hasher = sha256(b"probekit.rows.v1")
    for one in sorted(ids):
        text = one.encode()
        hasher.update(len(text).to_bytes(8, "big") + text)
    return hasher.digest()


def name_digest(name: str) -> bytes:
    """The digest that stands for a client's name; only a leaf's salt hides what it is of."""
    return sha256(b"probekit.name.v1" + name.encode()).digest()


class InHex:
    """A flat dataclass of bytes and numbers that goes to JSON and comes from there."""

    @property
    def plain(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {name: part.hex() if isinstance(part, bytes) else part for name, part in vars(self).items()}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """What plain values say, every field there and of its kind; anything else is refused."""
        wanted = {one.name: one.type for one in fields(cast(Any, cls))}
        if not isinstance(plain, Mapping) or set(plain) != set(wanted):
            raise VerificationError(f"A proof's part with {', '.join(wanted)} was wanted. Take the proof as written.")
        found = {
            name: read_hex(value) if wanted[name] == "bytes" else read_number(value) for name, value in plain.items()
        }
        try:
            return cls(**found)
        except InputError as error:
            raise VerificationError(f"{error} Take the proof as written.") from error


@dataclass(frozen=True)
class ClientLeaf(InHex):
    """What a run commits to of one client. Whoever knows all of it, the salt too, can tell that a leaf is this one."""

    run: bytes
    slot: int
    salt: bytes
    name: bytes
    key: bytes
    rows: int
    row_ids: bytes
    statistics: bytes

    @classmethod
    def of(
        cls,
        run: bytes,
        slot: int,
        name: str,
        *,
        rows: int,
        row_ids: bytes = NONE,
        statistics: bytes = NONE,
        key: bytes = NONE,
    ) -> Self:
        """A leaf with a fresh salt."""
        return cls(run, slot, secrets.token_bytes(WIDTH), name_digest(name), key, rows, row_ids, statistics)

    def __post_init__(self) -> None:
        if not len(self.run) == len(self.salt) == len(self.name) == len(self.key) == WIDTH or not (
            len(self.row_ids) == len(self.statistics) == WIDTH
        ):
            raise InputError(f"A leaf is made of parts of {WIDTH} bytes each.")
        if not (0 <= self.slot < LARGEST and 0 <= self.rows < LARGEST):
            raise InputError(f"A leaf has a slot and rows from 0 to 2^32 - 1; found {self.slot} and {self.rows}.")

    @property
    def digest(self) -> bytes:
        """The leaf as it stands in the tree."""
        return sha256(
            _LEAF.pack(
                *(0, TAG, self.run, self.slot, self.salt, self.name, self.key),
                *(self.rows, self.row_ids, self.statistics),
            )
        ).digest()


@dataclass(frozen=True)
class SlotRoot(InHex):
    """What a run commits to in one state: all its leaves, and how many slots were ever given out."""

    run: bytes
    slots: int
    state: int
    top: bytes

    def __post_init__(self) -> None:
        if len(self.run) != WIDTH or len(self.top) != WIDTH:
            raise InputError(f"A root is of a run and a tree, {WIDTH} bytes each.")
        if not (0 < self.slots < LARGEST and 0 < self.state < LARGEST):
            raise InputError(f"A root has slots and a state from 1 on; found {self.slots} and {self.state}.")

    @property
    def height(self) -> int:
        """The levels above the leaves."""
        return height_of(self.slots)

    @property
    def digest(self) -> str:
        """The commitment itself, in hex."""
        return sha256(_ROOT.pack(3, self.run, self.slots, self.state, self.top)).hexdigest()


def climb(leaf: bytes, slot: int, siblings: bytes, *, slots: int) -> bytes:
    """The top that a leaf in this slot leads to; siblings too few or too many are refused, and unknown slots."""
    if not 0 <= slot < slots:
        raise VerificationError(
            f"This proof is of slot {slot}, and the run gave out {slots}. Take the proof as written."
        )
    height = height_of(slots)
    if len(siblings) != WIDTH * height:
        raise VerificationError(
            f"A proof in {slots} slots has {WIDTH * height} bytes; found {len(siblings)}. It was cut short, "
            "lengthened, or belongs to another state. Take the proof as written."
        )
    found = leaf
    for level in range(height):
        other = siblings[WIDTH * level : WIDTH * (level + 1)]
        left, right = (other, found) if slot >> level & 1 else (found, other)
        found = node(level + 1, left, right)
    return found


class SlotTree:
    """All leaves of a run, changed one at a time; empty slots have the leaf `EMPTY`."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not leaves:
            raise InputError("A run without clients has nothing to commit to.")
        level, height = list(leaves), 0
        self._levels = [level]
        while len(level) > 1:
            if len(level) % 2:
                level = [*level, empty(height)]
            height += 1
            head = bytes((1, height))
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [sha256(head + left + right).digest() for left, right in pairs]
            self._levels.append(level)

    @property
    def slots(self) -> int:
        """How many slots were given out."""
        return len(self._levels[0])

    @property
    def top(self) -> bytes:
        """The digest of the whole tree."""
        return self._levels[-1][0]

    def leaf(self, slot: int) -> bytes:
        """What stands in a slot."""
        return self._levels[0][slot]

    def siblings(self, slot: int) -> bytes:
        """What leads from a slot to the top, from below."""
        if not 0 <= slot < self.slots:
            raise InputError(f"There is no slot {slot}: {self.slots} were given out.")
        found = []
        for height, level in enumerate(self._levels[:-1]):
            place = slot >> height ^ 1
            found.append(level[place] if place < len(level) else empty(height))
        return b"".join(found)

    def put(self, slot: int, leaf: bytes) -> None:
        """Let another leaf stand in a slot."""
        if not 0 <= slot < self.slots:
            raise InputError(f"There is no slot {slot}: {self.slots} were given out.")
        self._levels[0][slot] = leaf
        for height in range(1, len(self._levels)):
            below, slot = self._levels[height - 1], slot >> 1
            right = below[2 * slot + 1] if 2 * slot + 1 < len(below) else empty(height - 1)
            self._levels[height][slot] = node(height, below[2 * slot], right)

    def grown(self, slots: int) -> SlotTree:
        """A copy of the tree with empty slots after its own, so many in all."""
        if slots > self.slots:
            return SlotTree([*self._levels[0], *[EMPTY] * (slots - self.slots)])
        copy = object.__new__(SlotTree)
        copy._levels = [list(level) for level in self._levels]
        return copy


def read_hex(value: Any, width: int | None = None) -> bytes:
    """Bytes from lower-case hex, of this width."""
    if not isinstance(value, str) or not _HEX.fullmatch(value) or (width is not None and len(value) != 2 * width):
        raise VerificationError(f"Hex digits were wanted; found {value!r:.40}. Take the proof as written.")
    return bytes.fromhex(value)


def read_number(value: Any) -> int:
    """A number that a proof may have: an integer from 0 to 2^32 - 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LARGEST:
        raise VerificationError(
            f"A number from 0 to 2^32 - 1 was wanted; found {value!r:.40}. Take the proof as written."
        )
    return value
