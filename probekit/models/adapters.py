"""Low-rank changes on top of frozen parameters: what an adapter is, and how a client trains one.

A matrix W of the problem becomes W + B A, B (rows, r) of zeros at first, A (r, columns) with orthonormal rows. All B
and A of a problem are one column of numbers: what is sent, and what is averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.models.fitting import FitPlan, local_steps
from probekit.registry import nearest
from probekit.values import Array, Indices

Place = tuple[slice, tuple[int, int]]
ADAPTER_STREAM = 25
WHOLE = "head"


def matrices_of(problem: Any) -> dict[str, Place]:
    """Where an adapter can be put: parameters that are a matrix are one, those of a network one for each tensor."""
    rows, columns = problem.shape
    if columns > 1:
        return {WHOLE: (slice(0, rows), (rows, columns))}
    shapes: Mapping[str, tuple[int, ...]] = problem.shapes
    flat = {name: (shape[0], int(np.prod(shape[1:]))) for name, shape in shapes.items() if len(shape) > 1}
    return {name: (problem.blocks[name], shape) for name, shape in flat.items()}


def last_layer(problem: Any) -> Array:
    """1 for the parameters of the last layer (of a head: all), else 0; a mask of the parameters."""
    found = np.zeros(problem.shape)
    found[list(matrices_of(problem).values())[-1][0].start :] = 1.0
    for name in getattr(problem, "averaged", ()):
        found[problem.blocks[name]] = 0.0
    return found


@dataclass(frozen=True, eq=False)
class Adapters:
    """Adapters of one rank on some matrices of a problem."""

    places: tuple[Place, ...]
    rank: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, problem: Any, names: tuple[str, ...], rank: int) -> Adapters:
        """On these matrices, or all (no names)."""
        known = matrices_of(problem)
        unknown = [name for name in names if name not in known]
        if unknown or rank < 1:
            found = f"rank {rank}" if rank < 1 else f"{unknown[0]!r}. {nearest(unknown[0], [*known])}"
            raise InputError(f"An adapter takes a rank of 1 or more and matrices of the problem; found {found}")
        return cls(tuple(known[name] for name in names or known), rank, problem.shape)

    @property
    def _sizes(self) -> list[tuple[Place, int, int]]:
        """Of every place: the rank there, no more than the matrix has, and where the next begins."""
        found, end = [], 0
        for place in self.places:
            rank = min(self.rank, *place[1])
            end += rank * sum(place[1])
            found.append((place, rank, end))
        return found

    @property
    def size(self) -> int:
        """How many numbers."""
        return self._sizes[-1][2]

    def _each(self, column: Array) -> list[tuple[Place, Array, Array]]:
        """Of every place its B and A, as views."""
        found = []
        for (where, (rows, columns)), rank, end in self._sizes:
            own = column[end - rank * (rows + columns) : end, 0]
            cut = rank * rows
            found.append(((where, (rows, columns)), own[:cut].reshape(rows, rank), own[cut:].reshape(rank, columns)))
        return found

    def start(self, seed: int) -> Array:
        """B of zeros, A of random orthonormal rows."""
        generator = np.random.Generator(np.random.PCG64([seed, ADAPTER_STREAM]))
        column = np.zeros((self.size, 1))
        for _, _, a in self._each(column):
            a[:] = np.linalg.qr(generator.normal(size=a.shape[::-1]))[0].T
        return column

    def mask(self) -> Array:
        """1 where B stands: A stays."""
        column = np.zeros((self.size, 1))
        for _, b, _ in self._each(column):
            b[:] = 1.0
        return column

    def change(self, column: Array) -> Array:
        """What is added to the problem's parameters."""
        found = np.zeros(self.shape)
        for (where, shape), b, a in self._each(column):
            found[where] = (b @ a).reshape(found[where].shape if self.shape[1] == 1 else shape)
        return found

    def pull(self, gradient: Array, column: Array) -> Array:
        """The gradient of B and A, from that of the parameters."""
        found = np.zeros_like(column)
        parts = zip(self._each(found), self._each(column), strict=True)
        for ((where, shape), of_b, of_a), (_, b, a) in parts:
            own = gradient[where].reshape(shape)
            of_b[:], of_a[:] = own @ a.T, b.T @ own
        return found


def fit_adapter(holding: Any, name: str, plan: FitPlan, arrays: Mapping[str, Array]) -> Array:
    """A client's adapter after its local steps from "adapter", on the frozen "params"."""
    problem, base, every = holding.problem, arrays["params"], np.arange(holding.count)
    adapters, penalty = Adapters.of(problem, plan.layers, plan.rank or 0), problem.penalty(plan.ridge)

    def gradient(column: Array, some: Indices) -> Array:
        params = base + adapters.change(column)
        rows = every if plan.batch is None else some[some >= 0]
        return adapters.pull(holding.batch_gradient(params, rows) + penalty * params, column)

    given = {**arrays, "params": arrays["adapter"]}
    return local_steps(plan, given, plan.batches(holding.count, name), gradient)
