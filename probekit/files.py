"""Files and folders that appear whole or not at all, and go for good.

Everything is written aside in the same folder, synced, renamed, and the folder synced. What a
killed process leaves aside begins with ASIDE and is removed by `sweep`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from filelock import BaseFileLock, FileLock, Timeout

from probekit.arrays import Json
from probekit.errors import CorruptError, StorageError

T = TypeVar("T")

ASIDE = ".aside-"
REPLACED = ".old-"
MAX_JSON_BYTES = 1 << 26

_FULL = (
    "the disk is full. What was written before stays usable: free some space and run the same "
    "command again, it continues where it stopped"
)
_READ_ONLY = "it is read-only for this user. Make it writable, or choose another folder"
_REASONS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _READ_ONLY),
}


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Raise StorageError where the disk is full or read-only."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None:
            raise
        raise StorageError(f"Cannot write to {folder}: {reason}.") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, as closed to other users as the one they stand in."""
    if folder.is_dir():
        return
    parent = folder.absolute().parent
    make_folder(parent)
    folder.mkdir(mode=0o700 | parent.stat().st_mode & 0o077, exist_ok=True)
    sync_folder(parent)


@contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its place when the body ends; nothing is left if it fails."""
    folder = target.parent
    with storage_errors(folder):
        make_folder(folder)
        prefix = f"{target.name}-" if target.name.startswith(ASIDE) else ASIDE
        aside = folder / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
        mode = 0o600 | folder.stat().st_mode & 0o066
        try:
            with os.fdopen(
                os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
            ) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.rename(target)
            sync_folder(folder)
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place (or that of an older one) when the body ends."""
    target = target.absolute()
    aside = target.parent / f"{ASIDE}{target.name}-{os.getpid()}-{secrets.token_hex(4)}"
    restore_folder(target)
    with storage_errors(target.parent):
        try:
            make_folder(aside)
            yield aside
            sync_folder(aside)
            if target.exists():  # a full folder cannot be renamed over
                target.rename(_replaced(target))
            aside.rename(target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            restore_folder(target)


def restore_folder(target: Path) -> None:
    """Undo or finish a replacement that was killed in between."""
    old = _replaced(target.absolute())
    if old.exists() and not target.exists():
        old.rename(target)
        sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _replaced(target: Path) -> Path:
    return target.parent / f"{REPLACED}{target.name}"


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files for good, those that are there."""
    removed = list(paths)
    for path in removed:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in removed if path.parent.is_dir()}:
        sync_folder(folder)


def remove_folder(path: Path) -> None:
    """Remove a folder for good, if it is there; killed in between, nothing keeps its name."""
    if not path.exists():
        return
    aside = path.with_name(f"{ASIDE}{path.name}-{secrets.token_hex(4)}")
    path.rename(aside)
    sync_folder(path.parent)
    shutil.rmtree(aside)
    sync_folder(path.parent)


def sweep(root: Path) -> None:
    """Remove what killed processes left aside, anywhere below a folder."""
    for folder, names, files in os.walk(root):
        stale = [name for name in (*names, *files) if name.startswith(ASIDE)]
        names[:] = [name for name in names if not name.startswith(ASIDE)]
        for name in stale:
            path = Path(folder, name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if stale:
            sync_folder(Path(folder))


def write_bytes(target: Path, content: bytes) -> None:
    with new_file(target) as file:
        file.write(content)


def write_json(target: Path, value: Json) -> None:
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    write_bytes(target, text.encode())


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; anything else raises CorruptError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CorruptError(f"{path} must be a regular file. Remove it, or restore it from a copy.")
    if status.st_size > limit:
        raise CorruptError(
            f"{path} has {status.st_size} bytes; at most {limit} were expected. Restore it."
        )
    return path.read_bytes()


def read_json(path: Path, *, limit: int = MAX_JSON_BYTES) -> Any:
    """The value of a JSON file as `write_json` writes it; anything else raises CorruptError."""
    content = read_limited(path, limit)
    try:
        return parse_json(content)
    except ValueError as error:
        raise CorruptError(f"{path} is damaged: {error}. Restore it from a copy.") from error


def read_typed(path: Path, kind: type[T], *, remedy: str = "Restore it from a copy.") -> T:
    """The value of a JSON file, of this type; anything else raises CorruptError."""
    content = read_limited(path, MAX_JSON_BYTES)
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is damaged: {error}. {remedy}") from error


def parse_json(content: bytes) -> Any:
    """JSON without repeated keys, deep nesting or halves of characters; else ValueError."""
    try:
        value = json.loads(content.decode(), object_pairs_hook=_unique_keys)
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is repeated")
    return mapping


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def acquire(lock: BaseFileLock, notify: Callable[[], None], *, patience: float = 0) -> None:
    """Take a lock; `notify` is called where another process has it for so many seconds."""
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        notify()
        lock.acquire()


def is_held(path: Path) -> bool:
    """Whether some process holds the lock of this file."""
    with suppress(Timeout):
        FileLock(path).acquire(timeout=0).lock.release()
        return False
    return True
