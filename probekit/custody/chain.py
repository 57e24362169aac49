"""A ledger's chain without its entries: each link is H(previous, H(entry)). An anchor is a link noted elsewhere.

Rollback, and two histories, are detected only by somebody who holds an anchor from elsewhere: an operator can write
any chain anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

from probekit.custody.slots import NONE, WIDTH, InHex, read_hex
from probekit.errors import InputError, VerificationError

KIND = b"probekit.link.v1"


def link(previous: bytes, body: bytes) -> bytes:
    """The digest of an entry from that of the one before and that of its own text."""
    if len(previous) != WIDTH or len(body) != WIDTH:
        raise InputError(f"A link is made of two digests of {WIDTH} bytes.")
    return sha256(KIND + previous + body).digest()


@dataclass(frozen=True)
class Anchor(InHex):
    """The digest of a ledger's entry, and its number."""

    number: int
    digest: bytes

    def __post_init__(self) -> None:
        if len(self.digest) != WIDTH:
            raise InputError(f"An anchor has a digest of {WIDTH} bytes; found {len(self.digest)}.")

    def __str__(self) -> str:
        return f"{self.number}:{self.digest.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The anchor in a text, written NUMBER:DIGEST."""
        number, colon, digest = text.strip().partition(":")
        if not colon or not number.isdecimal() or not number.isascii() or len(number) > len(str(2**32)):
            raise InputError(f"An anchor is written NUMBER:DIGEST; found {text!r:.80}.")
        try:
            return cls(int(number), read_hex(digest, WIDTH))
        except VerificationError as error:
            raise InputError(f"An anchor's digest has {2 * WIDTH} hex digits; found {digest!r:.80}.") from error


BEGINNING = Anchor(0, NONE)
"""What stands before the first entry."""


@dataclass(frozen=True)
class Chain:
    """The entries after an anchor, each by the digest of its text."""

    start: Anchor
    bodies: tuple[bytes, ...]

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """The digest of the start and of every entry after it."""
        found = [self.start.digest]
        for body in self.bodies:
            found.append(link(found[-1], body))
        return tuple(found)

    @property
    def tip(self) -> Anchor:
        """The last entry."""
        return Anchor(self.start.number + len(self.bodies), self.digests[-1])

    def demand(self, anchors: Iterable[Anchor]) -> Self:
        """Refuse anchors that are not on this chain, or beyond its end."""
        for one in anchors:
            place = one.number - self.start.number
            if place < 0:
                raise VerificationError(
                    f"Anchor {one.number} is older than this chain, which begins at {self.start.number}."
                )
            if place >= len(self.digests):
                raise VerificationError(
                    f"Anchor {one.number} is beyond the end of this chain, entry {self.tip.number}: entries were taken "
                    "away, or the run was rolled back."
                )
            if self.digests[place] != one.digest:
                raise VerificationError(
                    f"Entry {one.number} is not the one that was noted: the ledger was written anew, or is "
                    "another run's."
                )
        return self

    @property
    def plain(self) -> dict[str, Any]:
        """The chain as JSON has it."""
        return {"start": self.start.plain, "bodies": [one.hex() for one in self.bodies]}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """The chain that plain values say; anything else is refused."""
        if not isinstance(plain, Mapping) or set(plain) != {"start", "bodies"} or not isinstance(plain["bodies"], list):
            raise VerificationError("A chain with start and bodies was wanted. Take the proof as written.")
        return cls(Anchor.from_plain(plain["start"]), tuple(read_hex(one, WIDTH) for one in plain["bodies"]))
