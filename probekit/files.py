"""Files and folders that appear whole or not at all, and go for good."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import platformdirs
from filelock import BaseFileLock, Timeout

from probekit.errors import CorruptError, HostileError, StorageError
from probekit.syncing import sync_file
from probekit.syncing import sync_folder as sync_folder
from probekit.values import Json

DEEPEST = 64
"""How deep values may be nested in a text that `parsed` reads."""
MOST_BYTES = 2**26
"""The size of a JSON file that is read at all."""
ASIDE = ".aside-"
"""How the names of files begin that are still being written."""
PRIVATE = 0o600
"""The mode of files that only their owner may read."""

_FULL = (
    "the disk is full. What was written before stays usable; free some space and give the same command again, it "
    "continues where it stopped."
)
_LOCKED = "it is read-only for this user. Make it writable, or choose another folder with PROBEKIT_CACHE."
_REFUSED = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL)
_REFUSED |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _LOCKED)
DIGEST = re.compile(r"[0-9a-f]{64}")


@contextmanager
def storing(where: Path) -> Iterator[None]:
    """Turn the system's word for a full or read-only disk into ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise StorageError(f"Cannot write to {where}: {_REFUSED[error.errno]}") from error


def acquire(lock: BaseFileLock, notice: str, waiting: Callable[[str], None] | None) -> None:
    """Take a lock; who watches is told first where another process has it."""
    if waiting is not None:
        with suppress(Timeout):
            lock.acquire(timeout=0)
            return
        waiting(notice)
    lock.acquire()


def make_folder(folder: Path, *, closed: bool = False) -> None:
    """Make a folder, and those above it, to survive a power cut: as closed as what they stand in, or to all others."""
    if not folder.is_dir():
        above = folder.absolute().parent
        make_folder(above)
        folder.mkdir(mode=0o700 | (0 if closed else above.stat().st_mode & 0o077), exist_ok=True)
        sync_folder(above)


def open_in(folder: Path, path: Path, how: Literal["xb", "ab"], *, mode: int = 0o666) -> IO[bytes]:
    """A file to write which, if it is new, has this mode, and is at least as closed to others as its folder."""
    mode &= PRIVATE | folder.stat().st_mode & 0o066
    return open(path, how, opener=lambda name, flags: os.open(name, flags, mode))


@contextmanager
def aside_file(folder: Path, mode: int = 0o666) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file beside its future place, as closed as its folder; gone again unless `settle` moves it there."""
    make_folder(folder)
    path = folder / f"{ASIDE}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with open_in(folder, path, "xb", mode=mode) as handle:
            yield handle, path
    finally:
        path.unlink(missing_ok=True)


def settle(handle: IO[bytes], path: Path, target: Path) -> None:
    """Make the file's bytes safe, then let it appear under its name."""
    handle.flush()
    sync_file(handle.fileno())
    path.rename(target)
    sync_folder(target.parent)


