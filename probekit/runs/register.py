"""The register of erasures: one folder, in it a folder for every request with its record, and papers for the person.

REFERENCE/record.json    who asked when, what was done, what is proven, and what may remain; no name, no sample
REFERENCE/receipt-*.json answer-*.json   for the person alone, closed to others: hand them over, then delete them
REFERENCE/bundle-*.zip   for anybody who should be able to check it
journal.json             requests that were begun and are not finished; while it is there, no others are begun
"""

from __future__ import annotations

import hmac
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from filelock import FileLock

from probekit.cache import DiskStore
from probekit.cache.journal import changing
from probekit.errors import CorruptError, InputError, NotFoundError, UnfinishedError
from probekit.files import (
    MOST_BYTES,
    PRIVATE,
    make_folder,
    read_json,
    read_limited,
    remove_file,
    storing,
    write_bytes,
    write_json,
)
from probekit.runs.result import Result, to_plain
from probekit.values import Json, canonical

KIND = "probekit erasure record 1"
RECORD, JOURNAL, KEY = "record.json", "journal.json", "register.key"
DUE, KEEP = 30, 1095
"""Days until a request must be answered, and days that a record is kept, unless said otherwise."""
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


@dataclass(frozen=True, kw_only=True)
class CaseInfo:
    """What an operator knows of a request besides what is to be erased. `reference` is no name.

    received, due: dates (YYYY-MM-DD); today, and thirty days later. identity: who checked that the person is who it
    says. basis: why it is granted. keep: days that the record itself is kept.
    """

    reference: str = ""
    received: str = ""
    due: str = ""
    identity: str = ""
    basis: str = ""
    keep: int = KEEP

    def __post_init__(self) -> None:
        if self.reference and not _REFERENCE.fullmatch(self.reference):
            raise InputError(
                f"{self.reference!r} cannot be a reference: use up to 80 letters, digits, dots, dashes and "
                "underscores, and no name."
            )
        try:
            received = date.fromisoformat(self.received) if self.received else datetime.now(UTC).date()
            due = date.fromisoformat(self.due) if self.due else received + timedelta(days=DUE)
        except (ValueError, OverflowError) as error:
            raise InputError(f"A date is written YYYY-MM-DD; {error}.") from error
        if due < received or self.keep < 0:
            raise InputError(f"A request that came on {received} cannot be due on {due}, nor kept {self.keep} days.")
        object.__setattr__(self, "received", received.isoformat())
        object.__setattr__(self, "due", due.isoformat())

    def named(self) -> CaseInfo:
        """The same with a reference."""
        made = f"{self.received.replace('-', '')}-{secrets.token_hex(4)}"
        return self if self.reference else replace(self, reference=made)


@dataclass(frozen=True)
class RunRecord:
    """What was done in one run: states and slots, what verify said, what was removed, and which papers are of it."""

    run: str
    states: tuple[int, ...]
    entries: tuple[int, ...]
    emptied: tuple[int, ...]
    changed: tuple[int, ...]
    method: str
    proven: tuple[str, ...]
    not_proven: tuple[str, ...]
    anchor: str
    files_removed: int
    rows_erased: int
    bundle: str


@dataclass(frozen=True)
class Record(Result):
    """A request and its answer, to be kept until `keep_until`. Refused: nothing was done."""

    reference: str
    received: str
    due: str
    done: str
    asked_by: str
    identity: str
    basis: str
    refused: str
    wanted: str
    runs: tuple[RunRecord, ...]
    sets: tuple[str, ...]
    rows_erased: int
    shared: str
    remains: tuple[str, ...]
    keep_until: str
    fingerprint: str
    kind: str = KIND

    @classmethod
    def of(cls, info: CaseInfo, **more: Any) -> Record:
        """The record of what an operator knows and what was done, dated now."""
        now = datetime.now(UTC)
        keep = (now.date() + timedelta(days=info.keep)).isoformat()
        own = {name: value for name, value in asdict(info).items() if name != "keep"}
        empty: dict[str, Any] = {"runs": (), "sets": (), "rows_erased": 0, "shared": "", "remains": (), "refused": ""}
        return cls(**own, done=now.isoformat(timespec="seconds"), keep_until=keep, **{**empty, **more})


@dataclass(frozen=True)
class Register:
    """The folder."""

    folder: Path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while requests are worked on."""
        with storing(self.folder):
            make_folder(self.folder, closed=True)
        with FileLock(self.folder / ".lock"):
            yield

    def case(self, reference: str) -> Path:
        """The folder of a request."""
        return self.folder / reference

    def records(self) -> list[Record]:
        """Every record, by the day that the request came."""
        return sorted(map(_read, self.folder.glob(f"*/{RECORD}")), key=lambda one: (one.received, one.reference))

    def find(self, reference: str) -> Record | None:
        """The record of a reference."""
        path = self.case(reference) / RECORD
        return _read(path) if path.exists() else None

    def write(self, record: Record) -> Path:
        """Keep a record."""
        path = self.case(record.reference) / RECORD
        make_folder(path.parent, closed=True)
        write_json(path, record.plain)
        return path

    def begin(self, plan: Mapping[str, Json]) -> None:
        """Write down what will be done; from here on it will be."""
        write_bytes(self.folder / JOURNAL, canonical(plan).encode(), mode=PRIVATE)

    def pending(self) -> dict[str, Any] | None:
        """What was begun and is not finished."""
        path = self.folder / JOURNAL
        found: dict[str, Any] | None = read_json(path) if path.exists() else None
        return found

    def refuse_pending(self, plan: Mapping[str, Any]) -> None:
        """Refuse to begin anything while something else is not finished."""
        names = ", ".join(one["reference"] for one in plan["cases"][:5])
        raise UnfinishedError(
            f"In {self.folder} the erasure for {names} began at {plan['begun']} and is not finished. Give its command "
            f"again first: {plan['command']}"
        )

    def strike(self) -> None:
        """All of it is done."""
        remove_file(self.folder / JOURNAL)


def _read(path: Path) -> Record:
    try:
        plain: dict[str, Any] = read_json(path)
        runs = tuple(RunRecord(**{n: _tuple(one) for n, one in each.items()}) for each in plain.pop("runs"))
        found = Record(runs=runs, **{name: _tuple(one) for name, one in plain.items()})
        if found.kind != KIND:
            raise ValueError(f"kind {found.kind!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"{path} is no record of an erasure: {error}. Restore it from a copy.") from error
    return found


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def fingerprints(store: DiskStore, contents: Sequence[Json]) -> list[str]:
    """By which the same requests are known again; only with the key of this cache can anybody try another's."""
    path = store.root / KEY
    with changing(store.root, removing=True):
        if not path.exists():
            write_bytes(path, secrets.token_bytes(32), mode=PRIVATE)
    key = path.read_bytes()
    return [hmac.digest(key, canonical(to_plain(one)).encode(), "sha256").hex() for one in contents]


def read_backups(path: Path) -> tuple[str, ...]:
    """A sentence for each backup in a TOML file: tables [[backup]] with what, where and expires."""
    if not path.is_file():
        raise NotFoundError(f"There is no list of backups {path}.")
    try:
        listed: Sequence[Any] = tomllib.loads(read_limited(path, MOST_BYTES).decode())["backup"]
        return tuple(f"backup {one['what']} at {one['where']}, until {one['expires']}" for one in listed)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no list of backups ({error}): wanted are tables [[backup]] with what, where and expires."
        ) from error
