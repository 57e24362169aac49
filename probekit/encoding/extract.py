"""dataset x backbone x store -> EmbeddingSet, in batches, each sample encoded once, resumable at any instant."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from probekit.backbones import backbone as find_backbone
from probekit.cache.memory import MemoryStore
from probekit.datasets import Columns, is_dataset
from probekit.datasets import dataset as find_dataset
from probekit.encoding.canary import check_canary
from probekit.encoding.extraction import Extraction
from probekit.encoding.notebook import notebook_bar
from probekit.encoding.options import ExtractOptions
from probekit.encoding.options import ExtractProgress as ExtractProgress
from probekit.errors import InputError
from probekit.protocols import Backbone, Store, Trigger
from probekit.values import EmbeddingSet, EncodingSpec


def spec_of(
    backbone: Backbone,
    *,
    dtype: str = "float32",
    trigger: Trigger | None = None,
    window: tuple[float, float] | None = None,
) -> EncodingSpec:
    """The identity of the embeddings that this backbone will give."""
    return EncodingSpec(
        backbone=backbone.name,
        weights=backbone.fingerprint,
        preprocessing={**backbone.preprocessing, **({} if window is None else {"window": list(window)})},
        view=backbone.view,
        dtype=dtype,
        precision=getattr(backbone, "precision", "float32"),
        trigger=trigger.name if trigger is not None else None,
    )


def extract(
    backbone: str | Any,
    dataset: str | Any,
    *,
    split: str | None = None,
    columns: Columns | None = None,
    limit: int | None = None,
    preset: str = "native",
    device: str | None = None,
    precision: str | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    fingerprint: str | None = None,
    store: Store | None = None,
    progress: Callable[[ExtractProgress], None] | None = None,
    note: Callable[[str], None] = warnings.warn,
    **settings: Any,
) -> EmbeddingSet:
    """Encode every sample of a dataset that the store does not hold yet.

    backbone, dataset: what `backbone` and `dataset` take, or give.
    split, columns, limit: which rows, as `dataset` takes them.
    preset, device, precision, preprocess, fingerprint: of the backbone, as `backbone` takes them.
    store: where embeddings are kept; left out, in memory only.
    progress: called after every chunk of rows; left out, a notebook shows a bar.
    note: called with what a person should know: a split that was chosen, a backbone that is not steady.
    settings: the fields of `ExtractOptions`.
    Gives the EmbeddingSet, in dataset order.
    """
    options = ExtractOptions(**settings)
    if options.group is not None and not is_dataset(dataset):
        columns = (columns or Columns()).keeping(options.group)
    data = find_dataset(dataset, split=split, columns=columns, limit=limit)
    own: Any = {"preprocess": preprocess, "fingerprint": fingerprint, "kind": data.kind}
    encoder = find_backbone(backbone, preset=preset, device=device, precision=precision, **own)
    if data.kind != encoder.kind:
        raise InputError(f"{encoder.name} encodes {encoder.kind} samples, but {data.name} holds {data.kind} samples.")
    if told := getattr(data, "note", ""):
        note(told)
    kept = store if store is not None else MemoryStore()
    spec = spec_of(encoder, dtype=options.dtype, trigger=options.trigger, window=options.window)
    purpose = data.name if options.shard is None else f"{data.name} shard {options.shard}"
    with kept.working(spec, purpose):
        check_canary(encoder, data, kept, spec, note=note)
        return Extraction(encoder, data, kept, spec, options, progress or notebook_bar(data.name), note).run()


def set_name(
    dataset: str, split: str | None, backbone: str, *, trigger: str | None = None, limit: int | None = None
) -> str:
    """A name for the set made of what it is: digits-efficientnet-lite0."""
    parts = [dataset.partition(":")[2] or dataset, split, backbone.partition(":")[2] or backbone, trigger]
    parts.append(f"first{limit}" if limit else None)
    slug = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts if part)
    return slug[-100:].lstrip("-._")
