"""What a backbone must do, tried on a few samples."""

from __future__ import annotations

import io
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import canonical_json
from probekit.backbones.backbone import Backbone
from probekit.data.pictures import canary_samples
from probekit.errors import InputError

REPEAT_TOLERANCE = 1e-6
BATCH_TOLERANCE = 1e-4
"""Differences in float32, relative to the longest vector: other batch sizes use other kernels."""
BATCH_SIZES = (1, 3)
MIN_SAMPLES = 4


class ConformanceError(InputError, AssertionError):
    """Something that a backbone must do, and does not."""


@dataclass(frozen=True)
class BackboneMeasurements:
    """repeat_difference, batch_difference: relative to the longest vector."""

    width: int
    repeat_difference: float
    batch_difference: float
    samples_per_second: float


def check_backbone(
    backbone: Backbone, *, samples: Sequence[Any] | None = None
) -> BackboneMeasurements:
    """Raise ConformanceError for the first thing that extraction relies on and is not so.

    samples: four or more decoded samples; needed for kind "array", which has no built-in ones.
    """
    inputs = list(canary_samples(backbone.kind) if samples is None else samples)
    if len(inputs) < MIN_SAMPLES:
        raise InputError(
            f"check_backbone needs {MIN_SAMPLES} samples of kind {backbone.kind!r}; "
            f"found {len(inputs)}. Give samples=."
        )
    _check_identity(backbone)
    _check_prepare(backbone, inputs[0])
    prepared = [backbone.prepare(sample) for sample in inputs]
    vectors = backbone.encode(prepared)
    _check_vectors(backbone, vectors, len(inputs))
    start = time.perf_counter()
    again = backbone.encode([backbone.prepare(sample) for sample in inputs])
    seconds = time.perf_counter() - start
    repeat = _difference(vectors, again)
    if repeat > REPEAT_TOLERANCE:
        raise _fault(
            backbone,
            f"must give the same vectors twice; found a relative difference of {repeat:.1e}. "
            "Switch off dropout (eval mode), masking and random crops.",
        )
    batch = max(_batch_difference(backbone, prepared, vectors, size) for size in BATCH_SIZES)
    if batch > BATCH_TOLERANCE:
        raise _fault(
            backbone,
            f"must encode each sample alike in every batch; found a relative difference of "
            f"{batch:.1e}. Do not use statistics or padding of the batch (eval mode, a mask).",
        )
    return BackboneMeasurements(vectors.shape[1], repeat, batch, len(inputs) / max(seconds, 1e-9))


def _fault(backbone: Backbone, text: str) -> ConformanceError:
    return ConformanceError(f"{backbone.name} {text}")


def _check_identity(backbone: Backbone) -> None:
    try:
        texts = [canonical_json(backbone.identity) for _ in range(2)]
    except (TypeError, ValueError) as error:
        raise _fault(
            backbone, f"must state its identity in plain JSON values; found {error}. Convert them."
        ) from error
    if texts[0] != texts[1] or not backbone.identity:
        raise _fault(
            backbone,
            "must state what determines its numbers (weights, preprocessing), every time the "
            f"same; found the identities {texts[0]} and {texts[1]}.",
        )


class _PreparePickler(pickle.Pickler):
    """Refuses torch modules with parameters."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        module = torch is not None and isinstance(value, torch.nn.Module)
        if module and any(parameter.numel() for parameter in value.parameters()):
            raise pickle.PicklingError(f"it holds a model, {type(value).__name__}")
        return NotImplemented


def _check_prepare(backbone: Backbone, sample: Any) -> None:
    file = io.BytesIO()
    try:
        _PreparePickler(file).dump(backbone.prepare)
    except Exception as error:  # pickle raises whatever an object's own methods raise
        raise _fault(
            backbone,
            "must have a prepare that worker processes receive without its model; found "
            f"{type(error).__name__}: {error}. Make it a function at the top of a module, or an "
            "object of its own.",
        ) from error
    in_worker = pickle.loads(file.getvalue())(sample)
    in_process = backbone.prepare(sample)
    if not np.array_equal(np.asarray(in_worker), np.asarray(in_process)):
        raise _fault(
            backbone,
            "must prepare a sample alike every time and in every process; found two results. "
            "Remove random augmentation from prepare.",
        )


def _check_vectors(backbone: Backbone, vectors: NDArray[Any], rows: int) -> None:
    width = sum(backbone.views.values())
    if not isinstance(vectors, np.ndarray) or vectors.shape != (rows, width) or not width:
        raise _fault(
            backbone,
            f"must encode {rows} samples to an array of shape ({rows}, {width}), the widths of its "
            f"views {dict(backbone.views)}; found {type(vectors).__name__} of shape "
            f"{np.shape(vectors)}.",
        )
    if vectors.dtype.kind != "f" or not np.isfinite(vectors).all():
        raise _fault(
            backbone,
            f"must give finite floating-point numbers; found {vectors.dtype} with a minimum of "
            f"{vectors.min()}. Check its weights.",
        )


def _batch_difference(
    backbone: Backbone, prepared: list[Any], vectors: NDArray[Any], size: int
) -> float:
    starts = range(0, len(prepared), size)
    parts = [backbone.encode(prepared[start : start + size]) for start in starts]
    return _difference(vectors, np.concatenate(parts))


def _difference(vectors: NDArray[Any], again: NDArray[Any]) -> float:
    longest = float(np.linalg.norm(vectors, axis=1).max()) or 1.0
    return float(np.linalg.norm(vectors - again, axis=1).max()) / longest
