"""Encode a dataset with a frozen backbone: each sample once, saved as it goes."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Json, stack_ids, texts
from probekit.backbones import load_backbone
from probekit.backbones.backbone import Backbone
from probekit.cache import Cache, Entry
from probekit.cache.erasure import TOMBSTONES, Tombstones
from probekit.data import DataOptions, read_dataset
from probekit.data.dataset import Dataset, Sample
from probekit.data.pictures import DECODER
from probekit.embeddings import DTYPES, EmbeddingSet, Encoding, Skipped
from probekit.errors import InputError, ProbekitError, SampleError, StorageError
from probekit.extraction.canary import check_canary, check_shape, split_views
from probekit.extraction.loading import Preparation, Prepared, prepared_chunks
from probekit.progress import Progress, Step, silent

CPU_BATCH = 32
GPU_BATCH = 128
SAVE_ROWS = 1024
SAVE_SECONDS = 15.0
"""Rows are written when they are that many, or that old."""
SHALLOW_LEVEL = 1 << 14
SCHEME = re.compile(r"^(hf|st|open_clip|timm|packaged|py):")
PRECISIONS = ("float32", "amp-bfloat16", "amp-float16")
OnError = Literal["skip", "raise"]


@dataclass(frozen=True)
class ExtractOptions:
    """How to extract; None lets the machine decide.

    dtype: how embeddings are stored; precision: what the model computes in; both are in the key.
    prompt, max_length: of text encoders, as `load_backbone` describes them; in the key too.
    on_error: samples that cannot be used; None skips pictures and raises for everything else.
    shard: (i, n): encode share i of n, counted from 0; a last extraction without it makes the set.
    """

    dtype: str = "float32"
    device: str = "auto"
    precision: str = "float32"
    batch_size: int | None = None
    workers: int | None = None
    on_error: OnError | None = None
    shard: tuple[int, int] | None = None
    preprocessing: str = "native"
    prompt: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        choices = {"dtype": DTYPES, "precision": PRECISIONS, "on_error": ("skip", "raise", None)}
        for name, allowed in choices.items():
            value = vars(self)[name]
            if value not in allowed:
                listed = ", ".join(map(str, allowed))
                raise InputError(f"{name} must be one of {listed}; found {value!r}.")
        for name, least in {"batch_size": 1, "workers": 0, "max_length": 1}.items():
            number = vars(self)[name]
            if number is not None and number < least:
                raise InputError(f"{name} must be at least {least}; found {number}.")
        if self.shard is not None and not 0 <= self.shard[0] < self.shard[1]:
            raise InputError(
                f"shard must be (i, n) with i from 0 to n - 1 (--shard 0/4); found {self.shard}."
            )


@dataclass(frozen=True)
class Extracted:
    """The sets of an extraction and their names, by view, and what was done."""

    sets: dict[str, EmbeddingSet]
    names: dict[str, str]
    encoded: int
    reused: int
    notes: tuple[str, ...] = ()


def extract(
    source: object,
    backbone: object,
    *,
    name: str | None = None,
    cache: Cache | None = None,
    data: DataOptions | None = None,
    options: ExtractOptions | None = None,
    progress: Progress = silent,
) -> EmbeddingSet | dict[str, EmbeddingSet]:
    """Embeddings of a dataset, from the cache where they are there.

    source: a path, a name (`hf:uoft-cs/cifar10`, `packaged:digits`), a dataset object.
    backbone: a name (`hf:facebook/dinov2-base#cls`), a torch module or a callable.
    Gives one set, or a set for each view where the backbone has several (`#layer:*`).
    """
    data = data or DataOptions()
    split, dataset = read_dataset(source, data).choose(data.split)
    options = options or ExtractOptions()
    text = source_text(source, dataset)
    encoder = open_backbone(backbone, dataset.kind, options)
    sets = extract_dataset(
        dataset,
        encoder,
        name=name or set_name(text, split, encoder.name, limit=data.limit),
        source=text,
        cache=cache or Cache(),
        window=data.window,
        options=options,
        progress=progress,
    ).sets
    return next(iter(sets.values())) if len(sets) == 1 else sets


def open_backbone(backbone: object, kind: str, options: ExtractOptions) -> Backbone:
    return load_backbone(
        backbone,
        device=options.device,
        precision=options.precision,
        preprocessing=options.preprocessing,
        kind=kind,
        prompt=options.prompt,
        max_length=options.max_length,
    )


def set_name(source: str, split: str, backbone: str, *, limit: int | None = None) -> str:
    """A name for a set: digits-train-efficientnet-lite0."""
    path = Path(source).expanduser()
    title = path.resolve().stem if path.exists() else source
    parts = [title, split, f"first{limit}" if limit else "", backbone]
    return _slug("-".join(SCHEME.sub("", part) for part in parts if part))


def source_text(source: object, dataset: Dataset) -> str:
    """How a dataset was asked for."""
    return str(source) if isinstance(source, str | Path) else dataset.name


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-._")[-100:].lstrip("-._") or "set"


def extract_dataset(
    dataset: Dataset,
    backbone: Backbone,
    *,
    name: str,
    source: str,
    cache: Cache,
    window: tuple[float, float] | None = None,
    options: ExtractOptions | None = None,
    progress: Progress = silent,
) -> Extracted:
    """Encode what the cache lacks, and keep a set for each view."""
    options = options or ExtractOptions()
    if dataset.kind != backbone.kind:
        remedy = "name the column (--image-column, --text-column)"
        if dataset.kind == "array":
            remedy = "leave it out where these are vectors already"
        raise InputError(
            f"{backbone.name} encodes {backbone.kind} samples; {dataset.name} has {dataset.kind} "
            f"samples. Choose another backbone (-b), or {remedy}."
        )
    encodings = [_encoding(backbone, view, options.dtype, window) for view in backbone.views]
    entries = [cache.entry(encoding) for encoding in encodings]
    with cache.working(encodings[0], f"{name} {options.shard}"):
        check_canary(backbone, dataset, entries, options.precision)
        extraction = _Extraction(dataset, backbone, entries, cache, options, window)
        extraction.run(progress)
        sets = dict(zip(backbone.views, extraction.assemble(source), strict=True))
        names = {}
        if options.shard is None:
            several = len(sets) > 1
            names = {view: _slug(f"{name}-{view}") if several else name for view in sets}
            sets = {view: cache.save(names[view], rows) for view, rows in sets.items()}
    notes = []
    if extraction.erased:
        notes.append(erased_note(extraction.erased, cache))
    level = extraction.gray_level
    if 0 < level < SHALLOW_LEVEL:
        notes.append(
            f"The 16-bit pictures reach only {level} of 65535 and keep few gray levels as 8-bit "
            f"pictures. Pass --window 0,{level} to use them all."
        )
    return Extracted(sets, names, extraction.encoded, extraction.reused, tuple(notes))


def erased_note(count: int, cache: Cache) -> str:
    return (
        f"{count:,} samples were erased from {cache.root} and stay out. To encode them again, "
        f"remove {cache.root / TOMBSTONES}."
    )


def _encoding(
    backbone: Backbone, view: str, dtype: str, window: tuple[float, float] | None
) -> Encoding:
    identity: dict[str, Json] = {**backbone.identity, "view": view}
    if window is not None:
        identity["window"] = list(window)
    shape = tuple(getattr(backbone, "sample_shape", ()))
    return Encoding(f"{backbone.name.partition('#')[0]}#{view}", identity, dtype, shape)


@dataclass
class _Extraction:
    """Samples come from the loader; batches of new ones go through the backbone into the cache."""

    dataset: Dataset
    backbone: Backbone
    entries: Sequence[Entry]
    cache: Cache
    options: ExtractOptions
    window: tuple[float, float] | None
    encoded: int = 0
    reused: int = 0
    erased: int = 0
    gray_level: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)
    ids: dict[int, bytes] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    failed: dict[bytes, str] = field(default_factory=dict)
    queue: list[Prepared] = field(default_factory=list)
    queued: set[bytes] = field(default_factory=set)
    unsaved: dict[bytes, NDArray[Any]] = field(default_factory=dict)
    saved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        on_cpu = str(getattr(self.backbone, "device", "cpu")) == "cpu"
        # never chosen by load: another batch size moves the last bits
        self.batch_size = self.options.batch_size or (CPU_BATCH if on_cpu else GPU_BATCH)
        self.width = sum(self.backbone.views.values())
        self.indices = self._share()
        self.tombstones = Tombstones.read(self.cache)

    def run(self, progress: Progress) -> None:
        cached = [entry.index() for entry in self.entries]
        preparation = Preparation(self.dataset, self.backbone.prepare, cached, self.window)
        memo_keys, unknown = self._look_up(preparation, progress)
        self._check_disk(len(unknown) - min(map(len, cached)))
        chunks = prepared_chunks(
            preparation, unknown, chunk=self.batch_size, workers=self.options.workers
        )
        started = time.monotonic()
        done = 0
        try:
            for chunk in chunks:
                for prepared in chunk:
                    self._add(prepared, memo_keys.get(prepared.index))
                while len(self.queue) >= self.batch_size:
                    self._encode_batch()
                done += len(chunk)
                rate = done / (time.monotonic() - started)
                note = (
                    f"{rate:.1f} per second, about {(len(unknown) - done) / rate / 60:.0f} min "
                    f"left, {self.reused:,} cached, {len(self.errors)} skipped"
                )
                finished = len(self.indices) - len(unknown) + done
                progress(Step("encoding", finished, len(self.indices), note))
            while self.queue:
                self._encode_batch()
        finally:
            self._save()
            self.cache.memo.flush()

    def _look_up(
        self, preparation: Preparation, progress: Progress
    ) -> tuple[dict[int, bytes], list[int]]:
        """Take what is cached of unchanged files; gives the memo's keys and the other samples.

        A key is taken before its file is read, so that a later change is seen.
        """
        memo = self.cache.memo
        keys = {}
        unknown = []
        for index in self.indices:
            try:
                sample = self.dataset[index]
            except Exception:  # met again, and reported, when it is read
                sample = Sample(str(index), content=str)
            self.samples[index] = sample
            key = None if sample.path is None else memo.key(sample.path, DECODER)
            id_ = memo.lookup(key)
            if id_ is not None and preparation.is_cached(id_):
                self.ids[index] = id_
                self.reused += 1
                if self.reused % 1000 == 0:
                    progress(Step("looking up", self.reused, len(self.indices)))
                continue
            unknown.append(index)
            if key is not None:
                keys[index] = key
        return keys, unknown

    def _share(self) -> range:
        """The samples of this shard; shards begin where batches do, so that batches stay equal."""
        count = len(self.dataset)
        number, shards = self.options.shard or (0, 1)
        batches = -(-count // self.batch_size)
        start = batches * number // shards * self.batch_size
        stop = batches * (number + 1) // shards * self.batch_size
        return range(count)[start:stop]

    def _check_disk(self, count: int) -> None:
        """Refuse beforehand what the disk cannot hold; rows are written twice, then sorted."""
        needed = 2 * count * self.width * np.dtype(self.options.dtype).itemsize
        root = self.cache.root.absolute()
        free = shutil.disk_usage(next(p for p in (root, *root.parents) if p.exists())).free
        if needed > free:
            raise StorageError(
                f"{count:,} embeddings of {self.width} numbers need up to {needed / 1e9:.1f} GB in "
                f"{root}; {free / 1e9:.1f} GB are free. Free some space, choose another folder "
                "(--cache), or store less (--dtype float16)."
            )

    def _add(self, prepared: Prepared, memo_key: bytes | None) -> None:
        """Note a sample, and queue it if it must be encoded."""
        if prepared.error:
            self._refuse(prepared.index, prepared.error)
            self.errors[prepared.index] = prepared.error
            return
        if prepared.id in self.tombstones:
            self.erased += 1
            return
        if memo_key is not None:
            self.cache.memo.remember(memo_key, prepared.id)
        self.gray_level = max(self.gray_level, prepared.gray_level)
        self.ids[prepared.index] = prepared.id
        if prepared.content is None or prepared.id in self.queued:
            self.reused += 1
        else:
            self.queued.add(prepared.id)
            self.queue.append(prepared)

    def _refuse(self, index: int, reason: str) -> None:
        """Raise, unless samples that cannot be encoded are skipped."""
        default = "skip" if self.dataset.kind == "image" else "raise"
        if (self.options.on_error or default) == "raise":
            raise SampleError(
                f"{self.samples[index].key} cannot be encoded: {reason} What was encoded before "
                "is kept; repair or remove it, or pass on_error='skip' (--on-error skip)."
            )

    def _encode_batch(self) -> None:
        batch = self.queue[: self.batch_size]
        del self.queue[: self.batch_size]
        with np.errstate(over="ignore"):
            vectors = self._encode(batch).astype(self.options.dtype)
        finite = np.isfinite(vectors).all(axis=1)
        for prepared, usable, vector in zip(batch, finite, vectors, strict=True):
            if usable:
                self.unsaved[prepared.id] = vector
                self.encoded += 1
            else:
                reason = f"its embedding is not finite in {self.options.dtype}."
                self._refuse(prepared.index, self.failed.setdefault(prepared.id, reason))
        is_late = time.monotonic() - self.saved_at >= SAVE_SECONDS
        if is_late or len(self.unsaved) >= SAVE_ROWS:
            self._save()

    def _encode(self, batch: list[Prepared]) -> NDArray[Any]:
        """The vectors of a batch; NaN for samples that fail even alone.

        Where the device has no room for a batch size that nobody chose, it is halved.
        """
        try:
            vectors = np.asarray(self.backbone.encode([prepared.content for prepared in batch]))
        except (ProbekitError, MemoryError):
            raise
        except Exception as error:
            has_no_room = type(error).__name__ == "OutOfMemoryError"
            if has_no_room and (self.options.batch_size is not None or len(batch) == 1):
                raise InputError(
                    f"{self.backbone.name} has no room for a batch of {len(batch)} ({error}). "
                    "Pass a smaller --batch-size, or another --device."
                ) from error
            if len(batch) == 1:
                self.failed[batch[0].id] = f"{self.backbone.name} fails on it ({error})."
                return np.full((1, self.width), np.nan)
            if has_no_room:
                self.batch_size = len(batch) // 2
            step = self.batch_size if has_no_room else 1  # else one sample's fault: find out whose
            parts = [batch[start : start + step] for start in range(0, len(batch), step)]
            return np.concatenate([self._encode(part) for part in parts])
        check_shape(self.backbone, vectors, len(batch))
        return vectors

    def _save(self) -> None:
        """Write what is encoded to every view's entry."""
        self.saved_at = time.monotonic()
        if self.unsaved:
            ids = stack_ids(self.unsaved)
            rows = np.stack(list(self.unsaved.values()))
            for entry, part in zip(self.entries, split_views(self.backbone, rows), strict=True):
                entry.save(ids, part)
            self.unsaved = {}

    def assemble(self, source: str) -> list[EmbeddingSet]:
        """The set of all usable samples for each entry, in the dataset's order."""
        failed = {i: self.failed[id_] for i, id_ in self.ids.items() if id_ in self.failed}
        reasons = self.errors | failed
        skipped = [Skipped(self.samples[index].key, reasons[index]) for index in sorted(reasons)]
        usable = [index for index in self.indices if index in self.ids and index not in reasons]
        if not usable and self.options.shard is None:
            first = f" First: {skipped[0].key}: {skipped[0].reason}" if skipped else ""
            raise InputError(
                f"No sample of {source} could be encoded; {len(skipped)} were skipped.{first}"
            )
        samples = [self.samples[index] for index in usable]
        ids = stack_ids(self.ids[index] for index in usable)
        columns = {"key": texts(sample.key for sample in samples)}
        for name in sorted({name for sample in samples for name in sample.columns}):
            columns[name] = texts(sample.columns.get(name, "") for sample in samples)
        labels = targets = None
        if self.dataset.target_names:
            targets = np.array([sample.targets for sample in samples], np.float64)
        elif self.dataset.class_names:
            labels = np.array([sample.label for sample in samples], np.int64)
        return [
            EmbeddingSet(
                rows=entry.rows(ids, width),
                ids=ids,
                encoding=entry.encoding,
                labels=labels,
                class_names=() if labels is None else tuple(self.dataset.class_names),
                targets=targets,
                target_names=tuple(self.dataset.target_names),
                columns=columns,
                source=source,
                skipped=tuple(skipped),
            )
            for entry, width in zip(self.entries, self.backbone.views.values(), strict=True)
        ]