@contextmanager
def new_file(target: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write, which takes its place, whole and safe, when the body ends; nothing is left if it fails.

    mode: who may read it, from its creation on (`PRIVATE`: its owner only).
    """
    with storing(target.parent), aside_file(target.parent, mode) as (handle, path):
        yield handle
        settle(handle, path, target)


@contextmanager
def new_folder(target: Path, *, aside: Path | None = None, closed: bool = False) -> Iterator[Path]:
    """A folder to write files into, which takes its place, whole, when the body ends; nothing is left if it fails.

    target: its place; a folder that stands there is replaced.
    aside: where it is written, on the same disk; if not given, beside its place under a name of its own. Who holds a
    lock gives one, so that what a killed process left there goes.
    closed: to other users, from its creation.
    """
    target = target.absolute()
    made = aside or target.parent / f".new-{target.name}-{secrets.token_hex(4)}"
    restore_folder(target)
    shutil.rmtree(made, ignore_errors=True)
    try:
        with storing(target.parent):
            make_folder(made, closed=closed)
        yield made
        sync_folder(made)
        if target.exists():  # a full folder cannot be replaced
            target.rename(replaced(target))
        made.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        restore_folder(target)


def restore_folder(target: Path) -> None:
    """Undo or finish a replacement of a folder that was killed in between."""
    old = replaced(target.absolute())
    if old.exists() and not target.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def replaced(target: Path) -> Path:
    """Where a folder that is being replaced stands for a moment."""
    return target.parent / f".old-{target.name}"


def remove_file(path: Path) -> None:
    """Remove a file for good, if it is there: a power cut does not bring it back."""
    if path.exists() or path.is_symlink():
        path.unlink()
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder for good, if it is there; killed in between, nothing is left under its name."""
    if not path.exists():
        return
    aside = path.with_name(f"{ASIDE}{path.name}-{secrets.token_hex(4)}")
    path.rename(aside)
    sync_folder(path.parent)
    shutil.rmtree(aside)
    sync_folder(path.parent)


def sweep(folder: Path, *patterns: str) -> None:
    """Remove for good what killed processes left aside in a folder and in those that the patterns name."""
    for place in [folder, *(found for pattern in patterns for found in folder.glob(pattern) if found.is_dir())]:
        stale = list(place.glob(f"{ASIDE}*"))
        for one in stale:
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink(missing_ok=True)
        if stale:
            sync_folder(place)


def write_text(target: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a small file by this text, at once."""
    write_bytes(target, text.encode(), mode=mode)


def write_bytes(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace a small file by these bytes, at once."""
    with new_file(target, mode=mode) as handle:
        handle.write(content)


def write_json(target: Path, value: Json, *, mode: int = 0o666) -> None:
    """Replace a small file by this value as JSON, at once."""
    write_text(target, json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n", mode=mode)


def parsed(content: bytes) -> Any:
    """The value of a JSON text; a ValueError where it is not UTF-8, says a key twice, is nested too deep, ..."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands there twice")
        return found

    try:
        found = json.loads(content.decode(), object_pairs_hook=once)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST}") from None
    if content.count(b"[") + content.count(b"{") > DEEPEST:  # else it cannot be
        _refuse_deep(found)
    if b"\\u" in content:
        json.dumps(found, ensure_ascii=False).encode()  # refuses half a character
    return found


def _refuse_deep(value: Any) -> None:
    level, nested = [value], (dict, list)  # a tuple: a union would be made anew for every value
    for _ in range(DEEPEST):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for part in parts for one in part if isinstance(one, nested)]
    if level:
        raise ValueError(f"it is nested deeper than {DEEPEST}")


def read_limited(path: Path, most: int) -> bytes:
    """The bytes of a file; a ValueError, before any is read, where there are more."""
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"it has {size} bytes, more than the {most} that are read")
    return path.read_bytes()


def read_json(path: Path, most: int = MOST_BYTES, *, remedy: str = "Run `probekit cache verify`.") -> Any:
    """The value in a JSON file of at most so many bytes."""
    try:
        return parsed(read_limited(path, most))
    except json.JSONDecodeError as error:
        raise CorruptError(f"{path} is not readable JSON ({error}). {remedy}") from error
    except ValueError as error:
        raise HostileError(f"{path} is not one that was written: {error}. Restore it from a copy.") from error


def checked_digest(text: object, where: Path) -> str:
    """A sha256 in hex, as the names of our files are; anything else could be a path that leads elsewhere."""
    if not isinstance(text, str) or not DIGEST.fullmatch(text):
        raise CorruptError(f"{where} names {text!r}, which is not one of our files. Run `probekit cache verify`.")
    return text


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """`PROBEKIT_CACHE`, else `$XDG_CACHE_HOME/probekit`, else the platform's own (`~/.cache/probekit`)."""
    if chosen := environ.get("PROBEKIT_CACHE"):
        return Path(chosen).expanduser().absolute()
    # The XDG specification wants relative paths ignored.
    if (shared := environ.get("XDG_CACHE_HOME")) and Path(shared).is_absolute():
        return Path(shared) / "probekit"
    return Path(platformdirs.user_cache_path("probekit", appauthor=False))
