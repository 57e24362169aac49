"""The canary: synthetic samples whose vectors show whether a backbone still gives its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.backbones.backbone import Backbone
from probekit.cache import Entry
from probekit.data.dataset import Dataset
from probekit.data.pictures import canary_arrays, canary_samples, to_rgb
from probekit.errors import InputError, MismatchError

TOLERANCE = {"float32": 1e-3, "amp-bfloat16": 5e-2, "amp-float16": 2e-2}
"""Relative to a vector's length: other kernels move it by 1e-6, another activation by 1e-1."""
FIRST_SAMPLES = 16


def check_canary(
    backbone: Backbone, dataset: Dataset, entries: Sequence[Entry], precision: str
) -> None:
    """Compare the canary's vectors with those of the first use, or keep them now.

    On first use the backbone must be deterministic and must not mix the samples of a batch.
    """
    samples, name = _canary_samples(backbone, dataset)
    if not samples:
        return
    tolerance = TOLERANCE[precision]
    vectors = _encode(backbone, samples)
    if any(entry.canary(name) is None for entry in entries):
        moved = _drift(_encode(backbone, samples[-2:]), vectors[-2:])
        if not moved <= tolerance:
            raise InputError(
                f"{backbone.name} must give a sample the same vector every time, whatever else is "
                f"in the batch; synthetic samples moved by {moved:.2g} of their length. Put it in "
                "evaluation mode (model.eval()), turn off masking, or fix its seed."
            )
    for entry, own in zip(entries, split_views(backbone, vectors), strict=True):
        first = entry.canary(name)
        if first is None:
            entry.keep_canary(own, name)
            continue
        moved = _drift(own, first)
        if not moved <= tolerance:
            raise MismatchError(
                f"{backbone.name} no longer gives the numbers of its cached embeddings "
                f"{entry.encoding.digest[:12]}: synthetic samples moved by {moved:.2g} of their "
                f"length (allowed: {tolerance:g}). Go back to the library versions or code of "
                f"then, or run `probekit cache rm {entry.encoding.digest[:12]}` and extract again."
            )


def _canary_samples(backbone: Backbone, dataset: Dataset) -> tuple[Sequence[Any], str]:
    """Samples of the backbone's kind and a name for them; arrays are shaped like the dataset's."""
    if backbone.kind != "array":
        samples = canary_samples(backbone.kind)[1::2]
        return [to_rgb(item) for item in samples] if backbone.kind == "image" else samples, ""
    for index in range(min(FIRST_SAMPLES, len(dataset))):
        try:
            first = np.asarray(dataset[index].content())
        except Exception:  # reported with its name when it is encoded
            continue
        return canary_arrays(first), "-".join(map(str, (first.dtype.name, *first.shape)))
    return (), ""


def _encode(backbone: Backbone, samples: Sequence[Any]) -> NDArray[Any]:
    prepared = [backbone.prepare(sample) for sample in samples]
    try:
        vectors = np.asarray(backbone.encode(prepared), np.float32)
    except Exception as error:
        shapes = sorted({str(np.shape(sample)) for sample in prepared})
        if len(shapes) == 1:
            raise
        raise InputError(
            f"{backbone.name}'s prepare must give every sample the same shape (resize it); "
            f"found {' and '.join(shapes[:2])} ({error})."
        ) from error
    check_shape(backbone, vectors, len(samples))
    if not np.isfinite(vectors).all():
        raise InputError(f"{backbone.name} gives NaN or infinity for synthetic samples.")
    return vectors


def check_shape(backbone: Backbone, vectors: NDArray[Any], count: int) -> None:
    expected = (count, sum(backbone.views.values()))
    if vectors.shape != expected:
        raise InputError(
            f"{backbone.name}'s encode must return shape {expected}, a vector for each sample; "
            f"found {vectors.shape}."
        )


def split_views(backbone: Backbone, vectors: NDArray[Any]) -> list[NDArray[Any]]:
    """The vectors of each view, which encode gives side by side."""
    return np.split(vectors, np.cumsum(list(backbone.views.values()))[:-1], axis=1)


def _drift(vectors: NDArray[Any], reference: NDArray[Any]) -> float:
    """The largest move of a vector, relative to its length; infinite where shapes differ."""
    if vectors.shape != reference.shape:
        return float("inf")
    lengths = np.linalg.norm(reference, axis=1) + 1e-30
    return float(np.max(np.linalg.norm(vectors - reference, axis=1) / lengths))
