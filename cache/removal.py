"""Removal of sets, of encodings, and of what nothing uses.

A name goes first and its rows after it, so that a removal that was killed leaves only what
`collect_garbage` removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probekit.cache.entry import Entry
from probekit.cache.rows import IdIndex, concatenate_ids
from probekit.cache.sets import SetDescription, read_ids
from probekit.cache.store import Cache
from probekit.cache.tensors import SUFFIX
from probekit.errors import CacheError, InputError, NotFoundError
from probekit.files import remove_files, remove_folder, sweep
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


def remove(cache: Cache, name: str, *, dry_run: bool = False) -> Removed:
    """Remove a set and those of its rows that no other set uses.

    Or the encoding whose digest begins with `name`, with all sets that are made of it.
    """
    with cache.changing():
        if name in cache:
            description = cache.describe(name)
            entry = cache.entry(description.encoding)
            members = IdIndex([read_ids(cache.columns_path(description))])
            return _remove(cache, [name], [entry], members, dry_run=dry_run)
        entry = _find_entry(cache, name)
        if entry.is_busy():
            raise CacheError(
                f"An extraction is working on encoding {entry.digest[:12]}. Stop it, or wait for "
                "its end."
            )
        sets = [name for name in cache.names() if _is_of(cache.describe(name), entry)]
        return _remove(cache, sets, [entry], dry_run=dry_run)


def _find_entry(cache: Cache, prefix: str) -> Entry:
    matches = [entry for entry in cache.entries() if entry.digest.startswith(prefix)]
    if len(prefix) < MIN_PREFIX or not matches:
        raise NotFoundError(
            f"No set is called {prefix!r} and no encoding's digest begins so in {cache.root}. "
            f"{nearest(prefix, cache.names())} `probekit cache ls` lists them."
        )
    if len(matches) > 1:
        raise InputError(f"{prefix!r} begins {len(matches)} encodings. Give more digits.")
    return matches[0]


def collect_garbage(cache: Cache, *, dry_run: bool = False) -> Removed:
    """Remove rows that no set uses, pieces that nobody works on, damaged files and leftovers."""
    if not cache.root.exists():
        return Removed()
    with cache.changing():
        removed = _remove(cache, [], cache.entries(), dry_run=dry_run)
        if not dry_run:
            remove_folder(cache.root / "damaged")
            sweep(cache.root)
    return removed


def _remove(
    cache: Cache,
    sets: Sequence[str],
    entries: Sequence[Entry],
    members: IdIndex | None = None,
    *,
    dry_run: bool,
) -> Removed:
    """Remove sets, and those rows of these entries (of these members) that no other set uses."""
    names = [name for name in cache.names() if name not in sets]
    remaining = [cache.describe(name) for name in names]
    columns = {cache.columns_path(description) for description in remaining}
    unused_columns = sorted(set((cache.root / "columns").glob(f"*{SUFFIX}")) - columns)
    if not dry_run:
        remove_files([*map(cache.set_path, sets), *unused_columns])
    busy = []
    encodings = []
    rows = 0
    size = 0
    for entry in entries:
        if entry.is_busy():
            busy.append(entry.digest)
            continue
        users = [description for description in remaining if _is_of(description, entry)]
        used = IdIndex(read_ids(cache.columns_path(description)) for description in users)
        unused = []
        for file in entry.files():
            is_unused = ~used.holds(file.ids)
            if members is not None:
                is_unused &= members.holds(file.ids)
            unused.append(file.ids[is_unused])
            size += len(unused[-1]) * (file.width * file.dtype.itemsize + 32)
        rows += sum(map(len, unused))
        is_complete = members is None and not users
        if is_complete:
            encodings.append(entry.digest)
        if is_complete and not dry_run:
            remove_folder(entry.folder)
        elif not dry_run:
            entry.drop(concatenate_ids(unused))
    return Removed(tuple(sets), tuple(encodings), rows, size, tuple(busy))


def _is_of(description: SetDescription, entry: Entry) -> bool:
    return description.encoding.digest == entry.digest
