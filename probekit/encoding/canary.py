"""The canary: synthetic samples whose vectors tell whether a backbone still gives the numbers it gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.backbones.modes import training_parts
from probekit.datasets.pictures import canary_arrays, canary_samples
from probekit.errors import MismatchError, SampleError
from probekit.protocols import Backbone, Dataset, Store
from probekit.values import EncodingSpec

TOLERANCE = {"float32": 1e-3, "amp-bfloat16": 5e-2, "amp-float16": 2e-2}
"""How far a vector may move, relative to its length. Other kernels move it by 1e-6, another activation by 1e-1."""
FIRST_ROWS = 16
"""So many rows are looked at for one that can be read."""


@dataclass(frozen=True)
class Canary:
    """Synthetic samples and what they are called in the store; arrays by their type and shape, which rows follow."""

    samples: Sequence[Any]
    name: str = ""

    def vectors(self, backbone: Backbone, count: int | None = None) -> NDArray[Any]:
        """The vectors of the samples, or of the last few."""
        samples = self.samples if count is None else self.samples[-count:]
        return np.asarray(backbone.encode([backbone.preprocess(sample) for sample in samples]), dtype=np.float32)


def canary_for(backbone: Backbone, data: Dataset) -> Canary:
    """Samples of the backbone's kind: pictures and texts of ours, arrays of the shape of the data set's first row."""
    if backbone.kind != "array":
        return Canary(canary_samples(backbone.kind)[1::2])  # four tell as much as eight, and each run encodes them
    for sample in islice(data, FIRST_ROWS):
        try:
            first = np.asarray(sample.content())
        except SampleError:
            continue  # which is told, by name, when it is its turn
        return Canary(canary_arrays(first), "-".join(map(str, (first.dtype.name, *first.shape))))
    return Canary(())


def check_canary(
    backbone: Backbone, data: Dataset, store: Store, spec: EncodingSpec, *, note: Callable[[str], None]
) -> None:
    """Compare with the vectors kept when the spec was first used, or keep them now."""
    if parts := training_parts(backbone):
        note(f"{backbone.name} is in training mode ({parts}): dropout and batch statistics are at work. Call .eval().")
    canary = canary_for(backbone, data)
    kept = store.canary(spec, canary.name)
    try:
        vectors = canary.vectors(backbone) if canary.samples else None
    except Exception:
        if backbone.kind != "array" or kept is not None:
            raise
        vectors = None  # a function of arrays may take only such as the data set has
    if vectors is None or (not np.isfinite(vectors).all() and kept is None):
        return
    tolerance = TOLERANCE.get(spec.precision, 1e-3)
    if kept is None:
        if (moved := _drift(canary.vectors(backbone, 2), vectors[-2:])) > tolerance:
            note(_unsteady(backbone, moved))
        store.keep_canary(spec, vectors, canary.name)
        return
    drift = _drift(vectors, kept)
    if not drift <= tolerance:
        moved = _drift(canary.vectors(backbone), vectors)
        why = "Another activation, processor, Pillow or code version is at work. Go back to the old one"
        raise MismatchError(
            f"{backbone.name} no longer gives the numbers of its cache entry {spec.digest[:12]}: synthetic samples "
            f"moved by {drift:.2g} of their length (at most {tolerance:g} is allowed). "
            f"{why if moved <= tolerance else _unsteady(backbone, moved).removesuffix('.')}, or remove the entry with "
            f"`probekit cache rm {spec.digest[:12]}` and extract again."
        )


def _drift(vectors: NDArray[Any], kept: NDArray[Any]) -> float:
    """The largest move of a vector, relative to its length."""
    if kept.shape != vectors.shape:
        return float("inf")
    moved = float(np.max(np.linalg.norm(vectors - kept, axis=1) / (np.linalg.norm(kept, axis=1) + 1e-30)))
    return moved if np.isfinite(moved) else float("inf")


def _unsteady(backbone: Backbone, moved: float) -> str:
    return (
        f"{backbone.name} is random, or a sample's vector depends on the rest of its batch: the same synthetic samples "
        f"moved by {moved:.2g} of their length when encoded again. Put it in evaluation mode, or fix its seed."
    )
