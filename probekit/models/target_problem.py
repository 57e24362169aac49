"""Heads of several labels or real targets as a problem: every target on the rows that know it, from statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.path import RidgePath
from probekit.linear.target_client import client_target_statistics, stats_of
from probekit.linear.target_path import TargetPaths
from probekit.linear.targets import TargetDesign, TargetStats
from probekit.models.heads import LinearHead
from probekit.models.linear_problem import HeadProblem
from probekit.models.problem import SetHolding
from probekit.values import LABELS, Array, EmbeddingSet, Indices, Json, target_kind

SPREAD = "spread"


@dataclass(frozen=True, eq=False)
class TargetHolding(SetHolding):
    """Rows of an embedding set that have real targets."""

    offers: ClassVar[frozenset[str]] = frozenset({"statistics", "leave-out"})

    @cached_property
    def targets(self) -> Array:
        """Those of each row."""
        if self.embeddings.targets is None:
            raise InputError("This problem has several labels or real targets, and the rows have classes.")
        return self.embeddings.targets[self.rows]

    @cached_property
    def statistics(self) -> TargetStats:
        """Their statistics."""
        return client_target_statistics(self.picked, self.targets, self.problem.design)

    def left_out(
        self, arrays: Mapping[str, NDArray[Any]], plan: Mapping[str, Any], ridges: Array, dtype: DTypeLike
    ) -> Array:
        """The squared errors of left-out rows, relative to each target's spread and summed, for every ridge."""
        labels = arrays[LABELS]
        design = replace(self.problem.design, classes=len(labels))
        path = RidgePath.received(design, arrays, plan)
        paths = TargetPaths(((np.arange(len(labels)), path),), arrays[SPREAD])
        sums = paths.left_out_sums(self.picked, self.targets[:, labels], ridges=ridges, dtype=dtype)
        return np.asarray((sums / arrays[SPREAD][:, None]).sum(axis=0))


@dataclass(frozen=True, eq=False)
class TargetStatisticsHolding:
    """What a server kept of a client with real targets."""

    offers: ClassVar[frozenset[str]] = frozenset({"statistics"})

    problem: Any
    statistics: ClientStats

    @property
    def count(self) -> int:
        """How many rows they are of."""
        return self.statistics.count


@dataclass(frozen=True, eq=False)
class TargetProblem(HeadProblem):
    """A head of several labels or real targets, in closed form. In mean scaling each target's ridge is multiplied by
    the rows that know it, so that no client's loss is a part of one sum: its statistics are.
    """

    kind: ClassVar[str] = "head of real targets"

    @property
    def traits(self) -> frozenset[str]:
        """Quadratic, with statistics; not plain."""
        return frozenset({"quadratic", "statistics", "minimum", "targets"})

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What a head says of it."""
        design: Any = self.design
        return {**super().recipe, "targets": design.targets}

    def head(self, params: Array, *, ridge: float, recipe: Mapping[str, Json]) -> LinearHead:
        """The head at these parameters."""
        design: Any = self.design
        return replace(super().head(params, ridge=ridge, recipe=recipe), targets=design.targets)

    def hold(self, embeddings: EmbeddingSet, rows: Indices, *, share: float = 1.0, name: str = "") -> TargetHolding:
        """What a client with these rows of a set holds."""
        return TargetHolding(self, embeddings, rows)

    def hold_statistics(self, stats: ClientStats) -> TargetStatisticsHolding:
        """What is known of a client by its statistics alone."""
        return TargetStatisticsHolding(self, stats)

    def stats(self, arrays: Mapping[str, NDArray[Any]]) -> TargetStats:
        """The statistics in an answer."""
        design: Any = self.design
        return stats_of(design, arrays)


def kind_of(design: Design) -> type[HeadProblem]:
    """The problem that has such a design."""
    return TargetProblem if isinstance(design, TargetDesign) else HeadProblem


def problem_for(embeddings: EmbeddingSet, *seen: Any) -> HeadProblem:
    """The problem of a head of these embeddings, by the fields of its design."""
    if embeddings.targets is None:
        return HeadProblem(Design(*seen), embeddings.class_names, embeddings.spec.digest)
    design = replace(TargetDesign(*seen), targets=target_kind(embeddings.targets))
    return TargetProblem(design, embeddings.class_names, embeddings.spec.digest)
