"""What every benchmark prints: a JSON line per measurement; exit code 1 when a bar is missed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

PAUSE = 0.15
"""BLAS threads spin for a while after their last call and would slow whoever comes next."""

_held: list[bool] = []


Clock = Callable[[], float]


def seconds(work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started


def race(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    repeats: int = 5,
    choose: Callable[[list[float]], float] = statistics.median,
    clock: Clock = time.perf_counter,
) -> tuple[float, float]:
    """The seconds of both, measured in turns, so that a machine that slows down slows both.

    clock: time.process_time for work of one thread, on a machine that others use too.
    """
    our_seconds: list[float] = []
    their_seconds: list[float] = []
    for turn in range(repeats):
        runners = [(ours, our_seconds), (theirs, their_seconds)]
        for work, times in runners if turn % 2 == 0 else reversed(runners):
            time.sleep(PAUSE)
            times.append(seconds(work, clock))
    return choose(our_seconds), choose(their_seconds)


def memory(name: str) -> int:
    """Bytes of this process, as Linux counts them: VmRSS is now, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.partition(":")[::2] for line in lines)
    return 1024 * int(sizes[name].split()[0])


def report(
    name: str,
    ours: float,
    theirs: float,
    *,
    bar: float,
    better: Literal["higher", "lower"] = "higher",
    **details: Any,
) -> bool:
    """Print ours / theirs beside its bar."""
    ratio = ours / theirs if theirs else float("inf")
    holds = ratio >= bar if better == "higher" else ratio <= bar
    _held.append(holds)
    line = {"name": name, "ours": float(f"{ours:.5g}"), "theirs": float(f"{theirs:.5g}")}
    bars = {"ratio": float(f"{ratio:.4g}"), "bar": bar, "better": better, "holds": holds}
    print(json.dumps({**line, **bars, **details}), flush=True)
    return holds


def finish() -> None:
    sys.exit(0 if all(_held) else 1)
