"""Bringing shards of a set together: what several processes encoded, each its share, becomes the set of one process.

A shard is a set called NAME.0-of-4, whose rows are not in order yet. They may lie in one cache or in several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache.disk import DiskStore
from probekit.cache.ids import hex_ids, pack, stack
from probekit.custody.columns import WIDTH
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError
from probekit.files import sha256_file
from probekit.values import EmbeddingSet

_SHARD = re.compile(r"(.+)\.(\d+)-of-(\d+)")
_BLOCK = 1024


def shard_name(name: str, number: int, shards: int) -> str:
    """What a shard of a set is called."""
    return f"{name}.{number}-of-{shards}"


@dataclass(frozen=True)
class Merged:
    """A set that was brought together; `shards`: of how many, 0 where that was done before."""

    name: str
    digest: str
    rows: int
    shards: int


def merge(store: DiskStore, name: str, sources: Sequence[Path] = ()) -> Merged:
    """Make one set of the shards of this name in a cache and in others; gives what was made.

    The shards in this cache are removed, those elsewhere stay. Interrupted, the same call goes on.
    """
    homes = [store, *(_cache(path) for path in sources if path.resolve() != store.root.resolve())]
    found = {home.root: _shards(home, name) for home in homes}
    if not any(found.values()) and (digest := store.sets.names().get(name)) is not None:
        return Merged(name, digest, len(store.open(digest)), 0)
    shards, missing = _complete(name, {size for there in found.values() for _, size in there}, found)
    if missing:
        if (done := _merged_before(store, name, found[store.root])) is not None:
            return done
        first = missing[0]
        raise NotFoundError(
            f"Shard {first}/{shards} of {name} is missing{_others(len(missing) - 1)}. Looked in "
            f"{', '.join(str(home.root) for home in homes)}. Run `probekit extract` with --shard {first}/{shards} and "
            "--name as for the others, or name the cache where it is."
        )
    parts = []
    for number in range(shards):
        home = next(one for one in homes if (number, shards) in found[one.root])
        part = home.open(found[home.root][number, shards])
        parts.append(part if home is store else _brought(store, home, part))
    whole = store.seal(_joined(store, name, parts))
    store.sets.give_name(name, whole.digest)
    _forget(store, name, found[store.root])
    return Merged(name, whole.digest, len(whole), shards)


def _cache(path: Path) -> DiskStore:
    if not (path / "probekit.json").is_file():
        raise NotFoundError(f"{path} is no cache: it holds no probekit.json. Give the folder that `--cache` named.")
    return DiskStore(path)


def _shards(store: DiskStore, name: str) -> dict[tuple[int, int], str]:
    """The digests of the shards of this name, by their number and how many there are."""
    matches = ((_SHARD.fullmatch(one), digest) for one, digest in store.sets.names().items())
    return {(int(m[2]), int(m[3])): digest for m, digest in matches if m is not None and m[1] == name}


def _complete(name: str, sizes: set[int], found: dict[Path, dict[tuple[int, int], str]]) -> tuple[int, list[int]]:
    """Into how many shards the set was divided, and which of them are missing."""
    there = {key for one in found.values() for key in one}
    lacking = {size: [n for n in range(size) if (n, size) not in there] for size in sorted(sizes)}
    complete = [size for size, missing in lacking.items() if not missing]
    if len(complete) > 1:
        several = " and of ".join(map(str, complete))
        raise InputError(f"{name} is there as shards of {several}. Remove those that are old with `probekit cache rm`.")
    if not sizes:
        raise NotFoundError(f"There is no shard of {name!r}. `probekit extract` makes some with --shard and --name.")
    size = complete[0] if complete else max(sizes)
    return size, lacking[size]


def _others(many: int) -> str:
    return f", and {many} more" if many else ""


def _merged_before(store: DiskStore, name: str, left: dict[tuple[int, int], str]) -> Merged | None:
    """The set, if the shards that are left are of it: a merge was killed while it removed them."""
    digest = store.sets.names().get(name)
    if digest is None:
        return None
    whole = store.open(digest)
    ids = set(whole.ids)
    parts = [store.open(one) for one in left.values()]
    if not all(part.spec == whole.spec and ids.issuperset(part.ids) for part in parts):
        return None
    _forget(store, name, left)
    return Merged(name, digest, len(whole), 0)


def _forget(store: DiskStore, name: str, shards: Iterable[tuple[int, int]]) -> None:
    for key in shards:
        store.sets.drop_name(shard_name(name, *key))


def _brought(store: DiskStore, home: DiskStore, part: EmbeddingSet) -> EmbeddingSet:
    """A shard of another cache with its rows in this one; every file that they come from is hashed first."""
    if part.groups is not None and (home.group_key() != store.group_key()):
        raise InputError(
            f"The groups in {home.root} are numbered by its own key, and mean nothing in {store.root}. Extract all "
            "shards into one cache."
        )
    if erased := store.erased(part.ids):
        raise InputError(f"{len(erased)} samples of this set were erased from {store.root} on request. Leave them out.")
    for file in home.entry(part.spec).files():
        if sha256_file(file.path) != file.name:
            raise CorruptError(f"{file.path} is not what was written. Encode that shard again; nothing was merged.")
    for samples, vectors in home.canaries(part.spec).items():
        if store.canary(part.spec, samples) is None:
            store.keep_canary(part.spec, vectors, samples)
    known, usable = store.known(part.spec), part.usable
    new = [row for row in usable.tolist() if part.ids[row] not in known]
    for start in range(0, len(new), _BLOCK):
        some = np.array(new[start : start + _BLOCK])
        store.save(part.spec, [part.ids[row] for row in some.tolist()], part.embeddings[some])
    return part


def _joined(store: DiskStore, name: str, parts: Sequence[EmbeddingSet]) -> EmbeddingSet:
    """The set of all parts, one after the other; its rows are read from the store."""
    first = parts[0]
    for number, part in enumerate(parts):
        alike = part.spec == first.spec and (part.class_names, part.source) == (first.class_names, first.source)
        if not alike:
            raise MismatchError(
                f"Shard {number}/{len(parts)} of {name} is of another data set, backbone or preprocessing than shard "
                f"0/{len(parts)}. Extract it again as the others were."
            )
    ids = hex_ids(stack(pack(part.ids) for part in parts))
    masked = np.concatenate([np.zeros(len(part), bool) if part.masked is None else part.masked for part in parts])
    columns: dict[str, Any] = {}
    for column in sorted({one for part in parts for one in part.columns}):
        nothing = [np.zeros((len(part), WIDTH), np.uint8) for part in parts]
        columns[column] = np.concatenate([p.columns.get(column, none) for p, none in zip(parts, nothing, strict=True)])
    filled = [part for part in parts if len(part)]
    grouped = bool(filled) and all(part.groups is not None for part in filled)
    return EmbeddingSet(
        spec=first.spec,
        embeddings=store.load(first.spec, ids, masked=masked),
        labels=np.concatenate([part.labels for part in parts]),
        ids=ids,
        class_names=first.class_names,
        clients=_texts([part.clients for part in filled]),
        names=_texts([part.names for part in filled]),
        masked=masked if masked.any() else None,
        skipped=tuple(one for part in parts for one in part.skipped),
        source=first.source,
        columns=columns,
        groups=np.concatenate([np.asarray(part.groups) for part in filled]) if grouped else None,
        group_column=next((part.group_column for part in parts if part.group_column), ""),
    )


def _texts(parts: Sequence[Sequence[str] | None]) -> list[str] | None:
    return None if any(part is None for part in parts) else [text for part in parts for text in part or ()]
