"""Rates of this machine that docs/scale.md is computed from, as one JSON object: run in a process of its own.

The memory of whoever starts a command counts as the command's, so that nothing large may live where commands are timed.
"""

from __future__ import annotations

import json
import statistics as middle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from probekit.linear.design import Design
from probekit.linear.squares import RowSquares
from probekit.linear.statistics import statistics
from probekit.models.fitting import FitPlan
from probekit.models.linear_problem import HeadProblem
from probekit.runs.packs import read_packs, write_packs
from probekit.values import EmbeddingSet, EncodingSpec

DIMENSION, CLASSES, ROWS, FEW = 1_024, 100, 4_000, 10
STEPS = 50


def median(work: Callable[[], object], repeats: int = 7) -> float:
    """The CPU seconds of a call: the middle of some."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return middle.median(found)


def kernels() -> dict[str, float]:
    """Operations or bytes per second, by the names of the model's constants."""
    generator = np.random.default_rng(0)
    design = Design(DIMENSION, CLASSES)
    rows, labels = generator.standard_normal((ROWS, DIMENSION), dtype=np.float32), np.arange(ROWS) % CLASSES
    stats = statistics(rows, labels, design)
    square, cube = design.columns**2, float(design.columns) ** 3
    system = stats.gram + 10 * np.eye(len(stats.gram))
    wide = np.cov(generator.standard_normal((2_048, 4_096)))
    many, thin = generator.standard_normal((24, 512, 512)), np.ones((512, 10))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows"
        rows.tofile(path)
        mapped = np.memmap(path, np.float32, "r", shape=rows.shape)

        def load() -> None:
            found = mapped[generator.permutation(ROWS)]
            RowSquares(found, labels % FEW, Design(DIMENSION, FEW)).gradient(np.zeros((design.columns, FEW)))

        headers = {one: pack.header for one, pack in write_packs(Path(name), {"a": stats}, ["a"]).items()}

        def read() -> None:
            assert read_packs(Path(name), headers, {}, design)[0]["a"].loaded.count == ROWS

        work = 4 * ROWS * design.columns * FEW * median(lambda: system @ system) / (2 * cube)
        return {
            "gram": ROWS * square / median(lambda: statistics(rows, labels, design)),
            "cholesky": cube / 3 / median(lambda: np.linalg.cholesky(system)),
            "eigen": 2_048.0**3 / median(lambda: np.linalg.eigvalsh(wide), 3),
            "product": 2 * cube / median(lambda: system @ system),
            "stream": sum(one.nbytes for one in many) / median(lambda: [one @ thin for one in many]),
            "load": rows.nbytes / max(1e-9, median(load) - work),
            "read": 8.0 * (square + stats.moment.size) / median(read),
            "step": _step(),
            "fresh": 2**26 / median(lambda: kept.append([np.ones(2**17) for _ in range(2**6)])),
        }


kept: list[object] = []
"""What was allocated, so that no memory is used twice."""


def _step() -> float:
    """Bytes of parameters per second in local steps of two rows, whose products take next to no time."""
    spec = EncodingSpec("synthetic", "0" * 64, {}, "pooled", dtype="float32")
    rows = np.random.default_rng(0).standard_normal((2, 512), dtype=np.float32)
    held = EmbeddingSet(spec, rows, np.arange(2), [f"{row:064x}" for row in range(2)])

    def seconds(classes: int) -> float:
        problem = HeadProblem(Design(512, classes))
        holding, plan = problem.hold(held, np.arange(2)), FitPlan(steps=STEPS, rate=1e-3, ridge=1e-3)
        return median(lambda: problem.fit(holding, "a", plan, {"params": np.zeros(problem.shape)})) / STEPS

    return 8 * 513 * 498 / (seconds(500) - seconds(2))


if __name__ == "__main__":
    print(json.dumps(kernels()))
