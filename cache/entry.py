"""The rows of one spec on disk: an index of sealed shards, and pieces of work not yet sealed.

    rows/<spec digest>/spec.json      what the rows are
                       canary.json    vectors of the synthetic samples, when first encoded
                       index.json     the shards that count, in order; written last
                       shards/        <sha256>.safetensors: "rows" (n, d) and "ids" (n, 32)
                       pieces/        the same form; written while an extraction runs

A piece may hold any rows; sealing copies the rows of a set, in its order, into shards. So the sealed files depend on
the set alone and not on where an extraction was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from probekit.cache.ids import IdArray, IdLookup
from probekit.cache.rows import Places
from probekit.errors import CacheError, CorruptError
from probekit.files import ASIDE, checked_digest, map_tensors, read_json, storing, write_json, write_tensors
from probekit.values import SCHEMA, EncodingSpec

SHARD_BYTES = 1 << 30
_BLOCK_ROWS = 4096


def check_schema(found: object, what: Path) -> None:
    """Refuse what a newer probekit wrote."""
    if not isinstance(found, int) or found > SCHEMA:
        raise CacheError(
            f"{what} was written by a newer probekit (schema {found}; this one reads up to {SCHEMA}). "
            "Upgrade probekit, or set PROBEKIT_CACHE to another folder."
        )


class Shard:
    """A mapped file of rows and their ids."""

    def __init__(self, path: Path) -> None:
        self.path = path
        tensors, self.note = map_tensors(path)
        try:
            self.rows: NDArray[Any] = tensors["rows"]
            self.ids: IdArray = tensors["ids"]
        except KeyError as error:
            raise CorruptError(f"{path} holds no {error}. Run `probekit cache verify --repair`.") from error

    @property
    def name(self) -> str:
        """The sha256 that the file's bytes must have."""
        return self.path.stem

    def __len__(self) -> int:
        return len(self.ids)


