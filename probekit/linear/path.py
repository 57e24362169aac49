"""Every ridge from one eigendecomposition: parameters, effective dimension, condition.

gram = Q diag(s) Q^T, so value(penalty) = Q diag(1 / (s + penalty)) Q^T moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.lapack import linalg
from probekit.linear.ridge import penalty_of
from probekit.linear.spectrum import condition, effective_dimension
from probekit.linear.system import Standardisation, System, system_of
from probekit.values import Json

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RidgePath:
    """A system in the eigenvectors of its Gram: each ridge costs a scaled product."""

    system: System
    scaling: str
    values: Array
    vectors: Array
    rotated: Array

    def penalties(self, ridges: Array, *, weight: float | None = None) -> Array:
        """What each ridge adds to the Gram's diagonal."""
        total = self.system.weight if weight is None else weight
        return np.array([penalty_of(float(ridge), self.scaling, total) for ridge in ridges])

    def effective_dimension(self, ridge: float) -> float:
        """tr G (G + penalty)^-1: in how many directions the data decide rather than the ridge."""
        return effective_dimension(self.values, penalty_of(ridge, self.scaling, self.system.weight))

    def condition(self, ridge: float) -> float:
        """The condition number of the matrix that is solved at this ridge."""
        return condition(self.values, penalty_of(ridge, self.scaling, self.system.weight))

    @property
    def shipped(self) -> tuple[dict[str, Array], dict[str, Json]]:
        """All of it as arrays and plain values: what a client needs to leave its rows out."""
        system, standard = self.system, self.system.standardisation
        arrays = {"values": self.values, "vectors": self.vectors, "rotated": self.rotated}
        arrays |= {"class_weights": system.class_weights, "centre": standard.centre, "scale": standard.scale}
        plan: dict[str, Json] = {"scaling": self.scaling, "weight": system.weight, "view": standard.name}
        return arrays | {"mean_target": system.mean_target}, plan | {"targets": list(system.targets)}

    @classmethod
    def received(cls, design: Design, arrays: Mapping[str, Array], plan: Mapping[str, Any]) -> RidgePath:
        """The path that was shipped; its system's Gram stayed where it was."""
        empty, (low, high) = np.empty((0, design.classes)), plan["targets"]
        standard = Standardisation(plan["view"], arrays["centre"], arrays["scale"])
        weights, mean = arrays["class_weights"], arrays["mean_target"]
        system = System(empty, empty, plan["weight"], weights, design, standard, mean, (low, high))
        return cls(system, plan["scaling"], arrays["values"], arrays["vectors"], arrays["rotated"])

    def grid(self, count: int = 45) -> Array:
        """Ridges from 1e-8 to 10 times about the mean squared norm of the system's rows, in even ratios.

        About: to a power of two, for the digits of a chosen ridge outlive the rows that it was chosen from.
        """
        size = float(self.values.sum()) / (self.system.weight if self.scaling == "mean" else 1.0)
        if not size > 0:
            raise InputError("A ridge cannot be chosen for embeddings that are all alike. Give one.")
        return np.geomspace(1e-8, 10.0, count) * 2.0 ** round(math.log2(size))


def decompose(stats: ClientStats, *, scaling: str = "mean", **options: Any) -> RidgePath:
    """The ridge path of these statistics. options: those of `system_of`."""
    system = system_of(stats, **options)
    penalty_of(1.0, scaling, system.weight)
    values, vectors = linalg.eigh(system.gram, driver="evd")
    return RidgePath(system, scaling, np.maximum(values, 0.0), vectors, vectors.T @ system.moment)


@dataclass(frozen=True, eq=False)
class Validation:
    """Every ridge's error on rows left out: mean squared, and the share of wrong classes where known."""

    scheme: str
    ridges: Array
    squared: Array
    wrong: Array | None = None

    def best(self) -> float:
        """The ridge with the smallest squared error; of equals, the first."""
        return float(self.ridges[int(np.argmin(self.squared))])
