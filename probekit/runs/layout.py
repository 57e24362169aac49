"""A run's folder: strictly read, written aside and renamed.

run.json                  options, encoding, versions, a random id; written once
commitment.safetensors    the leaves of all rows, sorted by value; written once
partition.safetensors     who holds which rows, and the salts that open their leaves
states/0001/              head/, kept.safetensors, certificate.json, history.jsonl

The newest state counts. It retains the rows of the partition less those that its history forgot.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from filelock import FileLock

from probekit import __version__
from probekit.arrays import Ids
from probekit.certificates.certificate import Certificate
from probekit.embeddings import Encoding
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, WireError
from probekit.federated.federation import Federation
from probekit.files import MAX_JSON_BYTES, acquire, read_limited, storage_errors, sweep
from probekit.progress import Progress, Step
from probekit.records import parse, record
from probekit.runs.options import TrainOptions
from probekit.runs.rows import Mask, RunRows

FORMAT = 1
DESCRIPTION = "run.json"
COMMITMENT = "commitment.safetensors"
ROWS = "partition.safetensors"
STATES = "states"
HEAD = "head"
KEPT = "kept.safetensors"
CERTIFICATE = "certificate.json"
HISTORY = "history.jsonl"
LOCK = ".lock"
MAX_BYTES = 1 << 36
NUMBER = re.compile(r"\d{4,9}", re.ASCII)
RUN_ID = re.compile(r"[0-9a-f]{32}")
SAMPLE_ID = re.compile(r"[0-9a-f]{64}")
RESTORE = "Restore the run from a copy, or train again."

T = TypeVar("T")


@dataclass(frozen=True)
class Description:
    """What run.json says: nothing computed over clients' rows, no names of clients or classes.

    network: the sha256 of the network that training starts from; "" for a head.
    """

    id: str
    options: TrainOptions
    encoding: dict[str, Any]
    width: int
    source: str
    versions: dict[str, str]
    network: str = ""
    format: int = FORMAT

    @classmethod
    def of(
        cls, run_id: str, options: TrainOptions, encoding: Encoding, *, width: int, source: str
    ) -> Description:
        versions = {
            "probekit": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        return cls(run_id, options, encoding.to_dict(), width, source, versions)

    def dump(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1) + b"\n"

    def read_encoding(self) -> Encoding:
        return Encoding.from_dict(self.encoding)


class Event(msgspec.Struct, frozen=True, tag_field="event", forbid_unknown_fields=True):
    """A line of a history. The date and the order of events cannot be attested."""

    date: str


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What clients were asked: rounds, bytes of arrays to and from them; and how long it took."""

    rounds: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, federation: Federation, started: float) -> Cost:
        """Of a federation that was first asked at this time (time.monotonic)."""
        traffic = federation.traffic
        seconds = round(time.monotonic() - started, 3)
        return cls(traffic.rounds, traffic.sent, traffic.received, seconds)


class Trained(Event, frozen=True, tag="trained"):
    """poison: of a trial with a backdoor, as it was asked for."""

    fingerprint: str
    cost: Cost
    poison: str | None = None


class Joined(Event, frozen=True, tag="joined"):
    """fingerprint: of the run with the new rows, of which there are so many."""

    fingerprint: str
    rows: int
    cost: Cost


class Unlearned(Event, frozen=True, tag="unlearned"):
    """rows: how many this request forgot, test rows and the server's included."""

    clients: tuple[str, ...]
    samples: tuple[str, ...]
    rows: int
    method: str
    cost: Cost


class Erased(Event, frozen=True, tag="erased"):
    rows: int
    token: str


AnyEvent = Trained | Joined | Unlearned | Erased


@record("run/commitment")
@dataclass(frozen=True, eq=False)
class Commitment:
    """The leaves of all rows, (n, 32), sorted by value."""

    leaves: Ids

    def __post_init__(self) -> None:
        shape = self.leaves.shape
        if len(shape) != 2 or shape[1] != 32:
            raise InputError(f"Leaves have shape (n, 32); found {shape}. Train again.")


def forgotten(rows: RunRows, events: Sequence[AnyEvent]) -> Mask:
    """Which rows a history says are forgotten."""
    requests = [event for event in events if isinstance(event, Unlearned)]
    clients = {name for event in requests for name in event.clients}
    samples = {sample for event in requests for sample in event.samples}
    return rows.held_by(clients) | rows.with_ids(samples)


