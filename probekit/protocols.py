"""The verbs: what a backbone, a dataset, a store must be able to do. Structural: a plugin imports nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from probekit.values import EmbeddingSet, EncodingSpec, Json, Rows


@dataclass(frozen=True)
class Reference:
    """A name that a person typed, taken apart: `scheme:name[@revision][#view]`, and the preprocessing wanted."""

    scheme: str
    name: str
    revision: str | None = None
    view: str | None = None
    preset: str = "native"

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        view = f"#{self.view}" if self.view else ""
        return f"{self.scheme}:{self.name}{revision}{view}" if self.name else f"{self.scheme}{revision}{view}"


@dataclass(frozen=True)
class Progress:
    """One round or step: how many are done, of how many (None: until it is near enough), the loss of the global
    parameters, and how near they are, where these are known."""

    done: int
    total: int | None
    loss: float = math.nan
    residual: float = math.nan


Look = Callable[[Progress], None]
Watch = Callable[[str], Look]
"""Gives, for the name of a stage, what is called with its progress. Raising `Cancelled` there stops the work."""


def unwatched(stage: str) -> Look:
    """Nobody looks."""
    return lambda now: None


@runtime_checkable
class Backbone(Protocol):
    """A frozen encoder. `preprocess` turns one sample into an array (it runs in worker processes), `encode` a batch.

    `fingerprint` is the sha256 of architecture and weights; `preprocessing` says in plain values what `preprocess`
    will do; `view` names the tensor that `encode` returns. `kind` is what it eats: "image", "text" or "array".
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def view(self) -> str: ...
    @property
    def preprocessing(self) -> Mapping[str, Json]: ...
    def preprocess(self, sample: Any) -> Any: ...
    def encode(self, batch: Any) -> NDArray[Any]: ...


@runtime_checkable
class Placeable(Protocol):
    """A backbone that can be moved to a device and told its precision ("float32", "amp-bfloat16", "amp-float16")."""

    def place(self, device: str, *, precision: str = "float32") -> None: ...


@dataclass(frozen=True)
class Sample:
    """One row of a dataset. `content` is a picture, a text or an array, not yet decoded where that costs time.

    `columns` are further values of the row that were asked for, as text.
    """

    name: str
    label: int
    client: str | None
    content: Callable[[], Any]
    columns: Mapping[str, str] = field(default_factory=dict)


class Dataset(Protocol):
    """Rows read when asked for. `len` may be unknown (streaming): then it raises TypeError and rows are iterated."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> Sample: ...
    def __iter__(self) -> Iterator[Sample]: ...


class Trigger(Protocol):
    """A change made to a sample before preprocessing. `name` says all that determines it."""

    @property
    def name(self) -> str: ...
    def __call__(self, content: Any, /) -> Any: ...


class Store(Protocol):
    """Where embeddings live, addressed by spec and sample id. What is saved appears whole or not at all."""

    def known(self, spec: EncodingSpec) -> Container[str]:
        """The ids that have an embedding."""

    def load(self, spec: EncodingSpec, ids: Sequence[str], *, masked: NDArray[np.bool_] | None = None) -> Rows:
        """The embeddings of these samples, in this order; NaN where masked."""

    def save(self, spec: EncodingSpec, ids: Sequence[str], rows: NDArray[Any]) -> None:
        """Keep these rows; after this returns, no crash loses them."""

    def erased(self, ids: Iterable[str]) -> Container[str]:
        """Those of these samples that were erased on request and are not to be encoded again."""

    def restore(self, ids: Iterable[str]) -> None:
        """Let erased samples come back."""

    def seal(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """Keep the set itself, its rows put in its order; gives the set as the store will load it."""

    def canary(self, spec: EncodingSpec, samples: str = "") -> NDArray[Any] | None:
        """The vectors of the built-in synthetic samples (or of those of this name) when this spec was first used."""

    def keep_canary(self, spec: EncodingSpec, vectors: NDArray[Any], samples: str = "") -> None:
        """Remember those vectors."""

    def group_key(self) -> bytes:
        """The secret under which groups (patients, users) get the same numbers in all sets of this store."""

    def specs(self) -> Sequence[EncodingSpec]:
        """Every spec that has rows."""

    def working(self, spec: EncodingSpec, purpose: str) -> AbstractContextManager[None]:
        """Held while rows for this purpose are made, so that two processes do not do the same work."""
