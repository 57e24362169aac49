"""Small sets with a signal, and a probe without a cache on disk beyond the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.embeddings import EmbeddingSet
from probekit.probing import ProbeResult, probe

Arrays = tuple[NDArray[Any], NDArray[Any]]


@pytest.fixture(autouse=True)
def _cache_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))


def clusters(
    rows: int, *, classes: int = 3, width: int = 12, signal: float = 2.0, seed: int = 0
) -> Arrays:
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    vectors = generator.normal(size=(rows, width))
    vectors[np.arange(rows), labels] += signal
    return vectors, labels


@pytest.fixture
def make_clusters() -> Callable[..., Arrays]:
    return clusters


@pytest.fixture
def named() -> EmbeddingSet:
    """120 rows of the classes cat, dog and owl."""
    vectors, labels = clusters(120)
    return EmbeddingSet.from_numpy(vectors, np.array(["cat", "dog", "owl"])[labels])


@pytest.fixture
def quick() -> Callable[..., ProbeResult]:
    """A probe without controls, of a ridge head where none is asked for."""

    def run(data: object, **options: Any) -> ProbeResult:
        return probe(data, **{"controls": False, "heads": "ridge", **options})

    return run
