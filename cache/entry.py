"""Entry: the rows of one encoding.

A piece may hold any rows. Sealing copies the rows of a set, in its order, into shards, so that the
sealed bytes depend on the sets alone and not on where an extraction was interrupted. A file with
rows counts once it has its name; a row that is in two of them is the same in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Ids, Indices, id_keys
from probekit.cache.rows import IdIndex, RowFile, StoredRows, map_rows
from probekit.cache.tensors import REPAIR, SUFFIX, write_tensors
from probekit.embeddings import Encoding, Rows
from probekit.errors import CorruptError, MismatchError
from probekit.files import is_held, read_typed, remove_files, write_json
from probekit.rows import PickedRows

if TYPE_CHECKING:
    from probekit.cache.store import Cache

SHARD_BYTES = 1 << 29
WORK = ".work-"
SHARDS = "shards"
PIECES = "pieces"


class Entry:
    """One encoding's folder, which may not exist yet. Reading takes no lock."""

    def __init__(self, cache: Cache, digest: str, encoding: Encoding | None = None) -> None:
        self.digest = digest
        self.folder = cache.root / "encodings" / digest
        self._cache = cache
        self._encoding = encoding

    @property
    def encoding(self) -> Encoding:
        if self._encoding is None:
            self._encoding = read_typed(self.folder / "encoding.json", Encoding, remedy=REPAIR)
        return self._encoding

    def paths(self, *kinds: str) -> list[Path]:
        """The files with rows, shards or pieces."""
        return [path for kind in kinds for path in sorted((self.folder / kind).glob(f"*{SUFFIX}"))]

    def shards(self) -> list[RowFile]:
        return self._open(SHARDS)

    def pieces(self) -> list[RowFile]:
        return self._open(PIECES)

    def files(self) -> list[RowFile]:
        """All files with rows, shards first; pieces are read before them, as they become shards."""
        pieces = self.pieces()
        return [*self.shards(), *pieces]

    def _open(self, kind: str) -> list[RowFile]:
        paths = self.paths(kind)
        try:
            return [RowFile.open(path) for path in paths]
        except CorruptError:
            if self.paths(kind) == paths:
                raise
            return self._open(kind)  # another process replaced some of them meanwhile

    def index(self) -> IdIndex:
        return IdIndex(file.ids for file in self.files())

    def holds_sealed(self, ids: Ids) -> NDArray[np.bool_]:
        return IdIndex(shard.ids for shard in self.shards()).holds(ids)

    def save(self, ids: Ids, rows: NDArray[Any]) -> None:
        """Keep rows of an extraction that is not finished; they are durable when this returns.

        Each call is a file and several syncs: save hundreds of rows at once.
        """
        if len(rows):
            with self._cache.changing():
                self._write(PIECES, ids, rows, np.arange(len(rows)))

    def rows(self, ids: Ids, width: int) -> Rows:
        """The rows of these samples, located when first read; CorruptError where one is missing."""
        return StoredRows(self, ids, width=width, dtype=self.encoding.dtype)

    def seal(self, ids: Ids, rows: Rows) -> None:
        """Bring rows that no shard has into shards, in this order; drop pieces that are done with.

        rows are read where they are missing only; usually they are `self.rows(ids)`.
        """
        with self._cache.changing():
            self._describe()
            first = np.sort(np.unique(id_keys(ids), return_index=True)[1])
            missing = first[~self.holds_sealed(ids[first])]
            row_bytes = rows.shape[1] * np.dtype(self.encoding.dtype).itemsize
            step = max(1, SHARD_BYTES // max(1, row_bytes))
            for start in range(0, len(missing), step):
                self._write(SHARDS, ids, rows, missing[start : start + step])
            pieces = self.pieces()
            if pieces:
                sealed = IdIndex(shard.ids for shard in self.shards())
                remove_files(piece.path for piece in pieces if sealed.holds(piece.ids).all())

    def drop(self, ids: Ids) -> None:
        """Write every file that holds one of these rows anew without it, and remove the file.

        Killed in between, some of the rows are still here.
        """
        dropped = IdIndex([ids])
        with self._cache.changing():
            for file in self.files():
                retained = np.flatnonzero(~dropped.holds(file.ids))
                if len(retained) < len(file.ids):
                    if len(retained):
                        self._write(file.path.parent.name, file.ids, file.rows(), retained)
                    remove_files([file.path])
            map_rows.cache_clear()  # what is mapped is not gone

    def is_busy(self) -> bool:
        """Whether an extraction is at work here; none begins while the cache's lock is held."""
        return any(is_held(path) for path in self.folder.glob(f"{WORK}*"))

    def canary(self, name: str = "") -> NDArray[np.float32] | None:
        """The vectors of synthetic samples when this encoding was first used."""
        path = self._canary_path(name)
        if not path.exists():
            return None
        remedy = "Remove it, or restore it from a copy."
        return np.array(read_typed(path, list[list[float]], remedy=remedy), np.float32)

    def keep_canary(self, vectors: NDArray[np.float32], name: str = "") -> None:
        """Keep the vectors of synthetic samples, exactly. name: of their shape, where it varies."""
        with self._cache.changing():
            self._describe()
            write_json(self._canary_path(name), vectors.tolist())

    def _canary_path(self, name: str) -> Path:
        return self.folder / (f"canary-{name}.json" if name else "canary.json")

    def _describe(self) -> None:
        path = self.folder / "encoding.json"
        if not path.exists():
            write_json(path, self.encoding.to_dict())

    def _write(self, kind: str, ids: Ids, rows: Rows, positions: Indices) -> None:
        self._describe()
        for path in self.paths(SHARDS, PIECES)[:1]:
            width = RowFile.open(path).width
            if width != rows.shape[1]:
                raise MismatchError(
                    f"Rows of {self.encoding.backbone} in the cache have width {width}; found "
                    f"{rows.shape[1]}. The backbone's identity must tell them apart."
                )
        picked = PickedRows(rows, positions, np.dtype(self.encoding.dtype))
        tensors: dict[str, Rows] = {"rows": picked, "ids": ids[positions]}
        write_tensors(self.folder / kind, tensors, {"encoding": self.digest})
