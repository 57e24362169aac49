"""What can go wrong, as one tree; the number is the exit code of the command line.

ProbekitError                1
├── InputError               2   a value that cannot be used
│   └── SampleError          2   one sample of a dataset that cannot be used
├── NotFoundError            3   an unknown name, a missing file
│   └── OfflineError         3   something that would have to be downloaded, and cannot be
├── CacheError               4   the cache cannot be used as it is
│   ├── CorruptError         4   bytes that are not the bytes that were written
│   ├── MismatchError        4   two things that should belong together do not
│   └── StorageError         4   a disk that is full or read-only
├── WireError                4   bytes that are not a record of ours
├── MissingClients           1   clients without a usable answer, with a reason each
└── SolverError              1   no answer that is good enough

`verify` raises no error for what it finds in a run: 6 is something false, 7 something not shown.

Every message says what was expected, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LISTED_CLIENTS = 5


class ProbekitError(Exception):
    """The base of everything that this library refuses."""

    exit_code = 1


class InputError(ProbekitError, ValueError):
    """A value that cannot be used."""

    exit_code = 2


class SampleError(InputError):
    """One sample of a dataset that cannot be used."""


class NotFoundError(ProbekitError, LookupError):
    """An unknown name or a missing file."""

    exit_code = 3


class OfflineError(NotFoundError):
    """Something that would have to be downloaded, and cannot be."""


class CacheError(ProbekitError):
    """The cache cannot be used as it is."""

    exit_code = 4


class CorruptError(CacheError):
    """Bytes that are not the bytes that were written."""


class MismatchError(CacheError):
    """Two things that should belong together do not."""


class StorageError(CacheError):
    """A disk that is full or read-only."""


class WireError(ProbekitError):
    """Bytes that are not a record of ours: the only error that decoding raises."""

    exit_code = 4

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(
            f"Expected {expected}; found {found}. Use the same version and plugins on both sides."
        )


@dataclass(frozen=True)
class Failure:
    """Why a client gave no answer: gone, late, garbage or refused."""

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class MissingClients(ProbekitError):  # noqa: N818
    """Clients without a usable answer, with a reason each."""

    def __init__(self, reasons: Mapping[str, Failure]) -> None:
        self.reasons = dict(reasons)
        named = list(self.reasons.items())[:LISTED_CLIENTS]
        listed = ", ".join(f"{name} ({failure})" for name, failure in named)
        if len(self.reasons) > len(named):
            listed += f" and {len(self.reasons) - len(named)} more"
        super().__init__(
            f"Every client must answer; {len(self.reasons)} did not: {listed}. "
            "Ask again, or go on without them (--at-least)."
        )


class SolverError(ProbekitError):
    """No answer that is good enough."""
