"""Conformance checks for authors of plugins; probekit's own tests use them too."""

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
    _check_mode(backbone)
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
    identity = backbone.identity
    if not identity:
        raise _fault(backbone, "must state its identity (weights, preprocessing); found none.")
    try:
        stated = canonical_json(identity)
    except (TypeError, ValueError) as error:
        raise _fault(
            backbone, f"must state its identity in plain JSON values; found {error}. Convert them."
        ) from error
    if canonical_json(backbone.identity) != stated:
        raise _fault(backbone, "must state the same identity twice; found two different ones.")


class _ModelError(Exception):
    """Raised while pickling: a torch module was met."""


class _PreparePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        module = torch is not None and isinstance(value, torch.nn.Module)
        if module and any(parameter.numel() for parameter in value.parameters()):
            raise _ModelError(type(value).__name__)
        return NotImplemented


def _check_prepare(backbone: Backbone, sample: Any) -> None:
    file = io.BytesIO()
    try:
        _PreparePickler(file).dump(backbone.prepare)
    except _ModelError as error:
        raise _fault(
            backbone,
            f"must prepare samples without its model; found {error} in what workers would "
            "receive. Make prepare a function or an object of its own.",
        ) from error
    except Exception as error:  # pickle raises whatever an object's own methods raise
        raise _fault(
            backbone,
            f"must have a prepare that can be pickled; found {type(error).__name__}: {error}. "
            "Define it at the top of a module, not as a lambda or inside a function.",
        ) from error
    in_worker = pickle.loads(file.getvalue())(sample)
    here = backbone.prepare(sample)
    if not isinstance(here, str) and not np.array_equal(np.asarray(in_worker), np.asarray(here)):
        raise _fault(
            backbone,
            "must prepare a sample alike every time and in every process; found two results. "
            "Remove random augmentation from prepare.",
        )


def _check_vectors(backbone: Backbone, vectors: NDArray[Any], rows: int) -> None:
    width = sum(backbone.views.values())
    found = f"{type(vectors).__name__} of shape {np.shape(vectors)}"
    if not isinstance(vectors, np.ndarray) or vectors.shape != (rows, width) or not width:
        raise _fault(
            backbone,
            f"must encode {rows} samples to an array of shape ({rows}, {width}), the widths of its "
            f"views {dict(backbone.views)}; found {found}.",
        )
    if vectors.dtype.kind != "f":
        raise _fault(backbone, f"must give floating-point numbers; found {vectors.dtype}.")
    if not np.isfinite(vectors).all():
        count = int((~np.isfinite(vectors)).sum())
        raise _fault(backbone, f"must give finite numbers; found {count} that are not.")


def _check_mode(backbone: Backbone) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for name, value in vars(backbone).items() if hasattr(backbone, "__dict__") else ():
        if isinstance(value, torch.nn.Module) and any(part.training for part in value.modules()):
            raise _fault(
                backbone, f"must not train; found {name} in training mode. Call {name}.eval()."
            )


def _batch_difference(
    backbone: Backbone, prepared: list[Any], vectors: NDArray[Any], size: int
) -> float:
    starts = range(0, len(prepared), size)
    parts = [backbone.encode(prepared[start : start + size]) for start in starts]
    return _difference(vectors, np.concatenate(parts))


def _difference(vectors: NDArray[Any], others: NDArray[Any]) -> float:
    longest = float(np.linalg.norm(vectors, axis=1).max()) or 1.0
    return float(np.linalg.norm(vectors - others, axis=1).max()) / longest
