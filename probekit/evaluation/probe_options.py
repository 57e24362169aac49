"""How a probe is fitted and judged, and what every kind of probe says of its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.evaluation.metrics import USUAL
from probekit.linear.system import ClassWeight
from probekit.values import EmbeddingSet

TEST, LEFT_OUT, LEFT_GROUPS = (
    "test rows",
    "training rows, each left out in turn",
    "training rows, groups left out in turn",
)
CHOICE_ROWS = 50_000
"""So many rows, drawn at random, choose the ridge of more; each one's left-out error is exact all the same."""


@dataclass(frozen=True)
class ProbeOptions:
    """How a probe is fitted and judged.

    ridge: a number, or "auto": of 45, that of the least error on rows (or groups) left out, exactly.
    normalise: "raw", rows as they are, or "l2", each of norm 1.
    intercept, standardise, class_weight: of the head, as in training; the ridge is scaled by the mean.
    confidence: of the intervals. seed: of what is drawn.
    """

    ridge: float | str = "auto"
    normalise: str = "raw"
    intercept: str = "free"
    standardise: str = "none"
    class_weight: ClassWeight = None
    confidence: float = USUAL.confidence
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.ridge, str) and self.ridge != "auto":
            raise InputError(f'`ridge` must be a number or "auto"; found {self.ridge!r}.')


@contextmanager
def timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    """Adds the time that a step takes."""
    began = time.perf_counter()
    yield
    seconds[what] = seconds.get(what, 0.0) + time.perf_counter() - began


def judged_on(rows: EmbeddingSet, test: EmbeddingSet | None) -> str:
    """What rows a head is judged on, in words."""
    return TEST if test is not None else LEFT_OUT if rows.groups is None else LEFT_GROUPS


def shared_groups(rows: EmbeddingSet, test: EmbeddingSet | None) -> int:
    """How many groups are in both training and test rows."""
    if test is None or rows.groups is None or test.groups is None:
        return 0
    return len(np.intersect1d(rows.groups, test.groups))


def of_rows(rows: EmbeddingSet, test: EmbeddingSet | None, seconds: Mapping[str, float]) -> dict[str, Any]:
    """What every kind of probe says of the rows that it was fitted to and judged on, and of its time."""
    return {
        "source": rows.source,
        "backbone": rows.spec.backbone,
        "judged_on": judged_on(rows, test),
        "rows": len(rows),
        "test_rows": len(rows if test is None else test),
        "shared_groups": shared_groups(rows, test),
        "seconds": {name: round(took, 4) for name, took in seconds.items()},
        "train": rows,
        "test": test,
    }
