"""The store on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from probekit.cache.entry import Entry, check_schema, locate
from probekit.cache.ids import IdArray, IdLookup, hex_ids, pack, stack
from probekit.cache.journal import changing, check_ready
from probekit.cache.keys import make_key, read_key
from probekit.cache.rows import Places, StoredRows
from probekit.cache.sets import SetShelf, assemble
from probekit.cache.tombstones import Tombstones
from probekit.errors import InputError, NotFoundError, StorageError
from probekit.files import acquire, default_root, read_json, storing, write_json, write_text
from probekit.values import SCHEMA, EmbeddingSet, EncodingSpec, Rows

_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache made by probekit.\n"
WORK = ".work-"
"""How the names of locks begin that are held while rows of a spec are made."""


class DiskStore:
    """Embeddings in a folder, shared by every command and every process of this user.

    `waiting` is called once with a sentence when another process is found doing the same work. A cache in which a
    removal was interrupted is refused, except to who comes to finish it (`unfinished`).
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        waiting: Callable[[str], None] | None = None,
        unfinished: bool = False,
    ) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.sets, self.tombstones = SetShelf(self.root), Tombstones(self.root)
        self.waiting = waiting
        if not unfinished:
            check_ready(self.root)
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
        with changing(self.root):
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
        """Keep these rows; after this returns, no crash loses them. Those of erased samples are not kept."""
        with self._changed(spec) as entry:
            erased = self.erased(ids)
            if erased:
                stay = [row for row, sample in enumerate(ids) if sample not in erased]
                ids, rows = [ids[row] for row in stay], rows[stay]
            if len(ids):
                entry.write_shard("pieces", pack(ids), rows)

    def seal(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """Put the rows in the order of the set and keep the set; gives it as the store loads it.

        Refused where a row is not there: it was erased, or its file set aside, since it was saved.
        """
        entry, digest = self.entry(embeddings.spec), embeddings.digest
        wanted = pack(embeddings.ids)[embeddings.usable]
        complete = self.sets.has(embeddings)
        if complete and not entry.pieces():
            locate(entry.files(), wanted)
            return self.open(digest)
        try:
            self._seal(embeddings, entry, wanted)
        except StorageError:  # a complete set of a read-only cache can be read
            if not complete:
                raise
            locate(entry.files(), wanted)
        return self.open(digest)

    def shelve(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """Keep a set that is part of a larger one: its rows stay where they are until that one is sealed."""
        self._seal(embeddings, self.entry(embeddings.spec), pack(embeddings.ids)[embeddings.usable], ordered=False)
        return self.open(embeddings.digest)

    def _seal(self, embeddings: EmbeddingSet, entry: Entry, wanted: IdArray, *, ordered: bool = True) -> None:
        self._prepare()
        with changing(self.root):
            if erased := self.erased(embeddings.ids):
                raise InputError(
                    f"{len(erased)} samples of this set were erased from {self.root} on request. Leave them out, or "
                    "bring them back with `restore` before their rows are saved."
                )
            locate(entry.files(), wanted)
            if ordered:
                entry.seal(wanted)
            self.sets.write(embeddings)

    def erased(self, ids: Iterable[str]) -> set[str]:
        """Those of these samples that were erased on request."""
        return self.tombstones.among(ids)

    def restore(self, ids: Iterable[str]) -> None:
        """Let erased samples come back."""
        self.tombstones.remove(ids)

    def adopt(self, embeddings: EmbeddingSet, name: str, *, restore_erased: bool = False) -> EmbeddingSet:
        """Keep a set from elsewhere under a name: the rows that are not here yet, then the set; gives it as loaded.

        restore_erased: also where samples of it were erased here, which then come back.
        """
        spec, ids = embeddings.spec, embeddings.ids
        erased = self.erased(ids)
        if erased and not restore_erased:
            raise InputError(
                f"{len(erased)} samples of this set were erased from {self.root} on request. Give "
                "`restore_erased=True` to bring them back; nothing was added."
            )
        with self.working(spec, f"set {embeddings.digest}"):
            self.restore(erased)
            with self._changed(spec) as entry:
                entry.append(pack(ids), embeddings.embeddings, embeddings.usable)
            sealed = self.seal(replace(embeddings, embeddings=self.load(spec, ids, masked=embeddings.masked)))
            self.sets.give_name(name, sealed.digest)
        return sealed

    def open(self, name: str) -> EmbeddingSet:
        """The set of this name or digest. Costs the same whatever its size: nothing is read until it is used."""
        check_ready(self.root)
        digest = self.sets.resolve(name)
        note, columns = self.sets.read_note(digest), self.sets.read_columns(digest)
        entry = self.entry(note["spec"])
        if not (entry.folder / "spec.json").exists():
            raise NotFoundError(f"The rows of set {name!r} are gone. Run its extract command again.")
        masked = columns.get("masked")
        rows = self.load(entry.spec, hex_ids(columns["ids"]), masked=None if masked is None else masked.astype(bool))
        return assemble(note, columns, spec=entry.spec, rows=rows)

    def canary(self, spec: EncodingSpec, samples: str = "") -> NDArray[Any] | None:
        """The vectors of the synthetic samples when this spec was first used."""
        return self.canaries(spec).get(samples)

    def canaries(self, spec: EncodingSpec) -> dict[str, NDArray[Any]]:
        """All that are kept, by the names of their samples."""
        paths = {path.stem.removeprefix("canary").lstrip("-"): path for path in self.entry(spec).canary_paths()}
        return {name: np.array(read_json(path), dtype=np.float32) for name, path in paths.items()}

    def keep_canary(self, spec: EncodingSpec, vectors: NDArray[Any], samples: str = "") -> None:
        """Remember those vectors, exactly (a float32 survives JSON)."""
        name = f"canary-{samples}.json" if samples else "canary.json"
        with self._changed(spec) as entry:
            write_json(entry.folder / name, np.asarray(vectors, dtype=np.float32).astype(float).tolist())

    def group_key(self) -> bytes:
        """The key that numbers groups alike in all sets of this cache; made when first asked for."""
        path = self.root / "groups.key"
        if not path.exists():
            self._prepare()
            with changing(self.root):
                if not path.exists():  # another process may have been first
                    return make_key(path)
        return read_key(path, "groups of new sets could not be compared with those of old ones")

    @contextmanager
    def working(self, spec: EncodingSpec, purpose: str) -> Iterator[None]:
        """Held while rows are made, so that a second process waits and then finds them made.

        Nothing but a purge takes rows of this spec meanwhile; the cache is taken for a moment, so that a removal that
        did not see this coming ends first.
        """
        folder = self.entry(spec).folder
        lock = FileLock(folder / f"{WORK}{hashlib.sha256(purpose.encode()).hexdigest()[:16]}")
        notice = "Another process is extracting the same set; waiting for it to finish."
        try:
            with suppress(StorageError), storing(folder):  # a read-only cache can still be read; writing will say so
                folder.mkdir(parents=True, exist_ok=True)
                acquire(lock, notice, self.waiting)
                with changing(self.root):
                    pass
            yield
        finally:
            lock.release()
