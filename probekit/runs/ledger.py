"""A run's ledger: JSON lines that are only ever added, each holding the digest of the one before.

What could give somebody forgotten away stands there sealed; the openings are files of their own, which purge erases.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probekit.custody.chain import Anchor, link
from probekit.custody.seals import Openings
from probekit.errors import InputError, VerificationError
from probekit.files import open_in, parsed, read_limited, storing, sync_folder
from probekit.runs.openings import (
    OPENINGS,
    drop_numbers,
    new_openings,
    openings_path,
    read_openings,
    sealed,
    unsealed,
    write_openings,
)
from probekit.values import Json, canonical, digest

DISTRUST = "Do not trust this run: restore its ledger from a copy or train again."
MOST_BYTES = 2**26
"""The size of a ledger that is read at all."""
FIRST = "0" * 64
"""What stands for the entry before the first."""
UNLEARN, PURGE = "unlearn", "purge"
FORMAT = 2
"""Format 1, whose digest is that of the whole entry, is still read."""


@dataclass(frozen=True)
class Event:
    """Something done to a run: what, from which digests, and whatever else should be remembered of it."""

    action: str
    inputs: Mapping[str, Json] = field(default_factory=dict)
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class LedgerEntry:
    """An event with what came of it, in its place in the chain."""

    number: int
    time: str
    action: str
    inputs: Mapping[str, Json]
    outputs: Mapping[str, Json]
    details: Mapping[str, Json]
    previous: str
    format: int = 1
    openings: Openings = field(default_factory=dict)

    @property
    def stored(self) -> dict[str, Any]:
        """All that it says, as it stands in the file: sealed where it is to be."""
        said = sealed(vars(self), self.openings)
        for name in ("openings", *(["format"] if self.format == 1 else [])):
            del said[name]
        return said

    @property
    def body(self) -> str:
        """The sha256 of all that it says itself."""
        return digest({name: value for name, value in self.stored.items() if name != "previous"})

    @property
    def digest(self) -> str:
        """Its link in the chain: a sha256 of the one before and of the body, so that bodies need not be shown."""
        if self.format == 1:
            return digest(self.stored)
        return link(bytes.fromhex(self.previous), bytes.fromhex(self.body)).hex()

    @property
    def anchor(self) -> Anchor:
        """What somebody may note of it, to hold the ledger to it later."""
        return Anchor(self.number, bytes.fromhex(self.digest))

    @property
    def state(self) -> int:
        """The number of the state that the run was in afterwards."""
        number: Any = self.outputs["state"]
        return int(number)

    @property
    def line(self) -> bytes:
        """The entry as it stands in the file."""
        return canonical({**self.stored, "digest": self.digest}).encode() + b"\n"


def follow(before: LedgerEntry | None, event: Event, outputs: Mapping[str, Json]) -> LedgerEntry:
    """The entry that comes after another one."""
    number, previous = (before.number + 1, before.digest) if before else (1, FIRST)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    openings = new_openings({"inputs": event.inputs, "outputs": outputs, "details": event.details})
    return LedgerEntry(number, now, event.action, event.inputs, outputs, event.details, previous, FORMAT, openings)


def append(path: Path, entry: LedgerEntry) -> None:
    """Add a line; after this returns, no crash loses it."""
    line = entry.line
    if path.exists() and path.stat().st_size + len(line) > MOST_BYTES:
        raise InputError(f"{path} would exceed the {MOST_BYTES} bytes that are read. Train a new run from here on.")
    with storing(path.parent):
        write_openings(openings_path(path.parent, entry.number), entry.openings)
        with open_in(path.parent, path, "ab") as handle:
            handle.write(line)
            handle.flush()
            os.fsync(handle.fileno())
        sync_folder(path.parent)


def read(path: Path, tip: str) -> list[LedgerEntry]:
    """The entries up to the one with this digest, each checked against its own digest and the one before."""
    return LedgerFile(path).entries(tip)


def first(path: Path) -> LedgerEntry:
    """The first entry."""
    for entry, _, _ in _chain(path):
        return entry
    raise VerificationError(f"{path} has no entry. {DISTRUST}")


class LedgerFile:
    """A ledger on disk, which is read again only where its files changed since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None
        self._entries: list[LedgerEntry] = []
        self._size = 0
        self._beyond: LedgerEntry | None = None

    def entries(self, tip: str, *, locked: bool = False) -> list[LedgerEntry]:
        """The entries up to the one with this digest. `locked`: nobody else can have changed it since."""
        known = self._entries and self._entries[-1].digest == tip
        if not known or not (locked or self._seen == self._stamp()):
            self._scan(tip)
        return list(self._entries)

    def beyond(self, tip: str) -> LedgerEntry | None:
        """The entry after the one with this digest, if a process was killed between writing and using it."""
        self.entries(tip)
        return self._beyond

    def cut(self, tip: str) -> None:
        """Drop what a killed process left after the entry with this digest."""
        if self._beyond is not None and self._beyond.digest == tip:
            self._known([*self._entries, self._beyond], self._size + len(self._beyond.line), None)
        self.entries(tip, locked=True)
        drop_numbers(self.path.parent / OPENINGS, len(self._entries))
        if self.path.stat().st_size > self._size:
            with storing(self.path.parent), self.path.open("r+b") as handle:
                handle.truncate(self._size)
                os.fsync(handle.fileno())

    def add(self, entry: LedgerEntry) -> LedgerEntry:
        """Add a line after the last entry that is known."""
        append(self.path, entry)
        self._known([*self._entries, entry], self._size + len(entry.line), None)
        return entry

    def forget(self) -> None:
        """Read it again next time: openings were erased."""
        self._entries = []

    def _scan(self, tip: str) -> None:
        seen, entries, size, chain = self._stamp(), list[LedgerEntry](), 0, _chain(self.path)
        for entry, own, length in chain:
            entries.append(entry)
            size += length
            if own == tip:
                beyond = None
                with suppress(VerificationError):  # a killed process may have left anything
                    beyond = next(chain, (None,))[0]
                return self._known(entries, size, beyond, seen)
        raise VerificationError(
            f"{self.path} has {len(entries)} entries and none is {tip[:12]}, the last one that this run knows of. "
            f"{DISTRUST}"
        )

    def _known(self, entries: list[LedgerEntry], size: int, beyond: LedgerEntry | None, seen: object = None) -> None:
        self._seen, self._entries, self._size, self._beyond = seen or self._stamp(), entries, size, beyond

    def _stamp(self) -> object:
        """What changes with the file and its openings."""
        places = [place.stat() for place in (self.path, self.path.parent / OPENINGS) if place.exists()]
        return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in places]


