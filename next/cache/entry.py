"""Entry: the rows of one encoding.

A piece may hold any rows. Sealing copies the rows of a set, in its order, into shards, so that the
sealed bytes depend on the sets alone and not on where an extraction was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Ids, Indices
from probekit.cache.rows import IdIndex, RowFile, StoredRows, concatenate_ids, first_occurrences
from probekit.cache.tensors import REPAIR, Blocks, checked_digest, remove_files, write_tensors
from probekit.embeddings import BLOCK, Encoding, Rows
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError
from probekit.files import is_held, read_json, write_json

if TYPE_CHECKING:
    from probekit.cache.store import CacheLock

SHARD_BYTES = 1 << 30
WORK = ".work-"
SHARDS = "shards"
PIECES = "pieces"


class Entry:
    """One encoding's folder, which may not exist yet. Reading takes no lock."""

    def __init__(self, folder: Path, lock: CacheLock, encoding: Encoding | None = None) -> None:
        self.folder = folder
        self._lock = lock
        self._encoding = encoding

    @property
    def digest(self) -> str:
        return self.folder.name

    @cached_property
    def encoding(self) -> Encoding:
        if self._encoding is not None:
            return self._encoding
        path = self.folder / "encoding.json"
        try:
            return Encoding.from_dict(read_json(path))
        except (KeyError, TypeError, InputError) as error:
            raise CorruptError(f"{path} must describe an encoding ({error!r}). {REPAIR}") from error

    def shard_names(self) -> list[str]:
        """The shards that count, in order."""
        path = self.folder / "index.json"
        if not path.exists():
            return []
        try:
            return [checked_digest(name, path) for name in read_json(path)["shards"]]
        except (KeyError, TypeError) as error:
            raise CorruptError(f"{path} must list shards ({error!r}). {REPAIR}") from error

    def shard_paths(self) -> list[Path]:
        return [self.folder / SHARDS / f"{name}.safetensors" for name in self.shard_names()]

    def piece_paths(self) -> list[Path]:
        return sorted((self.folder / PIECES).glob("*.safetensors"))

    def shards(self) -> list[RowFile]:
        paths = self.shard_paths()
        try:
            return [RowFile.open(path, keep_mapped=True) for path in paths]
        except CorruptError:
            if self.shard_paths() == paths:
                raise
            return self.shards()  # another process replaced them in between

    def pieces(self) -> list[RowFile]:
        pieces = []
        for path in self.piece_paths():
            try:
                pieces.append(RowFile.open(path, keep_mapped=False))
            except CorruptError:
                if path.exists():
                    raise
        return pieces

    def files(self) -> list[RowFile]:
        """All files with rows, shards first; pieces are read before them, as they become shards."""
        pieces = self.pieces()
        return [*self.shards(), *pieces]

    def known(self) -> IdIndex:
        return IdIndex(concatenate_ids(file.ids for file in self.files()))

    def width(self) -> int | None:
        """Of the rows that are here; None where there are none."""
        for path in self.shard_paths() or self.piece_paths():
            return RowFile.open(path, keep_mapped=False).width
        return None

    def save(self, ids: Ids, rows: NDArray[Any]) -> None:
        """Keep rows of an extraction that is not finished; they are durable when this returns.

        Each call is a file and several syncs: save hundreds of rows at once.
        """
        if rows.ndim != 2 or ids.shape != (len(rows), 32):
            raise InputError(
                f"Expected rows (n, d) and ids (n, 32); found {rows.shape} and {ids.shape}."
            )
        if len(rows):
            with self._lock.changing():
                self._prepare(rows.shape[1])
                self._write(PIECES, ids, rows, np.arange(len(rows)), self._dtype)

    def rows(self, ids: Ids) -> Rows:
        """The rows of these samples, located when first read; CorruptError where one is missing."""
        width = self.width()
        if width is None:
            raise NotFoundError(
                f"The cache has no rows of {self.encoding.backbone}. Run the extract command again."
            )
        return StoredRows(self, ids, width=width, dtype=self.encoding.dtype)

    def seal(self, ids: Ids, rows: Rows) -> None:
        """Bring rows that no shard has into shards, in this order; drop pieces that are done with.

        rows are read where they are missing only; usually they are `self.rows(ids)`.
        """
        with self._lock.changing():
            self._describe()
            names = self.shard_names()
            missing = np.flatnonzero(self._sealed().locate(ids) < 0)
            if len(missing):
                self._prepare(rows.shape[1])
                missing = first_occurrences(ids, missing)
                step = max(1, SHARD_BYTES // max(1, rows.shape[1] * self._dtype.itemsize))
                for start in range(0, len(missing), step):
                    part = missing[start : start + step]
                    names.append(self._write(SHARDS, ids, rows, part, self._dtype))
                self.write_index(names)
            pieces = self.pieces()
            if pieces:
                sealed = self._sealed()
                remove_files([p.path for p in pieces if (sealed.locate(p.ids) >= 0).all()])

    def has_sealed(self, ids: Ids) -> bool:
        return bool((self._sealed().locate(ids) >= 0).all())

    def drop(self, ids: Ids) -> None:
        """Write every file that holds one of these rows anew without it.

        Killed in between, either the old index counts or the new one.
        """
        doomed = IdIndex(ids)
        names: dict[str, list[str]] = {SHARDS: [], PIECES: []}
        with self._lock.changing():
            for file in self.files():
                kind = file.path.parent.name
                retained = np.flatnonzero(doomed.locate(file.ids) < 0)
                if len(retained) == len(file.ids):
                    names[kind].append(file.path.stem)
                elif len(retained):
                    name = self._write(kind, file.ids, file.rows, retained, file.dtype)
                    names[kind].append(name)
            if names[SHARDS] != self.shard_names():
                self.write_index(names[SHARDS])
            self._keep_only(PIECES, names[PIECES])

    def write_index(self, names: Sequence[str]) -> None:
        """Let exactly these shards count, and remove the files of all others."""
        write_json(self.folder / "index.json", {"shards": list(names)})
        self._keep_only(SHARDS, names)

    def remove_other_shards(self) -> None:
        """Remove what a killed process left: shards that do not count."""
        self._keep_only(SHARDS, self.shard_names())

    def is_busy(self) -> bool:
        """Whether an extraction is at work here; none begins while the cache's lock is held."""
        return any(is_held(path) for path in self.folder.glob(f"{WORK}*"))

    def canary(self, name: str = "") -> NDArray[Any] | None:
        """The vectors of synthetic samples when this encoding was first used."""
        path = self._canary_path(name)
        if not path.exists():
            return None
        stored = read_json(path)
        try:
            return np.array(stored["vectors"], stored["dtype"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"{path} must hold vectors ({error!r}). Remove it, or restore it from a copy."
            ) from error

    def keep_canary(self, vectors: NDArray[Any], name: str = "") -> None:
        """Keep the vectors of synthetic samples, exactly. name: of their shape, where it varies."""
        with self._lock.changing():
            self._describe()
            stored = {"dtype": vectors.dtype.name, "vectors": vectors.tolist()}
            write_json(self._canary_path(name), stored)

    def _canary_path(self, name: str) -> Path:
        return self.folder / (f"canary-{name}.json" if name else "canary.json")

    def _sealed(self) -> IdIndex:
        return IdIndex(concatenate_ids(shard.ids for shard in self.shards()))

    def _describe(self) -> None:
        path = self.folder / "encoding.json"
        if not path.exists():
            write_json(path, self.encoding.to_dict())

    def _prepare(self, width: int) -> None:
        """Before rows of this width are written: describe the encoding, or refuse them."""
        self._describe()
        stored = self.width()
        if stored not in (None, width):
            raise MismatchError(
                f"Rows of {self.encoding.backbone} in the cache have width {stored}; found "
                f"{width}. The backbone's identity must tell them apart."
            )

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(self.encoding.dtype)

    def _write(
        self, kind: str, ids: Ids, rows: Rows, positions: Indices, dtype: np.dtype[Any]
    ) -> str:
        shape = (len(positions), rows.shape[1])
        tensors = {
            "rows": Blocks(shape, dtype, _blocks(rows, positions)),
            "ids": Blocks.of(ids[positions]),
        }
        return write_tensors(self.folder / kind, tensors, {"encoding": self.digest})

    def _keep_only(self, kind: str, names: Sequence[str]) -> None:
        paths = (self.folder / kind).glob("*.safetensors")
        remove_files([path for path in paths if path.stem not in names])


def _blocks(rows: Rows, positions: Indices) -> Iterator[NDArray[Any]]:
    for start in range(0, len(positions), BLOCK):
        yield rows[positions[start : start + BLOCK]]
