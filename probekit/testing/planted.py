"""Small rows to check things on."""

from __future__ import annotations

import hashlib

import numpy as np

from probekit.values import EmbeddingSet, EncodingSpec


def planted_set(rows: int = 90, dimension: int = 5, classes: int = 3, *, seed: int = 0) -> EmbeddingSet:
    """Rows around one centre per class, always the same."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(rows, dtype=np.int64) % classes)
    centres = generator.normal(size=(classes, dimension))
    ids = [hashlib.sha256(f"planted {seed} {row}".encode()).hexdigest() for row in range(rows)]
    return EmbeddingSet(
        EncodingSpec("planted", "0" * 64, {}, "rows", dtype="float64"),
        centres[labels] + generator.normal(size=(rows, dimension)),
        labels,
        ids,
        class_names=tuple(f"class {number}" for number in range(classes)),
    )