class Entry:
    """One spec's folder. Reading takes no lock; every change is made under `changing`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def spec(self) -> EncodingSpec:
        """What the rows of this entry are."""
        found = read_json(self.folder / "spec.json")
        check_schema(found.get("schema"), self.folder / "spec.json")
        return EncodingSpec(**found)

    def describe(self, spec: EncodingSpec) -> None:
        """Write down what the rows are, if that was not done yet."""
        if not (self.folder / "spec.json").exists():
            write_json(self.folder / "spec.json", {"backbone": spec.backbone, **spec.identity})

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Held for the moments in which the entry is changed; leftovers of a killed process are swept."""
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock")
            with lock:
                for stale in self.folder.rglob(f"{ASIDE}*"):
                    stale.unlink(missing_ok=True)
                yield

    def shard_names(self) -> list[str]:
        """The shards that count, in order."""
        path = self.folder / "index.json"
        if not path.exists():
            return []
        index = read_json(path)
        check_schema(index.get("schema"), path)
        return [checked_digest(name, path) for name in index["shards"]]

    def write_index(self, names: Sequence[str]) -> None:
        """Let exactly these shards count, and drop the files of all others."""
        write_json(self.folder / "index.json", {"schema": SCHEMA, "shards": list(names)})
        for path in (self.folder / "shards").glob("*.safetensors"):
            if path.stem not in names:
                path.unlink()

    def shards(self) -> list[Shard]:
        """The sealed shards, mapped."""
        return [Shard(self.folder / "shards" / f"{name}.safetensors") for name in self.shard_names()]

    def pieces(self) -> list[Shard]:
        """Rows of extractions that were not sealed, mapped. One that is sealed meanwhile is left out."""
        paths = sorted((self.folder / "pieces").glob("*.safetensors"))
        return [Shard(path) for path in paths if path.exists()]

    def files(self) -> list[Shard]:
        """Everything that holds rows: shards, then pieces. Pieces are looked at first, as they become shards."""
        pieces = self.pieces()
        return [*self.shards(), *pieces]

    def write_shard(self, place: str, ids: IdArray, blocks: Iterator[NDArray[Any]], width: int) -> str:
        """Write rows as a file in `place` ("shards" or "pieces"); gives its name."""
        dtype = np.dtype(self.spec.dtype)
        tensors = {"rows": ((len(ids), width), dtype, blocks), "ids": (ids.shape, ids.dtype, [ids])}
        return write_tensors(self.folder / place, tensors, {"schema": SCHEMA, "spec": self.spec.digest})

    def seal(self, wanted: IdArray) -> None:
        """Bring the rows of these samples into shards, in this order, and drop the pieces they came from."""
        with self.changing():
            sealed, pieces = self.shards(), self.pieces()
            known = IdLookup(_stack([shard.ids for shard in sealed]))
            fresh = wanted[known.locate(wanted) < 0]
            if len(fresh):
                fresh = fresh[np.sort(np.unique(fresh, axis=0, return_index=True)[1])]
                places = locate(pieces, fresh)
                names = [shard.name for shard in sealed]
                names += list(self.write_rows(fresh, places))
                self.write_index(names)
            everything = IdLookup(_stack([shard.ids for shard in self.shards()]))
            for piece in pieces:
                if (everything.locate(piece.ids) >= 0).all():
                    piece.path.unlink()

    def write_rows(self, ids: IdArray, places: Places) -> Iterator[str]:
        """Write these rows as shards of at most `SHARD_BYTES`; gives their names."""
        width = places.files[0].shape[1]
        step = max(1, SHARD_BYTES // max(1, width * np.dtype(self.spec.dtype).itemsize))
        for start in range(0, len(ids), step):
            stop = min(start + step, len(ids))
            yield self.write_shard("shards", ids[start:stop], _blocks(places, start, stop), width)


def _blocks(places: Places, start: int, stop: int) -> Iterator[NDArray[Any]]:
    for begin in range(start, stop, _BLOCK_ROWS):
        rows = slice(begin, min(begin + _BLOCK_ROWS, stop))
        file, row = places.file[rows], places.row[rows]
        block = np.empty((len(file), places.files[0].shape[1]), dtype=places.files[0].dtype)
        for number in np.unique(file):
            block[file == number] = places.files[number][row[file == number]]
        yield block


def _stack(ids: Sequence[IdArray]) -> IdArray:
    return np.concatenate([np.zeros((0, 32), np.uint8), *ids])


def locate(shards: Sequence[Shard], wanted: IdArray) -> Places:
    """Where each wanted row stands in these files; missing rows are an error."""
    in_order = _runs(shards, wanted)
    if in_order is not None:
        return in_order
    lookup = IdLookup(_stack([shard.ids for shard in shards]))
    position = lookup.locate(wanted)
    if (position < 0).any():
        missing = wanted[int(np.flatnonzero(position < 0)[0])].tobytes().hex()
        raise CorruptError(
            f"{int((position < 0).sum())} of {len(wanted)} rows are not in the cache any more, the first is sample "
            f"{missing}. Run the extract command again: it encodes what is missing."
        )
    bounds = np.cumsum([0, *(len(shard) for shard in shards)])
    file = np.searchsorted(bounds, position, side="right") - 1
    return Places([shard.rows for shard in shards], file, position - bounds[file])


def _runs(shards: Sequence[Shard], wanted: IdArray) -> Places | None:
    """The places of rows that stand in these files just as wanted, whole files one after the other; else None.

    A set that was extracted at once is found so without any search.
    """
    begins = {bytes(shard.ids[0]): number for number, shard in enumerate(shards) if len(shard)}
    file, row = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
    start = 0
    while start < len(wanted):
        number = begins.get(bytes(wanted[start]))
        if number is None:
            return None
        stop = min(start + len(shards[number]), len(wanted))
        if not np.array_equal(wanted[start:stop], shards[number].ids[: stop - start]):
            return None
        file[start:stop], row[start:stop] = number, np.arange(stop - start)
        start = stop
    return Places([shard.rows for shard in shards], file, row)
