"""Encoding some rows of a set again, to see that they are what the backbone gives."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from probekit.backbones import backbone
from probekit.cache.audit import explain
from probekit.datasets import Columns
from probekit.datasets import dataset as find_dataset
from probekit.datasets.pictures import eight_bits, sample_id, spec_window
from probekit.datasets.triggers import trigger
from probekit.encoding.canary import TOLERANCE
from probekit.encoding.extract import spec_of
from probekit.errors import MismatchError
from probekit.protocols import Dataset
from probekit.values import EmbeddingSet

_SOURCE = re.compile(r"(.*?)(?:\[([^\[\]:]+)\])?(?:\[:(\d+)\])?")


@dataclass(frozen=True)
class Reencoded:
    """How far the rows encoded again are from those kept, relative to their length."""

    rows: int
    changed_samples: int
    largest_error: float
    tolerance: float
    passed: bool


def reopen(source: str, *, columns: Columns | None = None) -> Dataset:
    """The dataset that a set says it came from: `id`, `id[split]`, `id[:limit]` or both."""
    found = _SOURCE.fullmatch(source)
    assert found is not None
    name, split, limit = found.groups()
    return find_dataset(name, split=split, columns=columns, limit=int(limit) if limit else None)


def reencode(embeddings: EmbeddingSet, *, count: int, dataset: str | None, seed: int) -> Reencoded:
    """Draw rows, read their samples again, encode them and compare."""
    spec = embeddings.spec
    encoder = backbone(
        spec.backbone, preset=str(spec.preprocessing.get("preset", "native")), device="cpu", precision=spec.precision
    )
    paste = trigger(spec.trigger.partition("@")[0]) if spec.trigger is not None else None
    window = spec_window(spec)
    now = spec_of(encoder, dtype=spec.dtype, trigger=paste, window=window)
    if now.digest != spec.digest:
        differing = "; ".join(line.strip() for line in explain(now, [spec])[1:])
        raise MismatchError(f"{spec.backbone} is not what made this set any more: {differing}. Extract it again.")
    data = find_dataset(dataset) if dataset is not None else reopen(embeddings.source)
    size = min(count, len(embeddings.usable))
    rows = np.sort(np.random.default_rng(seed).choice(embeddings.usable, size=size, replace=False))
    by_name = {name: row for row, name in enumerate(embeddings.names or ())}
    wanted = {(embeddings.names or ())[row] for row in rows}
    samples = {by_name[sample.name]: sample for sample in data if sample.name in wanted}
    changed, errors = 0, [0.0]
    for row in rows:
        sample = samples.get(int(row))
        content = sample.content() if sample is not None else None
        if content is None or sample_id(content) != embeddings.ids[row]:
            changed += 1
            continue
        kept = np.asarray(embeddings.embeddings[int(row)], dtype=np.float64)
        seen = eight_bits(content, window)
        ready = encoder.preprocess(seen if paste is None else paste(seen))
        again = np.asarray(encoder.encode([ready]), dtype=np.float64)[0]
        errors.append(float(np.linalg.norm(again - kept) / (np.linalg.norm(kept) + 1e-30)))
    tolerance = TOLERANCE["float32"] if spec.dtype != "float16" else 2e-3
    passed = changed == 0 and max(errors) <= tolerance
    return Reencoded(len(rows), changed, max(errors), tolerance, passed)
