"""Removal of sets, of encodings, and of what nothing uses.

A name goes first and its rows after it, so that a removal that was killed leaves only what
`collect_garbage` removes.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from probekit.arrays import Ids, Json
from probekit.cache.entry import WORK, Entry
from probekit.cache.rows import IdIndex, concatenate_ids
from probekit.cache.sets import read_ids
from probekit.cache.store import Cache
from probekit.cache.tensors import remove_files
from probekit.errors import CacheError, InputError, NotFoundError
from probekit.files import remove_file, remove_folder, sweep
from probekit.registry import nearest

MIN_PREFIX = 6


@dataclass(frozen=True)
class Removed:
    """What was removed, or would be.

    bytes: about what that frees. busy: encodings that an extraction is working on, whose rows stay.
    """

    sets: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    busy: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        return asdict(self)


def remove(cache: Cache, name: str, *, dry_run: bool = False) -> Removed:
    """Remove the set of this name, or the encoding whose digest begins with it."""
    if name in cache:
        return _remove_set(cache, name, dry_run=dry_run)
    matches = [entry for entry in cache.entries() if entry.digest.startswith(name)]
    if len(name) < MIN_PREFIX or not matches:
        raise NotFoundError(
            f"No set is called {name!r} and no encoding's digest begins so in {cache.root}. "
            f"{nearest(name, cache.names())} `probekit cache ls` lists them."
        )
    if len(matches) > 1:
        raise InputError(f"{name!r} begins {len(matches)} encodings. Give more digits.")
    return _remove_encoding(cache, matches[0], dry_run=dry_run)


def _remove_set(cache: Cache, name: str, *, dry_run: bool) -> Removed:
    """Remove a set and those of its rows that no other set uses."""
    with cache.lock.changing():
        description = cache.describe(name)
        entry = cache.entry(description.encoding)
        members = IdIndex(read_ids(cache.columns_path(description)))
        remaining = [other for other in cache.names() if other != name]
        unused, size = _unused_rows(cache, entry, remaining, members)
        removed = Removed((name,), (), len(unused), size)
        if entry.is_busy():
            removed = Removed(sets=(name,), busy=(entry.digest,))
        if not dry_run:
            _remove_names(cache, [name])
            if not removed.busy:
                entry.drop(unused)
        return removed


def _remove_encoding(cache: Cache, entry: Entry, *, dry_run: bool) -> Removed:
    """Remove all rows of an encoding and the sets that are made of them."""
    with cache.lock.changing():
        if entry.is_busy():
            raise CacheError(
                f"An extraction is working on encoding {entry.digest[:12]}. Stop it, or wait for "
                "its end."
            )
        names = cache.names()
        sets = [name for name in names if cache.describe(name).encoding.digest == entry.digest]
        rows = len(entry.known())
        removed = Removed(tuple(sets), (entry.digest,), rows, folder_size(entry.folder))
        if not dry_run:
            _remove_names(cache, sets)
            remove_folder(entry.folder)
        return removed


def _remove_names(cache: Cache, names: Collection[str]) -> None:
    for name in names:
        remove_file(cache.set_path(name))
    remove_files(_unused_columns(cache))


def collect_garbage(cache: Cache, *, dry_run: bool = False) -> Removed:
    """Remove rows that no set uses, pieces that nobody works on, damaged files and leftovers."""
    if not cache.root.exists():
        return Removed()
    encodings: list[str] = []
    busy: list[str] = []
    rows = 0
    with cache.lock.changing():
        names = cache.names()
        in_use = {cache.describe(name).encoding.digest for name in names}
        leftovers = _unused_columns(cache)
        size = sum(path.stat().st_size for path in leftovers)
        size += folder_size(cache.root / "damaged")
        for entry in cache.entries():
            if entry.is_busy():
                busy.append(entry.digest)
                continue
            unused, unused_size = _unused_rows(cache, entry, names)
            rows += len(unused)
            if entry.digest not in in_use:
                encodings.append(entry.digest)
                size += folder_size(entry.folder)
                if not dry_run:
                    remove_folder(entry.folder)
                continue
            size += unused_size
            if not dry_run:
                entry.drop(unused)
                entry.remove_other_shards()
                remove_files(entry.folder.glob(f"{WORK}*"))
        if not dry_run:
            remove_files(leftovers)
            remove_folder(cache.root / "damaged")
            sweep(cache.root)
    return Removed((), tuple(encodings), rows, size, tuple(busy))


def folder_size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process may remove files meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size


def _unused_columns(cache: Cache) -> list[Path]:
    """Files of columns that no set uses; sets of several encodings may share one."""
    used = {cache.columns_path(cache.describe(name)) for name in cache.names()}
    return sorted(set((cache.root / "columns").glob("*.safetensors")) - used)


def _unused_rows(
    cache: Cache, entry: Entry, names: Collection[str], members: IdIndex | None = None
) -> tuple[Ids, int]:
    """The samples (of these members) whose rows none of these sets uses, and the rows' bytes."""
    descriptions = [cache.describe(name) for name in names]
    paths = [
        cache.columns_path(description)
        for description in descriptions
        if description.encoding.digest == entry.digest
    ]
    used = IdIndex(concatenate_ids(read_ids(path) for path in paths))
    unused = []
    size = 0
    for file in entry.files():
        is_unused = used.locate(file.ids) < 0
        if members is not None:
            is_unused &= members.locate(file.ids) >= 0
        unused.append(file.ids[is_unused])
        size += len(unused[-1]) * (file.width * file.dtype.itemsize + 32)
    return concatenate_ids(unused), size
