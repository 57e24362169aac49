"""The retained loss by a second route, for a verifier: it shares no arithmetic with whoever made the certificate.

In the parameters W of a head the loss, times the rows' weight, is 1/2 <W, H W> - <W, B> + const with
H = sum_i w_i x_i^T x_i + ridge T^T T and B = sum_i w_i x_i^T y_i; T W are the parameters that the ridge pulls to zero.
H, B and H W - B are put together in doubled precision, and the minimum is solved for and refined: a claim is held
against the distance itself, not against another bound of it. Everything is scaled by powers of two and compared as
fractions, so that no size of the numbers matters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.doubled import UNIT, Accumulator, Doubled, outer
from probekit.errors import InputError
from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import EXACT_STACK, RootStats, product
from probekit.linear.statistics import row_blocks
from probekit.values import Rows

Array = NDArray[np.float64]
Part = tuple[Array, Array, NDArray[np.int64]]

ROUNDING = 2.0**-53
TINY = 2.0**-1040
"""What underflow can add up to."""
SMALLEST = 2.0**-960
EPSILON = float(np.finfo(np.float64).eps)
BLOCK = 512
"""Rows that are summed in float64 before doubled precision takes over."""


@dataclass(frozen=True, eq=False)
class Sums:
    """What rows, times 2**-half, add up to: products of columns (for each class, where the design says so), sums of
    columns by class, and counts. `error` is how far products are off, against the sum of all squares.

    Of rows that all know the same real targets `rows` are how many, and `aims` bounds the sum of their squares.
    """

    design: Design
    gram: Doubled
    moment: Doubled
    counts: NDArray[np.int64]
    error: float
    half: int
    rows: int | None = None
    aims: float = 0.0

    @classmethod
    def of_statistics(cls, statistics: Mapping[str, ClientStats]) -> Sums:
        """The sum of what clients sent, taken as it is."""
        design, longest = next(iter(statistics.values())).design, [0]
        found = added(design, _multiplied(design, statistics.values(), longest), error=0.0)
        rounded = longest[0] and not design.grid  # products of roots, which on a grid are rounded to it
        return replace(found, error=(longest[0] + 4) * ROUNDING) if rounded else found

    @classmethod
    def of_rows(cls, design: Design, clients: Iterable[tuple[Rows, NDArray[np.int64]]]) -> Sums:
        """The sum over rows and their labels, as the design sees rows."""
        # products of grid numbers add up without rounding
        held = list(clients)
        longest = min(BLOCK, max((len(labels) for _, labels in held), default=0))
        error = 0.0 if design.grid else (longest + 4) * ROUNDING
        return added(design, (part for rows, labels in held for part in _blocks(design, rows, labels)), error=error)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As they are handed to an auditor."""
        parts = {"gram": self.gram.high, "gram_rest": self.gram.low, "moment": self.moment.high}
        whole = {"counts": self.counts.astype("<i8"), "half": np.array([self.half], "<i8")}
        return {**parts, "moment_rest": self.moment.low, **whole}

    @classmethod
    def of_arrays(cls, design: Design, arrays: Mapping[str, NDArray[Any]]) -> Sums:
        """Sums that somebody handed out, taken as they are; what cannot be sums of such rows is refused."""
        width, classes = design.columns, design.classes
        gram, moment = ((classes,) if design.per_class else ()) + (width, width), (width, classes)
        shapes = {"gram": gram, "gram_rest": gram, "moment": moment, "moment_rest": moment, "counts": (classes,)}
        found = {name: one.shape for name, one in arrays.items()}
        if found != {**shapes, "half": (1,)} or not all(np.isfinite(one).all() for one in arrays.values()):
            raise InputError(f"Sums of rows with {width} columns and {classes} classes were wanted; found others.")
        counts, half = arrays["counts"].astype(np.int64), int(arrays["half"][0])
        if (counts < 0).any() or abs(half) > -math.log2(SMALLEST):
            raise InputError("Sums of rows have counts from 0 on, and a scale that float64 has.")
        pairs = ((np.asarray(arrays[name], np.float64), arrays[f"{name}_rest"]) for name in ("gram", "moment"))
        gram_sum, moment_sum = (Doubled.of(high) + Doubled.of(low) for high, low in pairs)
        return cls(design, gram_sum, moment_sum, counts, 0.0, half)

    @property
    def total(self) -> Doubled:
        """The products of columns over all classes."""
        return self.gram.sum(0) if self.design.per_class else self.gram


