"""The store on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from probekit.cache.entry import Entry, changing, check_schema, locate
from probekit.cache.ids import IdLookup, hex_ids, pack, stack
from probekit.cache.rows import Places, StoredRows
from probekit.cache.sets import SetShelf, assemble
from probekit.errors import NotFoundError, StorageError
from probekit.files import acquire, default_root, read_json, storing, write_json, write_text
from probekit.values import SCHEMA, EmbeddingSet, EncodingSpec, Rows

_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache made by probekit.\n"
_BLOCK_ROWS = 8192


class DiskStore:
    """Embeddings in a folder, shared by every command and every process of this user.

    `waiting` is called once with a sentence when another process is found doing the same work.
    """

    def __init__(self, root: Path | str | None = None, *, waiting: Callable[[str], None] | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.sets = SetShelf(self.root)
        self._waiting = waiting
        marker = self.root / "probekit.json"
        if marker.exists():
            check_schema(read_json(marker).get("schema"), marker)

    def _prepare(self) -> None:
        """Make the folder a cache that backup programs recognise."""
        marker = self.root / "probekit.json"
        if not marker.exists():
            with changing(self.root):
                write_text(self.root / "CACHEDIR.TAG", _TAG)
                write_json(marker, {"schema": SCHEMA})

    @contextmanager
    def _changed(self, spec: EncodingSpec) -> Iterator[Entry]:
        """The folder of a spec, described, while something is put into it."""
        self._prepare()
        entry = self.entry(spec)
        with changing(entry.folder):
            if not (entry.folder / "spec.json").exists():
                write_json(entry.folder / "spec.json", {"backbone": spec.backbone, **spec.identity})
            yield entry

    def entry(self, spec: EncodingSpec | str) -> Entry:
        """The folder of a spec, which may not exist yet."""
        return Entry(self.root / "rows" / (spec if isinstance(spec, str) else spec.digest))

    def entries(self) -> list[Entry]:
        """Every spec's folder."""
        return [Entry(path.parent) for path in sorted((self.root / "rows").glob("*/spec.json"))]

    def specs(self) -> Sequence[EncodingSpec]:
        """Every spec that has an entry."""
        return [entry.spec for entry in self.entries()]

    def known(self, spec: EncodingSpec) -> Container[str]:
        """The ids that have an embedding, sealed or not."""
        return IdLookup(stack(file.ids for file in self.entry(spec).files()))

    def load(self, spec: EncodingSpec, ids: Sequence[str], *, masked: NDArray[np.bool_] | None = None) -> Rows:
        """The embeddings of these samples, mapped and found when first read; NaN where masked."""
        files, wanted = self.entry(spec).files(), pack(ids)
        width = files[0].rows.shape[1] if files else 0

        def find() -> Places:
            stay = np.ones(len(wanted), bool) if masked is None else ~masked
            file, row = np.full(len(wanted), -1), np.full(len(wanted), -1)
            places = locate(files, wanted[stay])
            file[stay], row[stay] = places.file, places.row
            return Places(places.files, file, row)

        return StoredRows(find, (len(wanted), width), spec.dtype)

    def save(self, spec: EncodingSpec, ids: Sequence[str], rows: NDArray[Any]) -> None:
        """Keep these rows; after this returns, no crash loses them."""
        with self._changed(spec) as entry:
            entry.write_shard("pieces", pack(ids), rows)

    def seal(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """Put the rows in the order of the set and keep the set; gives it as the store loads it."""
        entry = self.entry(embeddings.spec)
        if entry.pieces():
            entry.seal(pack(embeddings.ids)[embeddings.usable])
        if not (self.root / "sets" / embeddings.digest).exists():
            self._prepare()
        return self.open(self.sets.write(embeddings))

    def adopt(self, embeddings: EmbeddingSet, name: str) -> EmbeddingSet:
        """Keep a set from elsewhere under a name: the rows that are not here yet, then the set; gives it as loaded."""
        spec, ids, known = embeddings.spec, embeddings.ids, self.known(embeddings.spec)
        fresh = np.array([row for row in embeddings.usable.tolist() if ids[row] not in known], dtype=np.int64)
        for start in range(0, len(fresh), _BLOCK_ROWS):
            rows = fresh[start : start + _BLOCK_ROWS]
            self.save(spec, [ids[row] for row in rows], embeddings.embeddings[rows])
        sealed = self.seal(replace(embeddings, embeddings=self.load(spec, ids, masked=embeddings.masked)))
        self.sets.give_name(name, sealed.digest)
        return sealed

    def open(self, name: str) -> EmbeddingSet:
        """The set of this name or digest. Costs the same whatever its size: nothing is read until it is used."""
        digest = self.sets.resolve(name)
        note, columns = self.sets.read_note(digest), self.sets.read_columns(digest)
        entry = self.entry(note["spec"])
        if not (entry.folder / "spec.json").exists():
            raise NotFoundError(f"The rows of set {name!r} are gone. Run its extract command again.")
        masked = columns.get("masked")
        rows = self.load(entry.spec, hex_ids(columns["ids"]), masked=None if masked is None else masked.astype(bool))
        return assemble(note, columns, spec=entry.spec, rows=rows)

    def canary(self, spec: EncodingSpec) -> NDArray[Any] | None:
        """The vectors of the synthetic samples when this spec was first used."""
        path = self.entry(spec).folder / "canary.json"
        return np.array(read_json(path), dtype=np.float32) if path.exists() else None

    def keep_canary(self, spec: EncodingSpec, vectors: NDArray[Any]) -> None:
        """Remember those vectors, exactly (a float32 survives JSON)."""
        with self._changed(spec) as entry:
            write_json(entry.folder / "canary.json", np.asarray(vectors, dtype=np.float32).astype(float).tolist())

    @contextmanager
    def working(self, spec: EncodingSpec, purpose: str) -> Iterator[None]:
        """Held while rows are made, so that a second process waits and then finds them made."""
        folder = self.entry(spec).folder
        lock = FileLock(folder / f".work-{hashlib.sha256(purpose.encode()).hexdigest()[:16]}")
        with suppress(StorageError), storing(folder):  # a read-only cache can still be read; writing to it will say so
            folder.mkdir(parents=True, exist_ok=True)
            acquire(lock, "Another process is extracting the same set; waiting for it to finish.", self._waiting)
        try:
            yield
        finally:
            lock.release()
