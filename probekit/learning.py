"""The nouns of learning: who holds which rows, what a client sends, the head that comes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.values import Json, canonical

INTERCEPTS = ("penalised", "free", "none")
SCALINGS = ("mean", "sum")
ROW_VIEWS = ("raw", "l2")


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The same array, read-only."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True)
class Partition:
    """Row numbers: which rows each client holds and which the server. Disjoint, and together all rows."""

    clients: Mapping[str, NDArray[np.int64]]
    server: NDArray[np.int64]
    rows: int
    scheme: str
    seed: int

    def __post_init__(self) -> None:
        held = np.concatenate([self.server, *self.clients.values()])
        if len(held) != self.rows or not np.array_equal(np.sort(held), np.arange(self.rows)):
            raise InputError(
                f"A partition must give each of the {self.rows} rows to exactly one client or the server; "
                f"found {len(held)} entries, {len(np.unique(held))} of them different."
            )
        for array in (self.server, *self.clients.values()):
            array.setflags(write=False)

    @property
    def digest(self) -> str:
        """The sha256 that names this division of the rows."""
        hasher = hashlib.sha256(str(self.rows).encode())
        for name, held in sorted([("", self.server), *((f"client {c}", r) for c, r in self.clients.items())]):
            hasher.update(name.encode() + b"\0" + np.ascontiguousarray(held, dtype="<i8").tobytes())
        return hasher.hexdigest()


@dataclass(frozen=True)
class Design:
    """How rows become the columns of the least-squares problem; equal for all clients of a run.

    `view`: "raw" or "l2" (each row divided by its norm). `intercept`: "penalised" (a column of ones like any other, as
    in the paper), "free" (not penalised, as in scikit-learn) or "none".
    `arithmetic`: "float64", "fast" (float32 blocks summed in float64) or "exact" (an integer grid: sums are exact).
    """

    dimension: int
    classes: int
    view: str = "raw"
    intercept: str = "penalised"
    arithmetic: str = "float64"
    per_class: bool = False
    grid: float = 0.0

    @property
    def columns(self) -> int:
        """The number of columns: the embedding and, unless there is none, the column of ones (always last)."""
        return self.dimension + (self.intercept != "none")


@dataclass(frozen=True)
class ClientStats:
    """Gram X^T X, moment X^T Y, row count and class counts of some rows. A commutative monoid under `+`.

    With `design.per_class` the Gram is kept per class, (k, d+1, d+1), so that classes can be weighted later.
    """

    design: Design
    gram: Float64[np.ndarray, "*k d d"]
    moment: Float64[np.ndarray, "d k"]
    class_counts: NDArray[np.int64]
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for array in (self.gram, self.moment, self.class_counts):
            array.setflags(write=False)

    @property
    def count(self) -> int:
        """How many rows these are the statistics of."""
        return int(self.class_counts.sum())

    def __add__(self, other: ClientStats) -> ClientStats:
        if self.design != other.design:
            raise MismatchError(
                f"Cannot add statistics of different designs: {self.design} and {other.design}. "
                "Compute both with the same options."
            )
        return ClientStats(
            self.design, self.gram + other.gram, self.moment + other.moment, self.class_counts + other.class_counts
        )

    @property
    def digest(self) -> str:
        """The sha256 of the numbers and the design."""
        hasher = hashlib.sha256(canonical(vars(self.design)).encode())
        for array in (self.gram, self.moment, self.class_counts):
            hasher.update(np.ascontiguousarray(array).tobytes())
        return hasher.hexdigest()


@dataclass(frozen=True)
class Solution:
    """An answer with its true relative residual, recomputed, and what it took."""

    value: Float64[np.ndarray, "d k"]
    residual: float
    steps: int
    method: str
    note: str = ""


@dataclass(frozen=True)
class LinearHead:
    """An affine map from embeddings to class scores: `embedding @ params[:d] + params[d]` (bias last).

    Any centring or scaling is already inside `params`; only the row view ("raw" or "l2") is applied to an embedding.
    """

    params: NDArray[np.float64]
    classes: tuple[str, ...]
    ridge: float
    view: str = "raw"
    spec_digest: str = ""
    recipe: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.params.ndim != 2 or self.params.shape[1] != len(self.classes):
            raise InputError(
                f"A head needs one column of parameters per class: {len(self.classes)} classes, "
                f"parameters of shape {self.params.shape}."
            )
        if not np.isfinite(self.params).all():
            raise InputError("A head cannot hold NaN or infinite parameters. Look at the embeddings and the ridge.")
        self.params.setflags(write=False)

    @property
    def dimension(self) -> int:
        """The length of an embedding."""
        return int(self.params.shape[0]) - 1

    @property
    def digest(self) -> str:
        """The sha256 of the map: parameters, classes and row view."""
        head = canonical([list(self.classes), self.view, self.spec_digest, list(self.params.shape)])
        return hashlib.sha256(head.encode() + np.ascontiguousarray(self.params, dtype="<f8").tobytes()).hexdigest()
