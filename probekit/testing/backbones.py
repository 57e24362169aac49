"""What a backbone must do: shapes, types, the same vectors whatever the batch, an identity that holds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.datasets import pictures
from probekit.protocols import Backbone
from probekit.testing.check import KitCheck, checked
from probekit.values import canonical

TOLERANCE = 1e-4
"""The largest difference that batching may make in float32, relative to the longest vector."""

BATCHES = (1, 3, 8)


def check_backbone(backbone: Backbone, *, samples: Sequence[Any] | None = None) -> list[KitCheck]:
    """What was checked of a backbone. There are no built-in arrays: give eight of them for kind "array"."""
    inputs = list(pictures.canary_samples(backbone.kind) if samples is None else samples)
    if len(inputs) < max(BATCHES):
        return [KitCheck("samples", False, f"{max(BATCHES)} samples are needed, found {len(inputs)}: give samples=...")]
    try:
        prepared = [backbone.preprocess(sample) for sample in inputs]
        start = time.perf_counter()
        vectors = backbone.encode(prepared)
        seconds = time.perf_counter() - start
    except Exception as error:
        return [KitCheck("encodes", False, f"{type(error).__name__}: {error}")]
    checks: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
        ("shape", lambda: _shape(vectors, len(inputs))),
        ("dtype", lambda: (vectors.dtype == np.float32, f"{vectors.dtype}, wanted float32")),
        (
            "finite",
            lambda: (bool(np.isfinite(vectors).all()), f"{int((~np.isfinite(vectors)).sum())} bad values"),
        ),
        ("frozen", lambda: _frozen(backbone)),
        ("deterministic", lambda: _deterministic(backbone, inputs, vectors)),
        ("batch size", lambda: _batch_size(backbone, prepared, vectors)),
        ("preprocessing", lambda: _preprocessing(backbone)),
        ("fingerprint", lambda: _fingerprint(backbone)),
        (
            "speed",
            lambda: (
                True,
                f"{len(inputs) / max(seconds, 1e-9):.1f} samples/s, in one batch of {len(inputs)}",
            ),
        ),
    ]
    return [checked(name, check) for name, check in checks]


def _shape(vectors: NDArray[Any], rows: int) -> tuple[bool, str]:
    right = isinstance(vectors, np.ndarray) and vectors.ndim == 2 and len(vectors) == rows and vectors.shape[1] > 0
    return right, f"{np.shape(vectors)}, wanted ({rows}, d)"


def _frozen(backbone: Backbone) -> tuple[bool, str]:
    module: Any = getattr(backbone, "module", None)
    if not hasattr(module, "modules") or not hasattr(module, "parameters"):
        return True, "not a torch module: nothing to look at"
    training = sum(part.training for part in module.modules())
    learning = sum(weight.requires_grad for weight in module.parameters())
    return (
        training + learning == 0,
        f"{training} parts in training mode, {learning} parameters with gradients",
    )


def _deterministic(backbone: Backbone, inputs: list[Any], vectors: NDArray[Any]) -> tuple[bool, str]:
    again = backbone.encode([backbone.preprocess(sample) for sample in inputs])
    return bool(np.array_equal(vectors, again)), f"largest change {_difference(vectors, again):.2e}, wanted 0"


def _batch_size(backbone: Backbone, prepared: list[Any], vectors: NDArray[Any]) -> tuple[bool, str]:
    worst = 0.0
    for size in BATCHES:
        parts = [backbone.encode(prepared[start : start + size]) for start in range(0, len(prepared), size)]
        worst = max(worst, _difference(vectors, np.concatenate(parts)))
    sizes = ", ".join(map(str, BATCHES))
    return (
        worst <= TOLERANCE,
        f"batches of {sizes} differ by {worst:.2e} of the longest vector, at most {TOLERANCE:g}",
    )


def _difference(vectors: NDArray[Any], others: NDArray[Any]) -> float:
    longest = float(np.linalg.norm(vectors, axis=1).max()) or 1.0
    return float(np.linalg.norm(vectors - others, axis=1).max()) / longest


def _preprocessing(backbone: Backbone) -> tuple[bool, str]:
    values = dict(backbone.preprocessing)
    return bool(values), canonical(values) if values else "empty: say in plain values what preprocess does"


def _fingerprint(backbone: Backbone) -> tuple[bool, str]:
    first, second = backbone.fingerprint, backbone.fingerprint
    right = first == second and re.fullmatch(r"[0-9a-f]{64}", first) is not None
    return right, f"{first}, wanted 64 hexadecimal digits that stay the same"
