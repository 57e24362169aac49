"""The rows of one spec on disk: an index of sealed shards, and pieces of work not yet sealed.

    rows/<spec digest>/spec.json      what the rows are
                       canary.json    vectors of the synthetic samples, when first encoded (and canary-*.json: arrays)
                       index.json     the shards that count, in order; written last
                       shards/        <sha256>.safetensors: "rows" (n, d) and "ids" (n, 32)
                       pieces/        the same form; written while an extraction runs

A piece may hold any rows; sealing copies the rows of a set, in its order, into shards. So the sealed files depend on
the set alone and not on where an extraction was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache.ids import IdArray, IdLookup, first_of, keys, stack
from probekit.cache.journal import changing
from probekit.cache.matrices import map_tensors, write_tensors
from probekit.cache.rows import Places, StoredRows
from probekit.errors import CacheError, CorruptError
from probekit.files import checked_digest, read_json, sync_folder, write_json
from probekit.values import SCHEMA, EncodingSpec, Rows

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
        tensors, _ = map_tensors(path)
        try:
            self.rows: NDArray[Any] = tensors["rows"]
            self.ids: IdArray = tensors["ids"]
        except KeyError as error:
            raise CorruptError(f"{path} holds no {error}. Run `probekit cache verify --repair`.") from error

    @property
    def name(self) -> str:
        """The sha256 that the file's bytes must have."""
        return self.path.stem


class Entry:
    """One spec's folder. Reading takes no lock; every change is made under `changing` the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder.parent.parent

    @cached_property
    def spec(self) -> EncodingSpec:
        """What the rows of this entry are."""
        found = read_json(self.folder / "spec.json")
        check_schema(found.get("schema"), self.folder / "spec.json")
        return EncodingSpec(**found)

    def shard_names(self) -> list[str]:
        """The shards that count, in order."""
        path = self.folder / "index.json"
        if not path.exists():
            return []
        index = read_json(path)
        check_schema(index.get("schema"), path)
        return [checked_digest(name, path) for name in index["shards"]]

    def shard_paths(self) -> list[Path]:
        """Where they are."""
        return [self.folder / "shards" / f"{name}.safetensors" for name in self.shard_names()]

    def write_index(self, names: Sequence[str]) -> None:
        """Let exactly these shards count, and drop the files of all others."""
        write_json(self.folder / "index.json", {"schema": SCHEMA, "shards": list(names)})
        self.keep("shards", names)

    def keep(self, place: str, names: Sequence[str]) -> None:
        """Drop the files in a place but these, for good."""
        stay = set(names)
        gone = [path for path in (self.folder / place).glob("*.safetensors") if path.stem not in stay]
        for path in gone:
            path.unlink()
        if gone:
            sync_folder(self.folder / place)

    def canary_paths(self) -> list[Path]:
        """Where vectors of synthetic samples are kept."""
        return sorted(self.folder.glob("canary*.json"))

    def shards(self) -> list[Shard]:
        """The sealed shards, mapped."""
        return [Shard(path) for path in self.shard_paths()]

    def pieces(self) -> list[Shard]:
        """Rows of extractions that were not sealed, mapped. One that is sealed meanwhile is left out."""
        paths = sorted((self.folder / "pieces").glob("*.safetensors"))
        return [Shard(path) for path in paths if path.exists()]

    def files(self) -> list[Shard]:
        """Everything that holds rows: shards, then pieces. Pieces are looked at first, as they become shards."""
        pieces = self.pieces()
        return [*self.shards(), *pieces]

    def write_shard(self, place: str, ids: IdArray, rows: Rows) -> str:
        """Write rows as a file in `place` ("shards" or "pieces"); gives its name."""
        blocks = (rows[start : start + _BLOCK_ROWS] for start in range(0, len(ids), _BLOCK_ROWS))
        tensors = {"rows": (rows.shape, np.dtype(self.spec.dtype), blocks), "ids": (ids.shape, ids.dtype, [ids])}
        return write_tensors(self.folder / place, tensors, {"schema": SCHEMA, "spec": self.spec.digest})

    def append(self, ids: IdArray, rows: Rows, usable: NDArray[np.int64]) -> None:
        """Seal those of these rows that are not here yet, in their order, at once."""
        with changing(self.root):
            missing = usable[IdLookup(stack(file.ids for file in self.files())).locate(ids[usable]) < 0]
            if not len(missing):
                return
            fresh = missing[np.sort(np.unique(keys(ids[missing]), return_index=True)[1])]
            step = max(1, SHARD_BYTES // max(1, rows[:1].nbytes))
            parts = [fresh[start : start + step] for start in range(0, len(fresh), step)]
            places = (Places([rows], np.zeros(len(part), np.int64), part) for part in parts)  # type: ignore[list-item]
            picked = (StoredRows.of(one) for one in places)
            written = [self.write_shard("shards", ids[part], one) for part, one in zip(parts, picked, strict=True)]
            self.write_index([*self.shard_names(), *written])

    def seal(self, wanted: IdArray) -> None:
        """Bring the rows of these samples into shards, in this order, and drop the pieces they came from."""
        with changing(self.root):
            sealed, pieces = self.shards(), self.pieces()
            fresh = wanted[IdLookup(stack(shard.ids for shard in sealed)).locate(wanted) < 0]
            if len(fresh):
                fresh = fresh[np.sort(np.unique(fresh, axis=0, return_index=True)[1])]
                step = max(1, SHARD_BYTES // max(1, pieces[0].rows[:1].nbytes if pieces else 1))
                parts = [fresh[start : start + step] for start in range(0, len(fresh), step)]
                written = [self.write_shard("shards", part, StoredRows.of(locate(pieces, part))) for part in parts]
                self.write_index([*(shard.name for shard in sealed), *written])
            everything = IdLookup(stack(shard.ids for shard in self.shards()))
            left = [piece.name for piece in pieces if (everything.locate(piece.ids) < 0).any()]
            self.keep("pieces", left)


def locate(shards: Sequence[Shard], wanted: IdArray) -> Places:
    """Where each wanted row stands in these files; missing rows are an error."""
    ids = stack(shard.ids for shard in shards)
    start = first_of(ids, wanted)
    position = np.arange(start, start + len(wanted))
    if not np.array_equal(ids[start : start + len(wanted)], wanted):  # not extracted at once: search
        position = IdLookup(ids).locate(wanted)
    if (position < 0).any():
        missing = wanted[int(np.flatnonzero(position < 0)[0])].tobytes().hex()
        raise CorruptError(
            f"{int((position < 0).sum())} of {len(wanted)} rows are not in the cache any more, the first is sample "
            f"{missing}. Run the extract command again: it encodes what is missing."
        )
    bounds = np.cumsum([0, *(len(shard.ids) for shard in shards)])
    file = np.searchsorted(bounds, position, side="right") - 1
    return Places([shard.rows for shard in shards], file, position - bounds[file])
