"""A store that lasts as long as the process."""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache.keys import KEY_BYTES
from probekit.values import EmbeddingSet, EncodingSpec, Rows


class MemoryStore:
    """Rows in dictionaries: what a script uses that needs nothing kept."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)
        self._rows: dict[str, dict[str, NDArray[Any]]] = {}
        self._specs: dict[str, EncodingSpec] = {}
        self._canaries: dict[tuple[str, str], NDArray[Any]] = {}

    def known(self, spec: EncodingSpec) -> Container[str]:
        """The ids that have an embedding."""
        return self._rows.get(spec.digest, {}).keys()

    def load(self, spec: EncodingSpec, ids: Sequence[str], *, masked: NDArray[np.bool_] | None = None) -> Rows:
        """The embeddings of these samples, in this order; NaN where masked."""
        rows = self._rows.get(spec.digest, {})
        width = len(next(iter(rows.values()))) if rows else 0
        result = np.full((len(ids), width), np.nan, dtype=spec.dtype)
        for place, sample in enumerate(ids):
            if masked is None or not masked[place]:
                result[place] = rows[sample]
        return result

    def save(self, spec: EncodingSpec, ids: Sequence[str], rows: NDArray[Any]) -> None:
        """Keep these rows."""
        self._specs[spec.digest] = spec
        kept = np.array(rows, dtype=spec.dtype)
        self._rows.setdefault(spec.digest, {}).update(zip(ids, kept, strict=True))

    def seal(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """The set with its rows in one array."""
        return replace(embeddings, embeddings=np.asarray(embeddings.embeddings))

    def erased(self, ids: Iterable[str]) -> set[str]:
        """Nothing was ever erased here."""
        return set()

    def restore(self, ids: Iterable[str]) -> None:
        """So nothing can come back."""

    def canary(self, spec: EncodingSpec, samples: str = "") -> NDArray[Any] | None:
        """The vectors of the synthetic samples when this spec was first used."""
        return self._canaries.get((spec.digest, samples))

    def keep_canary(self, spec: EncodingSpec, vectors: NDArray[Any], samples: str = "") -> None:
        """Remember those vectors."""
        self._canaries[spec.digest, samples] = vectors

    def group_key(self) -> bytes:
        """The key that numbers groups alike in all sets of this store."""
        return self._key

    def specs(self) -> Sequence[EncodingSpec]:
        """Every spec that has rows."""
        return list(self._specs.values())

    def working(self, spec: EncodingSpec, purpose: str) -> AbstractContextManager[None]:
        """Nobody else can be at work in this process's memory."""
        return nullcontext()
