"""What every benchmark says: one JSON object per line, and exit code 1 when a bar does not hold."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

PAUSE = 0.15
"""Before each contender of a race: BLAS workers spin for tens of milliseconds after their last call, and would
take cores from whoever comes next."""

_held: list[bool] = []


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def race(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    repeats: int = 5,
    choose: Callable[[list[float]], float] = statistics.median,
) -> tuple[float, float]:
    """The seconds of each, taken in turns on idle cores: a machine that slows down half-way slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats):
        # who goes first changes, so that neither always finds the other's warm caches
        pairs = list(zip((ours, theirs), times, strict=True))
        for work, kept in pairs if turn % 2 == 0 else reversed(pairs):
            time.sleep(PAUSE)
            kept.append(seconds(work))
    return choose(times[0]), choose(times[1])


def report(
    name: str,
    ours: float,
    theirs: float,
    *,
    bar: float,
    better: Literal["higher", "lower"] = "higher",
    **more: Any,
) -> bool:
    """Print a measurement against its bar and remember whether it holds; `more` is printed after it."""
    ratio = ours / theirs if theirs else float("inf")
    holds = ratio >= bar if better == "higher" else ratio <= bar
    _held.append(holds)
    line = {
        "name": name,
        "ours": float(f"{ours:.5g}"),
        "theirs": float(f"{theirs:.5g}"),
        "ratio": float(f"{ratio:.4g}"),
        "bar": bar,
        "holds": holds,
    }
    print(json.dumps({**line, "better": better, **more}), flush=True)
    return holds


def finish() -> None:
    """Exit with 1 if a bar did not hold."""
    sys.exit(0 if all(_held) else 1)
