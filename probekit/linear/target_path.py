"""Choosing one ridge for several targets, and left-out scores: every target on the rows that know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from probekit.errors import InputError
from probekit.linear.groups import group_rows, leave_out, scores_left_out
from probekit.linear.leaveout import CHOICE_STREAM, filtered_scores, refined_choice
from probekit.linear.path import RidgePath, Validation, decompose
from probekit.linear.rows import Picked
from probekit.linear.targets import TargetStats, checked_targets, target_statistics
from probekit.values import Array, Indices, Rows


@dataclass(frozen=True, eq=False)
class TargetTruth:
    """Of rows that know all of these targets."""

    matrix: Array
    path: RidgePath

    def targets(self, held: Indices) -> Array:
        """As they are."""
        return np.asarray(self.matrix[held])

    def weights(self, held: Indices) -> Array:
        """All alike."""
        return np.ones(held.shape)

    def sums(self, rows: Rows, part: Indices) -> TargetStats:
        """The statistics of some rows."""
        design: Any = self.path.system.design
        return target_statistics(rows[part], self.matrix[part], design)


@dataclass(frozen=True, eq=False)
class TargetPaths:
    """The ridge paths of targets that the same rows know; `spread` is each target's sum of squares around its mean."""

    paths: tuple[tuple[Indices, RidgePath], ...]
    spread: Array

    @classmethod
    def of(cls, stats: TargetStats, *, scaling: str = "mean", standardise: Any = "none") -> TargetPaths:
        """Those of some statistics."""
        found = []
        for labels, some in stats.label_groups():
            if some.count < 2:
                raise InputError(
                    f"To leave one out takes two that know target {labels[0]}; found {some.count} sample. "
                    "Leave that target out, or give a ridge."
                )
            found.append((labels, decompose(some, scaling=scaling, standardise=standardise)))
        spread = stats.spread
        return cls(tuple(found), np.where(spread > 0, spread, 1.0))

    def grid(self) -> Array:
        """The ridges to choose from: those that suit the targets with most rows."""
        return max((path for _, path in self.paths), key=lambda path: path.system.weight).grid()

    def choose(
        self,
        rows: Rows,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        most: int | None = None,
        seed: int = 0,
    ) -> tuple[float, Validation]:
        """The ridge of least squared error on rows (or groups) left out, each target's relative to its own spread.

        Where there are more than `most` rows, that many are drawn; each one's error is exact all the same.
        """
        matrix = checked_targets(targets, len(rows), len(self.spread))
        ridges = self.grid()
        if groups is not None:
            found = Validation("leave-one-group-out", ridges, self._mean(self._groups(rows, matrix, groups, ridges)))
            return found.best(), found
        if most is not None and len(rows) > most:
            drawn = np.sort(np.random.default_rng([seed, CHOICE_STREAM]).choice(len(rows), most, replace=False))
            rows, matrix = rows[drawn], matrix[drawn]

        def errors(some: Array, dtype: str) -> Validation:
            sums = self.left_out_sums(rows, matrix, ridges=some, dtype=np.dtype(dtype))
            return Validation("leave-one-out", some, self._mean(sums))

        return refined_choice(ridges, errors)

    def left_out_sums(self, rows: Rows, matrix: Array, *, ridges: Array, dtype: DTypeLike = np.float64) -> Array:
        """The sum over rows of squared left-out errors, (targets, ridges)."""
        found = np.zeros((len(self.spread), len(ridges)))
        for labels, path, index in self._known(matrix):
            own, seen = matrix[np.ix_(index, labels)], Picked(rows, index)
            ones = np.ones(len(index))
            for numbers, scores, spare in filtered_scores(path, seen, ones, ridges=ridges, dtype=dtype):
                errors = (scores - own[numbers][:, :, None]) / spare[:, None, :]
                found[labels] += np.einsum("mkr,mkr->kr", errors, errors)
        return found

    def left_out_scores(
        self, rows: Rows, targets: ArrayLike, *, ridge: float, groups: ArrayLike | None = None
    ) -> Array:
        """Every row's scores in the head of the others (of other groups); NaN where the target is not known."""
        matrix = checked_targets(targets, len(rows), len(self.spread))
        found = np.full(matrix.shape, np.nan)
        names = None if groups is None else np.asarray(groups)
        for labels, path, index in self._known(matrix):
            truth = TargetTruth(matrix[np.ix_(index, labels)], path)
            own = None if names is None else names[index]
            found[np.ix_(index, labels)] = scores_left_out(path, Picked(rows, index), truth, ridge=ridge, groups=own)
        return found

    def _groups(self, rows: Rows, matrix: Array, groups: ArrayLike, ridges: Array) -> Array:
        found, names = np.zeros((len(self.spread), len(ridges))), np.asarray(groups)
        for labels, path, index in self._known(matrix):
            truth = TargetTruth(matrix[np.ix_(index, labels)], path)
            parts = group_rows(names[index], len(index))
            for held, scores in leave_out(path, Picked(rows, index), truth, parts, ridges):
                errors = scores - truth.targets(held)
                found[labels] += np.einsum("rgmk,rgmk->kr", errors, errors)
        return found

    def _known(self, matrix: Array) -> list[tuple[Indices, RidgePath, Indices]]:
        """Targets, their path, and the rows that know them."""
        rows = [np.flatnonzero(~np.isnan(matrix[:, labels[0]])) for labels, _ in self.paths]
        return [(labels, path, index) for (labels, path), index in zip(self.paths, rows, strict=True) if len(index)]

    def _mean(self, sums: Array) -> Array:
        return np.asarray((sums / self.spread[:, None]).mean(axis=0))
