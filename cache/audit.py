"""What is in a cache, whether it is sound, and why something is not found in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probekit.cache.disk import DiskStore
from probekit.cache.entry import Entry, Shard, locate
from probekit.cache.ids import IdLookup, stack
from probekit.cache.journal import changing
from probekit.cache.matrices import map_tensors
from probekit.cache.sets import assemble
from probekit.errors import CacheError, ProbekitError
from probekit.files import sha256_file, sync_folder
from probekit.values import EncodingSpec, canonical


@dataclass(frozen=True)
class Damage:
    """Something in the cache that is not as it was written, and what to do."""

    where: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Usage:
    """One spec's share of the cache."""

    spec: EncodingSpec
    rows: int
    unsealed: int
    size: int
    sets: tuple[str, ...]


def usage(store: DiskStore) -> list[Usage]:
    """What each spec holds. A damaged file counts no rows; `verify` names it."""
    found = []
    for entry in store.entries():
        labels = tuple(store.sets.label(digest) for digest in store.sets.digests(entry.folder.name))
        size = sum(path.stat().st_size for path in entry.folder.rglob("*") if path.is_file())
        shards, pieces = (
            sum(len(one.ids) for one in _readable(_paths(entry, place))) for place in ("shards", "pieces")
        )
        found.append(Usage(entry.spec, shards, pieces, size, labels))
    return found


def _paths(entry: Entry, place: str) -> list[Path]:
    return sorted((entry.folder / place).glob("*.safetensors"))


def _readable(paths: Iterable[Path]) -> Iterator[Shard]:
    """The files of rows that can be opened."""
    for path in paths:
        with suppress(CacheError):
            yield Shard(path)


def unused_rows(store: DiskStore) -> dict[str, int]:
    """How many rows of each spec no set uses, where there are any; in damaged files none are counted."""
    found = {}
    for entry in store.entries():
        sets = store.sets.digests(entry.folder.name)
        with suppress(CacheError, OSError, KeyError):
            used = IdLookup(stack(store.sets.read_columns(digest)["ids"] for digest in sets))
            paths = [*entry.shard_paths(), *_paths(entry, "pieces")]
            found[entry.folder.name] = sum(int((used.locate(one.ids) < 0).sum()) for one in _readable(paths))
    return {spec: count for spec, count in found.items() if count}


def explain(spec: EncodingSpec, others: Sequence[EncodingSpec]) -> list[str]:
    """Which fields of the identity differ from the nearest entry: why nothing can be reused."""
    if any(other.digest == spec.digest for other in others):
        return [f"The cache has an entry for exactly this: {spec.digest[:12]}."]
    if not others:
        return ["The cache holds no entry yet."]

    def differing(other: EncodingSpec) -> list[str]:
        return [name for name, value in spec.identity.items() if canonical(value) != canonical(other.identity[name])]

    nearest = min(others, key=lambda other: len(differing(other)))
    return [
        f"No entry for this; the nearest is {nearest.digest[:12]} ({nearest.backbone}). It differs in:",
        *(
            f"  {name}: wanted {canonical(spec.identity[name])}, there {canonical(nearest.identity[name])}"
            for name in differing(nearest)
        ),
    ]


def verify(store: DiskStore, *, repair: bool = False) -> tuple[list[Damage], int]:
    """Hash everything again; gives what is wrong and how many files were read.

    With `repair`, damaged files of rows are moved to `damaged/`; the next extract encodes what they held.
    """
    problems: list[Damage] = []
    files = 0
    for entry in store.entries():
        for path, problem in _files(entry):
            files += 1
            if problem:
                problems.append(Damage(str(path.relative_to(store.root)), problem, _REMEDY))
                if repair:
                    _set_aside(store, entry, path)
    for digest in store.sets.digests():
        files += 1
        problem = _check_set(store, digest)
        if problem:
            problems.append(Damage(f"sets/{digest}", problem, _REMEDY_OF_SETS))
    return problems, files


_REMEDY = "`probekit cache verify --repair` sets it aside; the next extract encodes its rows again. Others are fine."
_REMEDY_OF_SETS = "Run its extract command again, or `probekit cache rm` it."


def _files(entry: Entry) -> Iterator[tuple[Path, str]]:
    """Every file of rows of a spec with what is wrong with it, or an empty text."""
    spec_path = entry.folder / "spec.json"
    try:
        wrong = "" if entry.spec.digest == entry.folder.name else f"its digest is {entry.spec.digest}"
    except (ProbekitError, TypeError) as error:
        yield spec_path, str(error)
        return
    yield spec_path, wrong
    for path in [*entry.shard_paths(), *_paths(entry, "pieces")]:
        yield path, _check_file(path, entry.spec.digest)


def _check_file(path: Path, spec: str) -> str:
    if not path.exists():
        return "it is missing"
    found = sha256_file(path)
    if found != path.stem:
        return f"its bytes changed: sha256 is {found[:12]}, was {path.stem[:12]}"
    note = map_tensors(path)[1]
    return "" if note.get("spec") == spec else f"it belongs to another spec ({str(note.get('spec'))[:12]})"


def _set_aside(store: DiskStore, entry: Entry, path: Path) -> None:
    if path.suffix != ".safetensors":
        return
    with changing(store.root):
        if path.exists():
            target = store.root / "damaged" / entry.folder.name
            target.mkdir(parents=True, exist_ok=True)
            path.rename(target / path.name)
            sync_folder(path.parent)
        if path.parent.name == "shards":
            entry.write_index([name for name in entry.shard_names() if name != path.stem])


def _check_set(store: DiskStore, digest: str) -> str:
    try:
        note, columns = store.sets.read_note(digest), store.sets.read_columns(digest)
        path = store.root / "sets" / digest / f"{note['columns']}.safetensors"
        if sha256_file(path) != note["columns"]:
            return "its columns changed"
        entry = store.entry(note["spec"])
        rows = np.zeros((note["rows"], note["dimension"]), dtype=np.uint8)
        found = assemble(note, columns, spec=entry.spec, rows=rows)
        if found.digest != digest:
            return "its digest does not fit its content"
        files = [*_readable(entry.shard_paths()), *entry.pieces()]
        locate(files, columns["ids"][found.usable])
    except (ProbekitError, OSError, KeyError) as error:
        return str(error)
    return ""
