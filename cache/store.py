"""Cache: embeddings on disk, shared by all commands and processes of a user."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from probekit import files
from probekit.arrays import canonical_json
from probekit.cache.entry import WORK, Entry
from probekit.cache.memo import Memo
from probekit.cache.sets import NAME, SetDescription, assemble, read_ids, write_columns
from probekit.cache.tensors import DIGEST, REPAIR, SUFFIX
from probekit.embeddings import EmbeddingSet, Encoding
from probekit.errors import CacheError, InputError, NotFoundError, StorageError
from probekit.registry import nearest

LAYOUT = 1
"""Raised when files of a cache mean something else than before."""
MARKER = "cache.json"
OLD_MARKER = "probekit.json"
INTENT = "erase.json"
"""What an erasure will remove; here until it is done."""
TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of probekit.\n"
SILENT_SECONDS = 5.0

Notify = Callable[[str], None]


def ignore(text: str) -> None:
    """Notifies nobody."""


def default_root() -> Path:
    """PROBEKIT_CACHE, else $XDG_CACHE_HOME/probekit, else ~/.cache/probekit."""
    if root := os.environ.get("PROBEKIT_CACHE"):
        return Path(root).expanduser()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "probekit"
    return Path.home() / ".cache" / "probekit"


def check_layout(root: Path) -> None:
    """Refuse caches that a newer probekit or the one before 0.2 wrote."""
    layout: object = LAYOUT
    if (root / MARKER).exists():
        layout = files.read_typed(root / MARKER, dict[str, object]).get("layout")
    elif (root / OLD_MARKER).exists():
        layout = "that of probekit before 0.2"
    if layout != LAYOUT:
        raise CacheError(
            f"{root} must have cache layout {LAYOUT}; found {layout}. Choose another folder "
            "(--cache, PROBEKIT_CACHE), or upgrade probekit if a newer one wrote it."
        )


class Cache:
    """A folder of embeddings; refused while an erasure is unfinished (but not `during_erasure`).

    notify: called with a sentence when another process is waited for.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        notify: Notify = ignore,
        during_erasure: bool = False,
    ) -> None:
        self.root = default_root() if root is None else Path(root).expanduser()
        self._during_erasure = during_erasure
        check_layout(self.root)
        self._check_erasure()
        self._notify = notify
        self._lock = FileLock(self.root.absolute() / ".lock", is_singleton=True)
        self._swept = False

    @cached_property
    def memo(self) -> Memo:
        return Memo(self)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def __reduce__(self) -> tuple[type[Cache], tuple[Path]]:
        return Cache, (self.root,)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock of the whole cache; a thread that holds it may take it again.

        Reading needs none. The folder is made a cache, and rid of leftovers of killed processes.
        """
        notice = f"Another process is writing to {self.root}; waiting for it."
        with files.storage_errors(self.root):
            files.make_folder(self.root)
            files.acquire(self._lock, partial(self._notify, notice), patience=SILENT_SECONDS)
            try:
                self._check_erasure()
                if not self._swept:
                    files.sweep(self.root)
                    self._swept = True
                if not (self.root / MARKER).exists():
                    files.write_bytes(self.root / "CACHEDIR.TAG", TAG)
                    files.write_json(self.root / MARKER, {"layout": LAYOUT})
                yield
            finally:
                self._lock.release()

    def is_erasing(self) -> bool:
        """Whether an erasure has begun and is not finished."""
        return os.path.lexists(self.root / INTENT)

    def _check_erasure(self) -> None:
        if self.is_erasing() and not self._during_erasure:
            raise CacheError(
                f"An erasure in {self.root} is not finished. Run the same `probekit erase` command "
                "again."
            )

    def entry(self, encoding: Encoding) -> Entry:
        return Entry(self, encoding.digest, encoding)

    def entries(self) -> list[Entry]:
        folders = sorted((self.root / "encodings").glob("*"))
        return [Entry(self, path.name) for path in folders if DIGEST.fullmatch(path.name)]

    @contextmanager
    def working(self, encoding: Encoding, purpose: str) -> Iterator[None]:
        """Held while rows are made: a second process with the same purpose waits for their end.

        Nothing is removed from the encoding's rows meanwhile. The cache's lock is taken for a
        moment, so that a removal that did not see this coming ends first.
        """
        folder = self.entry(encoding).folder
        lock = FileLock(folder / f"{WORK}{hashlib.sha256(purpose.encode()).hexdigest()[:16]}")
        notice = f"Another process is working on {purpose} in {self.root}; waiting for it."
        try:
            with suppress(StorageError), files.storage_errors(folder):  # it can still be read
                files.make_folder(folder)
                files.acquire(lock, partial(self._notify, notice))
                with self.changing():
                    pass
            yield
        finally:
            lock.release()

    def names(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "sets").glob("*.json"))

    def __contains__(self, name: str) -> bool:
        return NAME.fullmatch(name) is not None and self.set_path(name).exists()

    def set_path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise InputError(
                "A set's name has letters, digits, dots, dashes and underscores, and begins with "
                f"a letter or digit; found {name!r}. Choose another name (--name)."
            )
        return self.root / "sets" / f"{name}.json"

    def columns_path(self, description: SetDescription) -> Path:
        return self.root / "columns" / f"{description.columns}{SUFFIX}"

    def describe(self, name: str) -> SetDescription:
        if name not in self:
            raise NotFoundError(
                f"No set {name!r} in {self.root}. {nearest(name, self.names())} "
                "`probekit cache ls` lists them."
            )
        return files.read_typed(self.set_path(name), SetDescription, remedy=REPAIR)

    def open(self, name: str) -> EmbeddingSet:
        """The set of this name; its rows and columns are read when they are used."""
        description = self.describe(name)
        path = self.columns_path(description)
        rows = self.entry(description.encoding).rows(read_ids(path), description.width)
        return assemble(description, path, rows)

    def save(self, name: str, embeddings: EmbeddingSet) -> EmbeddingSet:
        """Keep a set under a name, with its rows that are not here yet; returns it as stored.

        Killed at any moment, the same call finishes and leaves the same bytes.
        """
        path = self.set_path(name)
        entry = self.entry(embeddings.encoding)
        if embeddings.labels is not None:  # the digest is of their bytes
            embeddings = replace(embeddings, labels=np.asarray(embeddings.labels, np.int64))
        is_saved = self._is_saved(name, embeddings)
        try:
            with self.changing():
                entry.seal(embeddings.ids, embeddings.rows)
                if not is_saved:
                    columns = write_columns(self.root / "columns", embeddings)
                    files.write_json(path, asdict(SetDescription.of(embeddings, columns)))
        except StorageError:  # a complete set of a read-only cache can be read
            if not is_saved or not entry.holds_sealed(embeddings.ids).all():
                raise
        return self.open(name)

    def _is_saved(self, name: str, embeddings: EmbeddingSet) -> bool:
        if name not in self:
            return False
        stored = self.describe(name)
        current = SetDescription.of(embeddings, stored.columns)
        is_equal = canonical_json(asdict(stored)) == canonical_json(asdict(current))
        return is_equal and self.columns_path(stored).exists()