def retained(rows: RunRows, events: Sequence[AnyEvent]) -> RunRows:
    return rows.take(~forgotten(rows, events))


def state_numbers(run: Path) -> list[int]:
    """The complete states, oldest first."""
    folder = run / STATES
    entries = folder.iterdir() if folder.is_dir() else ()
    numbers = sorted(int(entry.name) for entry in entries if NUMBER.fullmatch(entry.name))
    if not numbers:
        raise CorruptError(f"{run} has no state. {RESTORE}")
    return numbers


def state_folder(run: Path, number: int) -> Path:
    return run / STATES / f"{number:04}"


def find_run(folder: Path) -> Path:
    """The real folder of a run; refuses links and anything but files and folders inside of it."""
    run = folder.expanduser().resolve()
    if not (run / DESCRIPTION).is_file():
        raise NotFoundError(
            f"{folder} is no run: it has no {DESCRIPTION}. Pass a folder that train wrote."
        )
    refuse_links("run", run)
    return run


def refuse_links(noun: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CorruptError(
                f"A {noun} holds files and folders; {path} is a link or a device. Remove it, or "
                "put its content in its place."
            )


def read_description(run: Path) -> tuple[Description, bytes]:
    """What run.json says, and its bytes."""
    path = run / DESCRIPTION
    content = _read(path, MAX_JSON_BYTES)
    version = decode(path, content, dict[str, Any]).get("format")
    if version != FORMAT:
        raise MismatchError(
            f"{run} is a run of another version of probekit (format {version!r}); this one reads "
            f"format {FORMAT}. Use the version that wrote it, or train again."
        )
    description: Description = decode(path, content, Description)
    try:
        description.read_encoding()
        is_ours = description.dump() == content and RUN_ID.fullmatch(description.id)
    except (KeyError, TypeError, ValueError):
        is_ours = None
    if not is_ours or description.width < 1:
        raise CorruptError(f"{path} is not as probekit wrote it. {RESTORE}")
    return description, content


def read_events(folder: Path) -> tuple[AnyEvent, ...]:
    """A state's history: trained first and only first, no name twice in a request."""
    path = folder / HISTORY
    content = _read(path, MAX_JSON_BYTES)
    events = tuple(decode(path, line, AnyEvent) for line in content.splitlines())
    if dump_events(events) != content:
        raise CorruptError(f"{path} is not as probekit wrote it. {RESTORE}")
    firsts = [number for number, event in enumerate(events) if isinstance(event, Trained)]
    requests = [event for event in events if isinstance(event, Unlearned)]
    names = [listed for event in requests for listed in (event.clients, event.samples)]
    is_hex = all(SAMPLE_ID.fullmatch(sample) for event in requests for sample in event.samples)
    if firsts != [0] or not is_hex or any(list(part) != sorted(set(part)) for part in names):
        raise CorruptError(f"{path} has events of no run. {RESTORE}")
    return events


def dump_events(events: Sequence[AnyEvent]) -> bytes:
    return b"".join(msgspec.json.encode(event, order="sorted") + b"\n" for event in events)


def read_record(path: Path, kind: type[T]) -> T:
    content = _read(path, MAX_BYTES)
    try:
        return parse(content, kind, max_bytes=MAX_BYTES)
    except WireError as error:
        raise CorruptError(f"{path} cannot be read: {error} {RESTORE}") from error


def read_certificate(folder: Path) -> Certificate | None:
    """None where the head could not be certified."""
    path = folder / CERTIFICATE
    content = _read(path, MAX_JSON_BYTES)
    certificate: Certificate | None = decode(path, content, Certificate | None)
    if dump_certificate(certificate) != content:
        raise CorruptError(f"{path} is not as probekit wrote it. {RESTORE}")
    return certificate


def dump_certificate(certificate: Certificate | None) -> bytes:
    document = None if certificate is None else certificate.to_dict()
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode(path: Path, content: bytes, kind: Any) -> Any:
    """JSON of this type."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is damaged: {error}. {RESTORE}") from error


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def working(run: Path, progress: Progress) -> Iterator[None]:
    """Hold a run's lock; what killed commands left aside is removed."""
    lock = FileLock(run / LOCK)
    with storage_errors(run):
        acquire(lock, lambda: progress(Step(f"waiting for another command on {run.name}", 0)))
        try:
            sweep(run)
            yield
        finally:
            lock.release()


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_limited(path, limit)
    except FileNotFoundError as error:
        raise CorruptError(f"{path} is missing. {RESTORE}") from error
