"""The integer grid of exact arithmetic: which step to take, and what rounding to it costs.

An embedding's entry becomes the nearest multiple of the step. Products and sums of up to `EXACT_ROWS` rows of
such numbers are exact in float64 whatever their order, because the step is a power of two and no grid number
exceeds `GRID_REACH`. The step belongs to the design, never to the rows that are summed: a step chosen from
rows that later have to be forgotten would remember them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import GRID_REACH, ClientStats, Design
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.values import Rows


def step_for(rows: Rows, *, headroom: float = 4.0) -> float:
    """The finest step whose grid holds these rows (the server's own) with room for larger ones."""
    largest = float(np.abs(np.asarray(rows[0 : len(rows)], dtype=np.float64)).max(initial=0.0))
    if not (0 < largest < math.inf and headroom >= 1):
        raise InputError(
            "A grid step needs finite rows that are not all zero and a headroom of at least 1; found a "
            f"largest entry of {largest} and a headroom of {headroom}."
        )
    return float(2.0 ** math.ceil(math.log2(headroom * largest / GRID_REACH)))


def grid_bound(stats: ClientStats, params: NDArray[np.float64], *, penalty: float) -> float:
    """A bound on how far (Frobenius) the grid moved the head's embedding weights; no data can exceed it.

    With D the rounding errors, |D| <= step/2 per entry, and W the head of the grid's statistics (no view):
    W_true - W = A_true^-1 (dC - dG W), |dC| <= |D| sqrt(largest class), |dG| <= |D| (2 |X| + |D|) and
    A_true >= penalty.
    """
    rounding = stats.design.grid / 2 * math.sqrt(stats.count * stats.design.dimension)
    spectral = math.sqrt(max(float(np.linalg.eigvalsh(stats.total_gram)[-1]), 0.0))
    moment = rounding * math.sqrt(float(stats.class_counts.max(initial=0)))
    gram = rounding * (2 * spectral + rounding)
    return (moment + gram * float(np.linalg.norm(params))) / penalty


def grid_change(rows: Rows, labels: NDArray[Any], design: Design, *, ridge: float) -> float:
    """The relative change (Frobenius) that the grid made to the head of these rows, measured."""
    plain = replace(design, arithmetic="float64", grid=0.0)
    coarse = fit(statistics(rows, labels, design), ridge).params
    fine = fit(statistics(rows, labels, plain), ridge).params
    return float(np.linalg.norm(coarse - fine) / np.linalg.norm(fine))
