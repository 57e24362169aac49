"""The verifier's own route for real targets: sums of the rows that know a target, in doubled precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.second import BLOCK, ROUNDING, Part, SecondLoss, Sums, added
from probekit.certificates.second_look import ROOM, Range, SecondLook, range_of
from probekit.linear.design import ClientStats, Design
from probekit.linear.statistics import row_blocks
from probekit.linear.targets import TargetDesign, TargetStats, known
from probekit.values import Array, Indices, Rows

Held = tuple[Rows, Array]


@dataclass(frozen=True, eq=False)
class TargetSums:
    """Targets that the same rows know, and the sums of these rows."""

    design: TargetDesign
    groups: tuple[tuple[Indices, Sums], ...]

    @classmethod
    def of_statistics(cls, statistics: Mapping[str, ClientStats]) -> TargetSums:
        """The sums of what clients sent, taken as it is."""
        given = [one.loaded for one in statistics.values()]
        sent = [one for one in given if isinstance(one, TargetStats)]
        design = sent[0].design
        alike: dict[tuple[str, ...], list[int]] = {}
        patterns = sorted({pattern for one in sent for pattern in one.parts})
        for label in range(design.classes):
            alike.setdefault(tuple(one for one in patterns if one[label] == "1"), []).append(label)
        rooted = [part.count for one in sent for part in one.parts.values() if part.is_root]
        error = (max(rooted) + 4) * ROUNDING if rooted else 0.0
        groups = []
        for some, labels in alike.items():
            parts = [_part(design, pattern, one, labels) for one in sent for pattern in some if pattern in one.parts]
            groups.append((np.array(labels), _sums(design, labels, parts, error)))
        return cls(design, tuple(groups))

    @classmethod
    def of_rows(cls, design: TargetDesign, clients: Iterable[Held]) -> TargetSums:
        """The sums over rows and their targets, as the design sees rows."""
        held = list(clients)
        alike: dict[bytes, list[int]] = {}
        for label in range(design.classes):
            seen = b"".join(np.packbits(~np.isnan(targets[:, label])).tobytes() for _, targets in held)
            alike.setdefault(seen, []).append(label)
        longest = min(BLOCK, max((len(targets) for _, targets in held), default=0))
        groups = []
        for labels in alike.values():
            parts = (part for rows, targets in held for part in _blocks(design, rows, targets[:, labels]))
            groups.append((np.array(labels), _sums(design, labels, list(parts), (longest + 4) * ROUNDING)))
        return cls(design, tuple(groups))


def _part(design: TargetDesign, pattern: str, one: TargetStats, labels: list[int]) -> tuple[Part, Array]:
    joint, width = one.parts[pattern].joint, design.columns
    own = [width + int(np.flatnonzero(known(pattern) == label)[0]) for label in labels]
    counts = np.full(len(labels), one.parts[pattern].count)
    return (joint[:width, :width], joint[:width, own], counts), joint[own, own]


def _blocks(design: TargetDesign, rows: Rows, targets: Array) -> Iterator[tuple[Part, Array]]:
    index = np.flatnonzero(~np.isnan(targets[:, 0]))
    for numbers, seen in row_blocks(rows, Design(design.dimension, 1, view=design.view), index=index, chunk_rows=BLOCK):
        ones = np.ones((len(seen), design.columns - design.dimension))
        block, own = np.hstack([np.asarray(seen, np.float64), ones]), targets[numbers]
        yield (block.T @ block, block.T @ own, np.full(targets.shape[1], len(own))), np.square(own).sum(axis=0)


def _sums(design: TargetDesign, labels: list[int], parts: list[tuple[Part, Array]], error: float) -> Sums:
    found = added(replace(design, classes=len(labels)), (part for part, _ in parts), error=error)
    aims = math.fsum(float(one.sum()) for _, one in parts) * ROOM
    return replace(found, rows=int(found.counts[0]), aims=aims)


@dataclass(frozen=True, eq=False)
class TargetLook:
    """Parameters of a head of real targets, seen from their losses: what adds up, and what is worst."""

    sums: TargetSums
    objective: Mapping[str, Any]
    params: Array
    hint: float | None = None

    @cached_property
    def looks(self) -> tuple[tuple[Indices, SecondLook], ...]:
        """One for targets that the same rows know."""
        return tuple(
            (labels, SecondLook(SecondLoss.of(sums, self.objective), self.params[:, labels], self.hint))
            for labels, sums in self.sums.groups
        )

    def residuals(self) -> tuple[Range, ...]:
        """The gradient's norm for each target, and last for all together."""
        found: list[Range] = [Range(Fraction(0), None)] * self.params.shape[1]
        for labels, look in self.looks:
            for label, one in zip(labels.tolist(), look.residuals(), strict=False):
                found[label] = one
        return (*found, _together([look.residuals()[-1] for _, look in self.looks]))

    def curvature(self) -> Range:
        """The smallest of all losses."""
        each = [look.curvature() for _, look in self.looks]
        highs = [one.high for one in each if one.high is not None]
        return Range(min(one.low for one in each), min(highs, default=None))

    def distance(self) -> Range:
        """From the head's parameters to the minimum's."""
        return _together([look.distance() for _, look in self.looks])

    def excess(self) -> Range:
        """The losses above their minima, together."""
        return _added_up([look.excess() for _, look in self.looks])

    def outputs(self) -> Range:
        """How far a target for a row of norm 1 can be from the minimum's, at the worst such row."""
        each = [look.outputs() for _, look in self.looks]
        highs = [one.high for one in each if one.high is not None]
        return Range(max(one.low for one in each), max(highs) if len(highs) == len(each) else None)

    def change(self, before: Array) -> Range:
        """The losses here less those at other parameters."""
        return _added_up([look.change(before[:, labels]) for labels, look in self.looks])


