"""How rows become a least-squares problem, what a client sends of it, and a solution.

In exact arithmetic an embedding's entry becomes the nearest multiple of a step. Products and sums of up to
`EXACT_ROWS` rows of such numbers are exact in float64 whatever their order, because the step is a power of two and
no grid number exceeds `GRID_REACH`. The step belongs to the design, never to the rows that are summed: a step
chosen from rows that later have to be forgotten would remember them.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.values import Json, canonical, one_line

if TYPE_CHECKING or "jaxtyping" in sys.modules:  # where shapes are checked it is there; to import it takes long
    from jaxtyping import Float64

INTERCEPTS = ("penalised", "free", "none")
SCALINGS = ("mean", "sum")
ROW_VIEWS = ("raw", "l2")
ARITHMETICS = ("float64", "fast", "exact")
CENTRES = ("wp", "zero")
"""What the ridge of a network pulls to: the weights w_p that it is linearized around, or zero."""
GRID_REACH = 2**14
"""The largest grid number that an embedding's entry may become in exact arithmetic."""
EXACT_ROWS = 2**25
"""How many rows may be summed exactly: a sum of that many products of two grid numbers stays within 2**53."""


@dataclass(frozen=True)
class Design:
    """How rows become the columns of the least-squares problem; equal for all clients of a run.

    `view`: "raw" or "l2" (each row divided by its norm). `intercept`: "penalised" (a column of ones like any
    other, as in the paper), "free" (not penalised, as in scikit-learn) or "none".
    `arithmetic`: "float64", "fast" (float32 blocks summed in float64) or "exact" (an integer grid: sums are
    exact). `grid` is the step of that grid, a power of two; rows of norm 1 need none given, raw ones do.
    """

    dimension: int
    classes: int
    view: str = "raw"
    intercept: str = "penalised"
    arithmetic: str = "float64"
    per_class: bool = False
    grid: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("view", ROW_VIEWS), ("intercept", INTERCEPTS), ("arithmetic", ARITHMETICS)):
            if getattr(self, name) not in known:
                raise InputError(f"A design's {name} must be one of {', '.join(known)}; found {getattr(self, name)!r}.")
        if self.dimension < 1 or self.classes < 1:
            raise InputError(f"A design needs a dimension and a class; found {self.dimension} and {self.classes}.")
        object.__setattr__(self, "grid", self._step())

    def _step(self) -> float:
        if self.arithmetic != "exact":
            if self.grid:
                raise InputError(
                    f"A grid belongs to exact arithmetic; found {self.grid} with {self.arithmetic!r}. Leave it out."
                )
            return 0.0
        if not self.grid and self.view == "l2":
            return 1 / GRID_REACH
        if not (0 < self.grid < math.inf and math.frexp(self.grid)[0] == 0.5):
            raise InputError(
                f"Exact arithmetic on {self.view} rows needs a grid step that is a power of two; found {self.grid}. "
                "Take linear.statistics.step_for(rows of the server), or divide each row by its norm (view l2)."
            )
        return float(self.grid)

    @property
    def columns(self) -> int:
        """The number of columns: the embedding and, unless there is none, the column of ones (last)."""
        return self.dimension + (self.intercept != "none")

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, int], tuple[int]]:
        """Of Gram, moment and class counts."""
        gram, classes = (self.columns, self.columns), self.classes
        return ((classes, *gram) if self.per_class else gram, (self.columns, classes), (classes,))

    def zero(self) -> ClientStats:
        """The statistics of no rows."""
        gram, moment, counts = self.shapes
        return ClientStats(self, np.zeros(gram), np.zeros(moment), np.zeros(counts, np.int64))


@lru_cache(maxsize=16)
def design_text(design: Design) -> str:
    """A design as digests take it in."""
    return canonical(vars(design))


@dataclass(frozen=True)
class ClientStats:
    """Gram X^T X, moment X^T Y, row count and class counts of some rows. A commutative monoid under `+`.

    With `design.per_class` the Gram is kept per class, (k, d+1, d+1), so that classes can be weighted later.
    `zero` is the neutral element. In exact arithmetic sums do not depend on their order, in no bit.
    """

    design: Design
    gram: Float64[np.ndarray, "*k d d"]
    moment: Float64[np.ndarray, "d k"]
    class_counts: NDArray[np.int64]
    fingerprint: str = ""

    __repr__ = one_line

    def __post_init__(self) -> None:
        found = (self.gram.shape, self.moment.shape, self.class_counts.shape)
        if found != self.design.shapes:
            raise InputError(f"Statistics of {self.design} need arrays of shapes {self.design.shapes}; found {found}.")
        if self.design.arithmetic == "exact" and self.count > EXACT_ROWS:
            raise InputError(f"Exact sums hold at most {EXACT_ROWS} rows; found {self.count}. Use float64 arithmetic.")
        for array in (self.gram, self.moment, self.class_counts):
            array.setflags(write=False)

    @classmethod
    def zero(cls, design: Design) -> ClientStats:
        """The statistics of no rows."""
        return design.zero()

    @property
    def count(self) -> int:
        """How many rows these are the statistics of."""
        return int(self.class_counts.sum())

    @property
    def loaded(self) -> ClientStats:
        """The same in memory; what lies in a file is read."""
        return self

    @property
    def dense(self) -> ClientStats:
        """The same as sums; a root is multiplied out."""
        return self

    @property
    def total_gram(self) -> NDArray[np.float64]:
        """The Gram of all classes together."""
        return self.gram.sum(axis=0) if self.design.per_class else self.gram

    def __add__(self, other: ClientStats) -> ClientStats:
        self._belongs(other, "add")
        counts = self.class_counts + other.class_counts
        return ClientStats(self.design, self.gram + other.gram, self.moment + other.moment, counts)

    def __sub__(self, other: ClientStats) -> ClientStats:
        """The statistics without these rows: exact in exact arithmetic, else to rounding (better re-sum)."""
        self._belongs(other, "subtract")
        counts = self.class_counts - other.class_counts
        if (counts < 0).any():
            short = int(np.argmin(counts))
            raise InputError(
                f"Cannot take {other.class_counts[short]} rows of class {short} out of {self.class_counts[short]}: "
                "they are not (all) in these statistics."
            )
        return ClientStats(self.design, self.gram - other.gram, self.moment - other.moment, counts)

    def _belongs(self, other: ClientStats, verb: str) -> None:
        if self.design != other.design:
            raise MismatchError(
                f"Cannot {verb} statistics of different designs: {self.design} and {other.design}. Use one design."
            )

    @property
    def digest(self) -> str:
        """The sha256 of the numbers and the design."""
        hasher = hashlib.sha256(design_text(self.design).encode())
        for array in (self.gram, self.moment, self.class_counts):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


@dataclass(frozen=True)
class Solution:
    """An answer with its true relative residual, recomputed, and what it took."""

    value: Float64[np.ndarray, "d k"]
    residual: float
    steps: int
    method: str
    note: str = ""

    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class LinearFit:
    """What fitting gives: (d+1, k) parameters for embeddings, bias last; the solved system; how, in plain values."""

    params: Float64[np.ndarray, "rows k"]
    ridge: float
    design: Design
    solution: Solution
    recipe: Mapping[str, Json]

    __repr__ = one_line