def added(design: Design, parts: Iterable[Part], *, error: float) -> Sums:
    """The sum of some parts, in doubled precision."""
    gram, moment = (Accumulator(shape) for shape in design.shapes[:2])
    counts, half = np.zeros(design.classes, np.int64), None
    for squares, sums, count in parts:
        largest = float(np.abs(squares).max(initial=0.0))
        if largest and not (SMALLEST < largest < 1 / SMALLEST and np.isfinite(sums).all()):
            raise InputError(
                f"The rows' squares add up to {largest:.3g}, beyond what float64 can be trusted with: nothing can be "
                "bounded. Scale the embeddings."
            )
        if half is None and largest:  # the other parts are of the same order
            half = math.frexp(largest)[1] // 2
        gram.add(np.ldexp(squares, -2 * (half or 0)))
        moment.add(np.ldexp(sums, -(half or 0)))
        counts = counts + count
    return Sums(design, gram.sum, moment.sum, counts, error, half or 0)


def _multiplied(design: Design, statistics: Iterable[ClientStats], longest: list[int]) -> Iterable[Part]:
    """Sums as they are, and roots multiplied out, many at a time; `longest` gets the most rows of such a product."""
    roots: list[RootStats] = []
    most = EXACT_STACK if design.grid else BLOCK
    for one in itertools.chain(statistics, [None]):
        given = None if one is None else one.loaded
        rows = sum(root.count for root in roots)
        if roots and (given is None or rows + given.count > BLOCK or len(roots) == most):
            sums = product(roots)
            yield sums["gram"], sums["moment"], sums["class_counts"]
            longest[0], roots = max(longest[0], rows), []
        if isinstance(given, RootStats):
            roots.append(given)
        elif given is not None:
            yield given.gram, given.moment, given.class_counts


def _blocks(design: Design, rows: Rows, labels: NDArray[np.int64]) -> Iterable[Part]:
    arithmetic = "exact" if design.grid else "float64"
    plain = Design(design.dimension, design.classes, view=design.view, grid=design.grid, arithmetic=arithmetic)
    for numbers, seen in row_blocks(rows, plain, chunk_rows=BLOCK):
        block = np.asarray(seen, np.float64)
        if design.intercept != "none":
            block = np.hstack([block, np.ones((len(block), 1))])
        own = labels[numbers]
        counts = np.bincount(own, minlength=design.classes)
        if design.per_class:
            gram = np.stack([block[own == each].T @ block[own == each] for each in range(design.classes)])
        else:
            gram = block.T @ block
        yield gram, block.T @ np.eye(design.classes)[own], counts