def _together(ranges: list[Range]) -> Range:
    """The root of the sum of squares."""
    low = math.sqrt(sum(float(one.low) ** 2 for one in ranges)) / ROOM
    highs = [math.inf if one.high is None else float(one.high) for one in ranges]
    return range_of(low, math.sqrt(sum(one**2 for one in highs)) * ROOM)


def _added_up(ranges: list[Range]) -> Range:
    highs = [one.high for one in ranges if one.high is not None]
    low = sum((one.low for one in ranges), Fraction(0))
    return Range(low, sum(highs, Fraction(0)) if len(highs) == len(ranges) else None)


def apart_from_rows(sent: TargetStats, rows: Rows, targets: NDArray[np.float64]) -> tuple[float, float] | None:
    """How far a client's statistics are from those of rows, and the sum of squares; None: they count other rows.

    Of a part the rows know exactly its targets or, where a client has one part per target, at least these.
    """
    design, seen = sent.design, ~np.isnan(targets)
    patterns = {"".join(map(str, one)) for one in np.unique(seen, axis=0).astype(int).tolist()}
    by_target = any(pattern not in sent.parts for pattern in patterns)
    counted, apart, energy = 0, 0.0, 0.0
    plain = Design(design.dimension, 1, view=design.view)
    for pattern, part in sent.parts.items():
        own = known(pattern)
        wanted = np.isin(np.arange(design.classes), own)
        index = np.flatnonzero(seen[:, own].all(axis=1) if by_target else (seen == wanted).all(axis=1))
        if len(index) != part.count or (by_target and len(own) > 1):
            return None
        mine = np.zeros_like(part.joint)
        for numbers, block in row_blocks(rows, plain, index=index, chunk_rows=BLOCK):
            ones = np.ones((len(block), design.columns - design.dimension))
            beside = np.hstack([np.asarray(block, np.float64), ones, targets[np.ix_(numbers, own)]])
            mine += beside.T @ beside
        counted += len(index)
        apart, energy = apart + float(np.linalg.norm(mine - part.joint)), energy + float(np.trace(mine))
    everyone, mentioned = int(seen.any(axis=1).sum()), np.unique(np.concatenate([known(p) for p in sent.parts]))
    complete = np.array_equal(mentioned, np.flatnonzero(seen.any(axis=0))) and (by_target or counted == everyone)
    return (apart, energy) if complete and sent.count == everyone else None
