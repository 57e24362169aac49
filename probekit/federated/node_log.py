"""What a node was asked and what it answered, line by line, each bound to the one before.

A line is written, and safe on the disk, before the answer leaves. Whoever changes, removes or moves a line breaks the
chain at that place; whoever cuts the end off is found out by a copy of a later line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock

from probekit.custody.chain import link
from probekit.custody.slots import NONE, WIDTH
from probekit.errors import CorruptError
from probekit.files import PRIVATE, open_in, parsed, storing
from probekit.syncing import sync_file
from probekit.values import Json, canonical

MOST_LINE = 2**16


@dataclass(eq=False)
class NodeLog:
    """The log in a file."""

    path: Path
    _end: tuple[int, int, bytes] = field(default=(0, 0, NONE), init=False)
    """How many bytes and lines were read and found right, and the last link."""

    def add(self, body: Mapping[str, Json]) -> int:
        """Append a line; gives its number, once it is safe."""
        with storing(self.path.parent), FileLock(f"{self.path}.lock"):
            for _ in self._more():
                pass
            size, number, last = self._end
            stamped = {"number": number + 1, "time": datetime.now(UTC).isoformat(timespec="seconds"), **body}
            linked = link(last, sha256(canonical(stamped).encode()).digest())
            line = canonical({**stamped, "link": linked.hex()}).encode() + b"\n"
            with open_in(self.path.parent, self.path, "ab", mode=PRIVATE) as handle:
                handle.truncate(size)  # a line that a killed process left half written
                handle.write(line)
                handle.flush()
                sync_file(handle.fileno())
            self._end = (size + len(line), number + 1, linked)
            return number + 1

    def lines(self) -> list[dict[str, Any]]:
        """All of it, the chain checked."""
        self._end = (0, 0, NONE)
        return list(self._more())

    def _more(self) -> Iterator[dict[str, Any]]:
        """The lines since the last look, each checked; a last line without its end is none."""
        if not self.path.exists():
            if self._end[0]:
                raise CorruptError(f"{self.path} is gone while it was in use. Restore it from a copy.")
            return
        with self.path.open("rb") as handle:
            handle.seek(0, 2)
            if handle.tell() < self._end[0]:
                raise CorruptError(f"{self.path} is shorter than it was. Restore it from a copy.")
            handle.seek(self._end[0])
            while (line := handle.readline(MOST_LINE)).endswith(b"\n"):
                size, number, last = self._end
                try:
                    found = parsed(line)
                    said = bytes.fromhex(found.pop("link"))
                    right = found["number"] == number + 1 and len(said) == WIDTH
                    right = right and said == link(last, sha256(canonical(found).encode()).digest())
                except (ValueError, KeyError, AttributeError, TypeError, json.JSONDecodeError):
                    right = False
                if not right:
                    raise CorruptError(
                        f"The chain of {self.path} breaks at line {number + 1}: it, or the one before, is not as it "
                        "was written. Restore the log from a copy."
                    )
                self._end = (size + len(line), number + 1, said)
                yield {**found, "link": said.hex()}