def _chain(path: Path) -> Iterator[tuple[LedgerEntry, str, int]]:
    """Each entry, its digest and the bytes that its line takes; a last line cut short is left out."""
    try:
        lines = read_limited(path, MOST_BYTES).split(b"\n")[:-1]
    except ValueError as error:
        raise VerificationError(f"{path} is no ledger of a run: {error}. {DISTRUST}") from None
    except FileNotFoundError:
        raise VerificationError(f"{path} is missing: nothing proves what was done in this run. {DISTRUST}") from None
    previous = FIRST
    for number, line in enumerate(lines, start=1):
        try:
            fields = parsed(line)
            own = fields.pop("digest")
            where = openings_path(path.parent, number)
            openings = read_openings(where)
            entry = LedgerEntry(**unsealed(fields, openings, where), openings=openings)
            # the very bytes: other spellings of the same entry (spaces, escapes) are not those that were written
            written = (entry.line, entry.number, entry.previous) == (line + b"\n", number, previous) and _typed(entry)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            written = False
        if not written:
            raise VerificationError(
                f"Entry {number} of {path} is not the one that was written, or one before it is missing. {DISTRUST}"
            )
        previous = own  # as the entry has it: the line is the one that it writes
        yield entry, own, len(line) + 1


def entry_of(stored: Any) -> LedgerEntry:
    """The entry that stood so in a ledger, with its seals; what is no entry is refused."""
    try:
        entry = LedgerEntry(**stored)
        if entry.format != FORMAT or entry.stored != stored or not _typed(entry) or type(entry.number) is not int:
            raise ValueError("something is missing, or of another kind")
        bytes.fromhex(entry.digest)
    except (ValueError, TypeError, KeyError, AttributeError, InputError) as error:
        raise VerificationError(f"This is no entry of a ledger: {error}. Take the bundle as written.") from error
    return entry


def _typed(entry: LedgerEntry) -> bool:
    """Whether an entry says what entries say."""
    parts = (entry.inputs, entry.outputs, entry.details)
    texts = (entry.time, entry.action)
    stated = all(isinstance(one, dict) for one in parts) and all(isinstance(one, str) for one in texts)
    return stated and type(entry.outputs.get("state")) is int
