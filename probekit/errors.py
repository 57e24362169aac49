"""What can go wrong, as one tree. Every message says what was wanted, what was found and what to do.

ProbekitError                    exit code 1
├── InputError                   2   an argument, a file or a value that cannot be used
│   ├── OtherRunsError           2   runs that would lose rows by this, and nobody agreed to it
│   └── SampleError              2   one sample of a data set that cannot be used
├── NotFoundError                3   an unknown name, a missing file
│   ├── OfflineError             3   something that would have to be downloaded, and cannot be
│   ├── MissingClientsError      3   clients that had to answer and did not
│   │   └── RefusedError         3   a client that declines to answer
│   └── Pending                  3   clients that have not answered yet; the same command goes on when they have
├── CacheError                   4   the cache cannot be used as it is
│   ├── CorruptError             4   bytes that are not the bytes that were written
│   │   └── HostileError         6   a file as probekit never writes one: too large, nested too deep, no text
│   ├── MismatchError            4   two things that should belong together do not
│   ├── UnfinishedError          4   a removal that was begun has to be finished first
│   └── StorageError             4   full, read-only or otherwise refusing to be written
├── Cancelled                    130 somebody who watched asked to stop; nothing was changed
├── SolverError                  1   no answer good enough; carries the best one
└── VerificationError            6   a proof that does not hold
"""


class ProbekitError(Exception):
    """The root of all errors that probekit raises on purpose."""

    exit_code = 1


class InputError(ProbekitError, ValueError):
    """An argument, a file or a value that cannot be used."""

    exit_code = 2


class SampleError(InputError):
    """One sample of a data set that cannot be used."""


class OtherRunsError(InputError):
    """Runs that would lose rows by this, and nobody agreed to it. `runs` says which, a sentence each."""

    def __init__(self, message: str, runs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.runs = runs


class NotFoundError(ProbekitError, LookupError):
    """An unknown name or a missing file."""

    exit_code = 3


class OfflineError(NotFoundError):
    """Something that would have to be downloaded, and cannot be."""


class MissingClientsError(NotFoundError):
    """Clients that had to answer a question and did not."""


class RefusedError(MissingClientsError):
    """A client that could answer and declines to."""


class Pending(NotFoundError):  # noqa: N818
    """Answers that are not there yet: the same command goes on when they are. `awaited` names the clients."""

    def __init__(self, message: str, awaited: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.awaited = awaited


class CacheError(ProbekitError):
    """The cache cannot be used as it is."""

    exit_code = 4


class CorruptError(CacheError):
    """Bytes that are not the bytes that were written."""


class HostileError(CorruptError):
    """A file as probekit never writes one: too large, nested too deep, no text, a key twice."""

    exit_code = 6


class MismatchError(CacheError):
    """Two things that should belong together do not."""


class UnfinishedError(CacheError):
    """A removal that was begun and interrupted: it has to be finished before anything else."""


class StorageError(CacheError):
    """A store that is full, read-only or otherwise refuses to be written."""


class Cancelled(ProbekitError):  # noqa: N818
    """Somebody who watched asked to stop; nothing was changed."""

    exit_code = 130


class SolverError(ProbekitError):
    """No answer good enough; `best` carries the best one found."""

    def __init__(self, message: str, best: object = None) -> None:
        super().__init__(message)
        self.best = best


class VerificationError(ProbekitError):
    """A proof that does not hold."""

    exit_code = 6