@dataclass(frozen=True, eq=False)
class SecondLoss:
    """H and B for rows that were multiplied by 2**-half, and how far both may be off (norms, B's by class).

    `weight` is that of all rows, `floor` the curvature that the ridge gives to every direction (0: not to every one),
    `centre` what is taken off rows (times 2**-half) before they meet the parameters, where no bias does it.
    """

    matrix: Doubled
    right: Doubled
    weight: Fraction
    error: float
    right_error: float
    floor: float
    half: int
    bias: bool
    centre: Array | None

    @classmethod
    def of(cls, sums: Sums, objective: Mapping[str, Any], *, term: Array | None = None) -> SecondLoss:
        """The loss that an objective (ridge, scaling, view, class weights) and a linear term make of sums."""
        design, unit = sums.design, Doubled.of(2.0**-sums.half)
        weights = _class_weights(objective["class_weight"], sums.counts)
        masses = weights * Doubled.of(sums.counts)
        total = masses.sum(0) if sums.rows is None else Doubled.of(float(sums.rows))
        gram = (weights[:, None, None] * sums.gram).sum(0) if design.per_class else sums.gram
        moment = weights[None, :] * sums.moment
        centre, squares = _standardised(objective["view"], sums, unit)
        centred = design.intercept == "none" and objective["view"] != "none"
        energy = float(weights.high.max(initial=0.0)) * float(np.trace(sums.total.high)) * (4 if centred else 1)
        if centred:
            cross = outer(moment.sum(1), centre)
            gram = gram - cross - cross.T + outer(centre, centre) * total
            moment = moment - outer(centre, masses)
        ridge = Doubled.of(float(objective["ridge"]))
        ridge = ridge * total if objective["scaling"] == "mean" else ridge
        pulled = _pull(design, centre, squares, unit) * ridge
        linear = moment if term is None else moment - Doubled.of(term) * unit
        aims = float(np.square(weights.high) @ sums.counts) if sums.rows is None else sums.aims
        rounding = 64 * (len(sums.counts) + 8) * UNIT
        held = design.intercept != "free" and objective["view"] == "none"
        return cls(
            gram + pulled,
            linear,
            Fraction(float(total.high)) + Fraction(float(total.low)),
            error=(rounding + sums.error) * energy + rounding * float(np.linalg.norm(pulled.high)) + TINY,
            right_error=(rounding + sums.error) * 2 * math.sqrt(energy * aims)
            + rounding * float(np.linalg.norm(linear.high))
            + TINY,
            floor=float(ridge.high) * 4.0**-sums.half * (1 - 2 * ROUNDING) if held else 0.0,
            half=sums.half,
            bias=design.intercept != "none",
            centre=centre.high if centred else None,
        )


def _class_weights(class_weight: Any, counts: NDArray[np.int64]) -> Doubled:
    """One weight per class; "balanced" gives every class that has rows the same total."""
    if class_weight is None:
        return Doubled.of(np.ones(len(counts)))
    if class_weight == "balanced":
        present = counts > 0
        share = Doubled.of(float(counts.sum())) / Doubled.of(float(present.sum()))
        found = share / Doubled.of(np.where(present, counts, 1))
        return Doubled(np.where(present, found.high, 0.0), np.where(present, found.low, 0.0))
    return Doubled.of(class_weight)


def _standardised(view: str, sums: Sums, unit: Doubled) -> tuple[Doubled, Doubled]:
    """The rows' mean and the squares of what their columns are divided by (in the sums' units)."""
    size = sums.design.dimension
    as_is = unit * unit * Doubled.of(np.ones(size))
    if view == "none":
        return Doubled.of(np.zeros(size)), as_is
    count = Doubled.of(float(sums.counts.sum() if sums.rows is None else sums.rows))
    # one-hot targets add to one; beside others there is the column of ones
    mean = (sums.moment[:size].sum(1) if sums.rows is None else sums.gram[:size, size] / unit) / count
    if view == "centre":
        return mean, as_is
    total, diagonal = sums.total, np.arange(size)
    square = Doubled(total.high[diagonal, diagonal], total.low[diagonal, diagonal]) / count
    variance = square - mean * mean
    threshold = float(count.high) * EPSILON * square.high
    if (np.abs(variance.high - threshold) <= 16 * (len(sums.counts) + 4) * EPSILON * square.high).any():
        raise InputError("A column is so nearly constant that rounding decides whether it is scaled. Leave it out.")
    varies = variance.high > threshold
    scaled = Doubled(np.where(varies, variance.high, as_is.high), np.where(varies, variance.low, as_is.low))
    return mean, scaled


def _pull(design: Design, centre: Doubled, squares: Doubled, unit: Doubled) -> Doubled:
    """T^T T: the columns' own squares and, where the bias is penalised too, that of the score at the centre."""
    high, low = (np.diag(np.append(one, np.zeros(design.columns - design.dimension))) for one in vars(squares).values())
    found = Doubled(high, low)
    if design.intercept != "penalised":
        return found
    last = Doubled(np.append(centre.high, unit.high), np.append(centre.low, 0.0))
    return found + outer(last, last)
