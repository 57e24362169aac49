"""Small embedding sets for the tests of training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.values import EmbeddingSet, EncodingSpec

MakeSet = Callable[..., EmbeddingSet]


@pytest.fixture
def make_set() -> MakeSet:
    """A maker of embedding sets: rows around one centre per class, in float64 unless told otherwise."""

    def make(
        rows: int = 120, dimension: int = 6, classes: int = 3, *, seed: int = 0, dtype: str = "float64"
    ) -> EmbeddingSet:
        generator = np.random.default_rng(seed)
        labels: NDArray[np.int64] = generator.permutation(np.arange(rows) % classes)
        centres = generator.normal(size=(classes, dimension))
        embeddings = (centres[labels] + generator.normal(size=(rows, dimension)) + 0.3).astype(dtype)
        ids = [hashlib.sha256(f"{seed} {row}".encode()).hexdigest() for row in range(rows)]
        spec = EncodingSpec("test", "0" * 64, {}, "proj", dtype=dtype)
        names = tuple(f"class {number}" for number in range(classes))
        return EmbeddingSet(spec, embeddings, labels, ids, class_names=names)

    return make
