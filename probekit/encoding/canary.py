"""The canary: synthetic samples whose vectors tell whether a backbone still gives the numbers it gave."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.datasets.pictures import canary_samples
from probekit.errors import MismatchError
from probekit.protocols import Backbone, Store
from probekit.values import EncodingSpec

TOLERANCE = {"float32": 1e-3, "amp-bfloat16": 5e-2, "amp-float16": 2e-2}
"""How far a vector may move, relative to its length. Other kernels move it by 1e-6, another activation by 1e-1."""


def vectors_of(backbone: Backbone) -> NDArray[Any] | None:
    """The vectors of the synthetic samples, or None where no sample of this kind can be made up."""
    samples = canary_samples(backbone.kind)[1::2]  # four tell as much as eight, and every extraction encodes them
    if not samples:
        return None
    return np.asarray(backbone.encode([backbone.preprocess(sample) for sample in samples]), dtype=np.float32)


def check_canary(backbone: Backbone, store: Store, spec: EncodingSpec) -> None:
    """Compare with the vectors kept when the spec was first used, or keep them now."""
    vectors = vectors_of(backbone)
    if vectors is None:
        return
    kept = store.canary(spec)
    if kept is None:
        store.keep_canary(spec, vectors)
        return
    tolerance, drift = TOLERANCE.get(spec.precision, 1e-3), np.inf
    if kept.shape == vectors.shape:
        drift = float(np.max(np.linalg.norm(vectors - kept, axis=1) / (np.linalg.norm(kept, axis=1) + 1e-30)))
    if not drift <= tolerance:
        raise MismatchError(
            f"{backbone.name} no longer gives the numbers of its cache entry {spec.digest[:12]}: synthetic samples "
            f"moved by {drift:.2g} of their length (at most {tolerance:g} is allowed). Another activation, processor, "
            "Pillow or code version is at work. Go back to the old one, or remove the entry with "
            f"`probekit cache rm {spec.digest[:12]}` and extract again."
        )
