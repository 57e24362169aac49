"""Rows of hospitals, and runs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probekit import EmbeddingSet, Run, train
from probekit.arrays import Indices

WIDTH = 6
CLASSES = ("cat", "dog", "owl")
HOSPITALS = ("east", "north", "south", "west")


def embeddings(count: int = 120, seed: int = 0, **columns: list[str]) -> EmbeddingSet:
    """Rows of three classes in four hospitals; north's are larger, which moves the ridge."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    hospitals = generator.choice(HOSPITALS, count)
    rows = generator.normal(size=(count, WIDTH))
    rows[np.arange(count), labels] += 2
    rows[hospitals == "north"] *= 8
    return EmbeddingSet.from_numpy(
        rows.astype(np.float32),
        [CLASSES[label] for label in labels],
        columns={"hospital": hospitals.tolist(), "patient": list(map(str, labels * 7)), **columns},
        source="hospitals",
    )


def make_run(folder: Path, rows: EmbeddingSet | None = None, **options: Any) -> Run:
    """A ridge run with test rows, a client for each hospital."""
    settings: dict[str, Any] = {"clients": "hospital", "test": embeddings(40, seed=1), **options}
    rows = embeddings() if rows is None else rows
    settings.setdefault("cache", folder.parent / "cache")
    return train(rows, run=folder, **settings)


def without(rows: EmbeddingSet, column: str, *values: str) -> EmbeddingSet:
    """The rows that have none of these values."""
    return rows.take(np.flatnonzero(~np.isin(rows.columns[column], values)))


def rows_of(rows: EmbeddingSet, hospital: str) -> Indices:
    return np.flatnonzero(rows.columns["hospital"] == hospital)
