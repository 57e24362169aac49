"""Small sets to put into a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.values import EmbeddingSet
from tests.conftest import spec

Shelve = Callable[..., EmbeddingSet]


def rows_around_centres(
    rows: int, dimension: int, classes: int, *, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows around one centre per class, and their labels."""
    generator = np.random.default_rng(seed)
    labels: NDArray[np.int64] = generator.permutation(np.arange(rows) % classes)
    centres = np.random.default_rng(99).normal(size=(classes, dimension))
    noise = generator.normal(size=(rows, dimension)) * 0.8
    return (centres[labels] + noise).astype(np.float32), labels


@pytest.fixture
def shelve(store: DiskStore) -> Shelve:
    """Puts a small set into the cache under a name."""

    def put(
        name: str,
        *,
        rows: int = 90,
        dimension: int = 5,
        classes: int = 3,
        seed: int = 0,
        class_names: Sequence[str] | None = None,
        labels: NDArray[np.int64] | None = None,
        embeddings: NDArray[np.float32] | None = None,
        **more: Any,
    ) -> EmbeddingSet:
        made, drawn = rows_around_centres(rows, dimension, classes, seed=seed)
        vectors = made if embeddings is None else embeddings
        given = drawn if labels is None else labels
        ids = [
            hashlib.sha256(vector.tobytes() + str(row).encode() * (embeddings is None)).hexdigest()
            for row, vector in enumerate(vectors)
        ]
        names = tuple(class_names or (f"class {number}" for number in range(classes)))
        changed = more.pop("spec", spec())
        masked = more.get("masked")
        stored = vectors if masked is None else vectors[~masked]
        kept = ids if masked is None else [one for one, gone in zip(ids, masked, strict=True) if not gone]
        found = EmbeddingSet(changed, vectors, given, ids, class_names=names, **more)
        store.save(changed, kept, stored)
        sealed = store.seal(found)
        store.sets.give_name(name, sealed.digest)
        return sealed

    return put
