"""dataset x backbone x store -> EmbeddingSet, in batches, each sample encoded once, resumable at any instant."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.backbones import backbone as find_backbone
from probekit.cache.memory import MemoryStore
from probekit.custody.columns import salted
from probekit.datasets import dataset as find_dataset
from probekit.encoding.canary import check_canary
from probekit.encoding.loading import Prepare, Prepared, length_of, prepared
from probekit.errors import InputError, SampleError
from probekit.protocols import Backbone, Dataset, Store, Trigger
from probekit.values import EmbeddingSet, EncodingSpec, Skipped, content_id

ON_ERROR = ("raise", "skip", "mask")


@dataclass(frozen=True)
class ExtractOptions:
    """How to extract; None lets the machine decide.

    batch_size, num_workers: samples encoded at once, and processes that decode.
    dtype: how rows are stored. on_error: "raise", "skip" or "mask" a sample that cannot be used.
    trigger: pasted on every picture first. save_rows, save_seconds: rows are made safe when that many, or that old.
    restore_erased: bring samples back that were erased from the store on request; else they are left out.
    """

    batch_size: int | None = None
    num_workers: int | None = None
    dtype: str = "float32"
    on_error: str = "raise"
    trigger: Trigger | None = None
    save_rows: int = 1024
    save_seconds: float = 15.0
    restore_erased: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise InputError(f"Cannot handle bad samples by {self.on_error!r}: choose one of {', '.join(ON_ERROR)}.")
        for name in ("batch_size", "save_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`{name}` must be at least 1; found {value}.")


@dataclass(frozen=True)
class ExtractProgress:
    """How far an extraction is: rows read, rows encoded now, rows that were there, samples left out, rows of samples
    that were erased on request."""

    rows: int
    total: int | None
    encoded: int = 0
    reused: int = 0
    skipped: int = 0
    erased: int = 0
    seconds: float = 0.0


def spec_of(backbone: Backbone, *, dtype: str = "float32", trigger: Trigger | None = None) -> EncodingSpec:
    """The identity of the embeddings that this backbone will give."""
    return EncodingSpec(
        backbone=backbone.name,
        weights=backbone.fingerprint,
        preprocessing=backbone.preprocessing,
        view=backbone.view,
        dtype=dtype,
        precision=getattr(backbone, "precision", "float32"),
        trigger=trigger.name if trigger is not None else None,
    )


def extract(
    backbone: str | Any,
    dataset: str | Any,
    *,
    store: Store | None = None,
    progress: Callable[[ExtractProgress], None] | None = None,
    **settings: Any,
) -> EmbeddingSet:
    """Encode every sample of a dataset that the store does not hold yet.

    backbone, dataset: what `backbone` and `dataset` take, or give.
    store: where embeddings are kept; left out, in memory only.
    progress: called after every chunk of rows.
    settings: the fields of `ExtractOptions`.
    Gives the EmbeddingSet, in dataset order.
    """
    options = ExtractOptions(**settings)
    encoder, data = find_backbone(backbone), find_dataset(dataset)
    if data.kind != encoder.kind:
        raise InputError(f"{encoder.name} encodes {encoder.kind} samples, but {data.name} holds {data.kind} samples.")
    kept = store if store is not None else MemoryStore()
    spec = spec_of(encoder, dtype=options.dtype, trigger=options.trigger)
    with kept.working(spec, data.name):
        check_canary(encoder, kept, spec)
        return _Extraction(encoder, data, kept, spec, options, progress or (lambda _: None)).run()


@dataclass
class _Extraction:
    """One run: rows come in from the loader, batches of new samples go through the backbone into the store."""

    backbone: Backbone
    data: Dataset
    store: Store
    spec: EncodingSpec
    options: ExtractOptions
    report: Callable[[ExtractProgress], None]

    def __post_init__(self) -> None:
        on_cpu = getattr(self.backbone, "device", "cpu") == "cpu"
        self.batch_size = self.options.batch_size or (32 if on_cpu else 128)  # never by load: it moves the last bits
        self.rows: list[Prepared] = []
        self.skipped: list[Skipped] = []
        self.pending: list[Prepared] = []
        self.seen: set[str] = set()
        self.restored: set[str] = set()
        self.bad: dict[str, str] = {}
        self.unsaved: dict[str, NDArray[Any]] = {}
        self.saved = time.monotonic()
        self.now = ExtractProgress(0, length_of(self.data))

    def run(self) -> EmbeddingSet:
        """Read, encode, keep, seal."""
        began = time.perf_counter()
        prepare = Prepare(self.backbone.preprocess, self.options.trigger, self.store.known(self.spec))
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
        embeddings = self._assemble()
        self._tell(seconds=time.perf_counter() - began)
        return self.store.seal(embeddings)

    def _tell(self, **changes: Any) -> None:
        self.now = replace(self.now, skipped=len(self.skipped), **changes)
        self.report(self.now)

    def _take(self, row: Prepared, *, erased: bool) -> None:
        """Note a row; queue its sample if it must be encoded."""
        self.now = replace(self.now, rows=self.now.rows + 1)
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
                f"Sample {row.name!r} (row {row.number}) cannot be encoded: {reason} "
                'What was encoded before it is kept; repair or remove it, or give on_error="skip" or on_error="mask".'
            )
        self.skipped.append(Skipped(row.number, row.name, reason))
        masked = replace(row, error=reason, id=row.id or content_id("unreadable", row.name.encode()))
        return [masked] if self.options.on_error == "mask" else []

    def _encode(self, count: int) -> None:
        """Put the first pending samples through the backbone and into the buffer."""
        batch, self.pending = self.pending[:count], self.pending[count:]
        vectors = self._vectors([row.content for row in batch])
        if vectors.shape[:1] != (len(batch),) or vectors.ndim != 2:
            wanted = f"one vector per sample, ({len(batch)}, d)"
            raise InputError(f"{self.backbone.name} must give {wanted}; it gave {vectors.shape}. Repair its `encode`.")
        stored = vectors.astype(self.spec.dtype)
        good = np.isfinite(stored).all(axis=1)
        for row, fine, vector in zip(batch, good, stored, strict=True):
            if fine:
                self.unsaved[row.id] = vector
                continue
            self.bad[row.id] = (
                f"its embedding is not finite in {self.spec.dtype}. Look at the picture and the preprocessing"
                f"{'' if self.spec.dtype == 'float32' else ', or store float32'}."
            )
            if self.options.on_error == "raise":
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
        if not rows:
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
        )


def set_name(
    dataset: str, split: str | None, backbone: str, *, trigger: str | None = None, limit: int | None = None
) -> str:
    """A name for the set made of what it is: digits-efficientnet-lite0."""
    parts = [dataset.partition(":")[2] or dataset, split, backbone.partition(":")[2] or backbone, trigger]
    parts.append(f"first{limit}" if limit else None)
    slug = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts if part)
    return slug[-100:].lstrip("-._")
