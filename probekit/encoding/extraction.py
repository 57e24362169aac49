"""One run of an extraction: rows come in from the loader, batches go through the backbone into the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.custody.columns import salted
from probekit.datasets.table import RowRange
from probekit.encoding.loading import Prepare, Prepared, length_of, prepared
from probekit.encoding.options import ExtractOptions, ExtractProgress
from probekit.errors import InputError, ProbekitError, SampleError
from probekit.protocols import Backbone, Dataset, Store
from probekit.values import EmbeddingSet, EncodingSpec, Skipped, content_id
from probekit.values.groups import group_numbers

SHALLOW = 2**14
"""16-bit pictures that stay below this were taken with fewer bits, and most of 8 bits would be lost on them."""


@dataclass
class Extraction:
    """One run: rows come in from the loader, batches of new samples go through the backbone into the store."""

    backbone: Backbone
    data: Dataset
    store: Store
    spec: EncodingSpec
    options: ExtractOptions
    report: Callable[[ExtractProgress], None]
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        on_cpu = getattr(self.backbone, "device", "cpu") == "cpu"
        self.batch_size = self.options.batch_size or (32 if on_cpu else 128)  # never by load: it moves the last bits
        self.first = 0
        if self.options.shard is not None:
            self.data = part = shard_of(self.data, *self.options.shard, batch=self.batch_size)
            self.first = part.start
        self.rows: list[Prepared] = []
        self.skipped: list[Skipped] = []
        self.pending: list[Prepared] = []
        self.seen: set[str] = set()
        self.restored: set[str] = set()
        self.bad: dict[str, str] = {}
        self.unsaved: dict[str, NDArray[Any]] = {}
        self.saved = time.monotonic()
        self.deepest = 0
        self.now = ExtractProgress(0, length_of(self.data))

    def run(self) -> EmbeddingSet:
        """Read, encode, keep, seal."""
        began = time.perf_counter()
        known = self.store.known(self.spec)
        prepare = Prepare(self.backbone.preprocess, self.options.trigger, known, self.options.window)
        rows = prepared(self.data, prepare, chunk=self.batch_size, workers=self.options.num_workers)
        try:
            for chunk in rows:
                erased = self.store.erased(row.id for row in chunk if row.id)
                for row in chunk:
                    self._take(row, erased=row.id in erased)
                while len(self.pending) >= self.batch_size:
                    self._encode(self.batch_size)
                self._tell(seconds=time.perf_counter() - began)
            if self.pending:
                self._encode(len(self.pending))
        finally:
            rows.close()
            self._save()
        if 0 < self.deepest < SHALLOW:
            self.note(
                f"The 16-bit pictures reach only {self.deepest} of 65535: as 8-bit pictures they keep "
                f"{(self.deepest + 128) // 257 + 1} grey levels. Give `window=(0, {self.deepest})` to use them all."
            )
        embeddings = self._assemble()
        self._tell(seconds=time.perf_counter() - began)
        if self.options.shard is None:
            return self.store.seal(embeddings)
        shelve = getattr(self.store, "shelve", None)
        if shelve is None:
            raise InputError("A shard is kept in a cache on disk. Give a `store`, or extract without `shard`.")
        kept: EmbeddingSet = shelve(embeddings)
        return kept

    def _tell(self, **changes: Any) -> None:
        self.now = replace(self.now, skipped=len(self.skipped), **changes)
        self.report(self.now)

    def _take(self, row: Prepared, *, erased: bool) -> None:
        """Note a row; queue its sample if it must be encoded."""
        self.now = replace(self.now, rows=self.now.rows + 1)
        self.deepest = max(self.deepest, row.deepest)
        if erased and not self.options.restore_erased:
            self.now = replace(self.now, erased=self.now.erased + 1)
            return
        if erased:
            self.restored.add(row.id)
        if row.error is not None:
            self.rows += self._leave_out(row, row.error)
            return
        self.rows.append(replace(row, content=None))
        if row.content is None or row.id in self.seen:
            self.now = replace(self.now, reused=self.now.reused + 1)
        else:
            self.seen.add(row.id)
            self.pending.append(row)

    def _leave_out(self, row: Prepared, reason: str) -> list[Prepared]:
        """Refuse, skip or mask a sample that cannot be used; gives the row that stays in its place, if any."""
        if self.options.on_error == "raise":
            raise SampleError(
                f"Sample {row.name!r} (row {self.first + row.number}) cannot be encoded: {reason} "
                'What was encoded before it is kept; repair or remove it, or give on_error="skip" or on_error="mask".'
            )
        self.skipped.append(Skipped(self.first + row.number, row.name, reason))
        masked = replace(row, error=reason, id=row.id or content_id("unreadable", row.name.encode()))
        return [masked] if self.options.on_error == "mask" else []

    def _encode(self, count: int) -> None:
        """Put the first pending samples through the backbone and into the buffer."""
        batch, self.pending = self.pending[:count], self.pending[count:]
        stored = self._tried(batch).astype(self.spec.dtype)
        good = np.isfinite(stored).all(axis=1)
        for row, fine, vector in zip(batch, good, stored, strict=True):
            if fine:
                self.unsaved[row.id] = vector
                continue
            why = (
                f"its embedding is not finite in {self.spec.dtype}. Look at the picture and the preprocessing"
                f"{'' if self.spec.dtype == 'float32' else ', or store float32'}."
            )
            self.bad.setdefault(row.id, why)
        for row in batch if self.options.on_error == "raise" and not good.all() else ():
            if row.id in self.bad:
                self._leave_out(row, self.bad[row.id])
        late = time.monotonic() - self.saved >= self.options.save_seconds
        if late or len(self.unsaved) >= self.options.save_rows:
            self._save()
        self.now = replace(self.now, encoded=self.now.encoded + int(good.sum()))

    def _save(self) -> None:
        """Hand the store what was encoded, often enough that an interruption loses little."""
        unsaved, self.unsaved, self.saved = self.unsaved, {}, time.monotonic()
        if unsaved:
            self.store.restore(self.restored & unsaved.keys())
            self.store.save(self.spec, list(unsaved), np.stack(list(unsaved.values())))

    def _tried(self, batch: list[Prepared]) -> NDArray[Any]:
        """The vectors of a batch. Where `encode` stumbles, of each sample by itself; NaN for those that it cannot do.

        The canary was encoded before, so it is the samples that it stumbles over.
        """
        try:
            return self._shaped(self._vectors([row.content for row in batch]), len(batch))
        except (ProbekitError, MemoryError):
            raise
        except Exception as error:
            if len(batch) == 1:
                self.bad[batch[0].id] = f"{self.backbone.name} fails on it ({type(error).__name__}: {error})."
                return np.full((1, 1), np.nan)
        each = [self._tried([row]) for row in batch]
        width = max(one.shape[1] for one in each)
        return np.concatenate([one if one.shape[1] == width else np.full((1, width), np.nan) for one in each])

    def _shaped(self, vectors: NDArray[Any], count: int) -> NDArray[Any]:
        if vectors.shape[:1] != (count,) or vectors.ndim != 2:
            wanted = f"one vector per sample, ({count}, d)"
            raise InputError(f"{self.backbone.name} must give {wanted}; it gave {vectors.shape}. Repair its `encode`.")
        return vectors

    def _vectors(self, contents: list[Any]) -> NDArray[Any]:
        """The backbone's answer; when the device has no room for a batch of our choosing, smaller ones."""
        try:
            return np.asarray(self.backbone.encode(contents))
        except Exception as error:
            if type(error).__name__ != "OutOfMemoryError":
                raise
            if self.options.batch_size is not None or len(contents) == 1:
                raise InputError(
                    f"{self.backbone.name} has no room for a batch of {len(contents)}: {error} "
                    "Give a smaller `batch_size`, or another `device`."
                ) from error
        half = len(contents) // 2
        self.batch_size = min(self.batch_size, max(1, half))
        return np.concatenate([self._vectors(contents[:half]), self._vectors(contents[half:])])

    def _assemble(self) -> EmbeddingSet:
        """The set of all rows read, in dataset order."""
        rows: list[Prepared] = []
        gone = self.store.erased({row.id for row in self.rows})  # while this was at work
        stay = [row for row in self.rows if row.id not in gone]
        self.now = replace(self.now, erased=self.now.erased + len(self.rows) - len(stay))
        for row in stay:
            bad = self.bad.get(row.id) if row.error is None else None
            rows += [row] if bad is None else self._leave_out(row, bad)
        if not rows and self.options.shard is None:
            raise InputError(
                f"No sample of {self.data.name} could be encoded ({len(self.skipped)} were left out, {self.now.erased} "
                "were erased on request). Look at the data set and its columns."
            )
        ids, masked = [row.id for row in rows], np.array([row.error is not None for row in rows])
        clients = [row.client for row in rows if row.client is not None]
        kept = sorted({name for row in rows for name in row.columns})
        return EmbeddingSet(
            spec=self.spec,
            embeddings=self.store.load(self.spec, ids, masked=masked),
            labels=np.array([row.label for row in rows], dtype=np.int64),
            ids=ids,
            class_names=tuple(self.data.class_names),
            clients=clients if len(clients) == len(rows) else None,
            names=[row.name for row in rows],
            masked=masked if masked.any() else None,
            skipped=tuple(sorted(self.skipped, key=lambda skipped: skipped.row)),
            source=self.data.name,
            columns={name: salted([row.columns.get(name, "") for row in rows]) for name in kept},
            groups=self._groups(rows),
            group_column=self.options.group or "",
        )

    def _groups(self, rows: list[Prepared]) -> NDArray[np.int64] | None:
        """The groups of the rows, numbered as in every set of the store."""
        column = self.options.group
        if column is None:
            return None
        if not any(column in row.columns for row in rows):
            raise InputError(
                f"{self.data.name} brought no column {column!r} to group by. Name it in `columns` as kept."
            )
        values = [row.columns.get(column, "") for row in rows]
        return group_numbers(values, [row.id for row in rows], key=self.store.group_key())


def shard_of(data: Dataset, number: int, shards: int, *, batch: int) -> RowRange:
    """One of so many shares of a data set. Shares begin where batches do, so that batches are those of one process."""
    length = length_of(data)
    if length is None:
        raise InputError(f"{data.name} is read in passing and cannot be shared out. Leave out `shard` or streaming.")
    batches = -(-length // batch)
    start, stop = (min(length, batch * (batches * place // shards)) for place in (number, number + 1))
    return RowRange(data, start, stop)
