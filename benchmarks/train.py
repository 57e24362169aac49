"""Training in memory: statistics against the machine's own SYRK, merging against AFL's law.

50,000 x 512 rows of 100 classes; one BLAS thread. Memory beyond the rows is measured in a process
of its own, which `python benchmarks/train.py memory` is.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from _measure import finish, memory, race, report
from numpy.typing import NDArray
from scipy import linalg

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.linear.ridge import solve_ridge
from probekit.linear.stats import SufficientStats, sum_stats
from probekit.runs.run import single_thread

ROWS = 50_000
WIDTH = 512
CLASSES = 100
CLIENTS = 50
RIDGE = 1e-3
MEMORY_ROWS = 200_000
MEMORY_BAR = 100.0

Upload = tuple[Array, Array]


def make_rows(count: int) -> EmbeddingSet:
    """Rows around a center for each class, with a mean that is not zero, as embeddings have."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, count)
    centers = 0.3 * generator.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    rows = generator.standard_normal((count, WIDTH), dtype=np.float32)
    for start in range(0, count, 8192):
        rows[start : start + 8192] += centers[labels[start : start + 8192]] + np.float32(0.5)
    return EmbeddingSet.from_numpy(rows, labels, class_names=[str(c) for c in range(CLASSES)])


def measure_statistics(rows: EmbeddingSet) -> None:
    """float32 rows to float64 sums, labels included, beside a product of float64 rows alone."""
    X = rows.to_numpy().astype(np.float64)
    ours, theirs = race(
        partial(SufficientStats.from_rows, rows),
        partial(np.matmul, X.T, X),  # NumPy sees one matrix and its transpose, and calls SYRK
        repeats=11,
    )
    rate = ROWS * WIDTH * (WIDTH + 1) / 1e9
    report("statistics, GFLOP/s over SYRK's", rate / ours, rate / theirs, bar=0.9)


def merge_by_afl(first: Upload, second: Upload) -> Upload:
    """AFL's absolute aggregation of two clients' heads and Grams (He et al., CVPR 2025)."""
    w1, c1 = first
    w2, c2 = second
    r1, r2, both = linalg.inv(c1), linalg.inv(c2), linalg.inv(c1 + c2)
    identity = np.eye(len(c1))
    share = (identity - r1 @ c2 + r1 @ c2 @ both @ c2) @ w1
    other = (identity - r2 @ c1 + r2 @ c1 @ both @ c1) @ w2
    return share + other, c1 + c2


def afl(uploads: list[Upload], gamma: float) -> Array:
    """All clients pair after pair, then all but one of their ridges are taken out."""
    merged = uploads[0]
    for upload in uploads[1:]:
        merged = merge_by_afl(merged, upload)
    weights, gram = merged
    surplus = (len(uploads) - 1) * gamma
    clean = gram - surplus * np.eye(len(gram))
    return np.asarray(weights + surplus * linalg.solve(clean, weights, assume_a="pos"))


def measure_merging(rows: EmbeddingSet) -> None:
    """50 clients' uploads to one head, all columns penalized as AFL has it."""
    gamma = RIDGE * ROWS
    parts = [
        SufficientStats.from_rows(rows.take(np.arange(client, ROWS, CLIENTS)))
        for client in range(CLIENTS)
    ]
    systems = [(part.gram + gamma * np.eye(WIDTH + 1), part.moment) for part in parts]
    uploads = [(linalg.solve(gram, moment, assume_a="pos"), gram) for gram, moment in systems]

    def merge() -> Array:
        return solve_ridge(sum_stats(parts), RIDGE, "penalized")

    ours, theirs = race(merge, partial(afl, uploads, gamma), repeats=3)
    Z = np.hstack([rows.to_numpy(), np.ones((ROWS, 1))])
    truth = linalg.lstsq(
        np.vstack([Z, np.sqrt(gamma) * np.eye(WIDTH + 1)]),
        np.vstack([rows.target_matrix, np.zeros((WIDTH + 1, CLASSES))]),
    )[0]
    errors = [_error(merge(), truth), _error(afl(uploads, gamma), truth)]
    report(f"merging {CLIENTS} clients, heads per second over AFL's", 1 / ours, 1 / theirs,
           bar=100, seconds=[round(ours, 4), round(theirs, 3)], errors=errors)  # fmt: skip


def _error(params: Array, truth: NDArray[np.float64]) -> float:
    return float(f"{np.linalg.norm(params - truth) / np.linalg.norm(truth):.2g}")


def added_memory() -> int:
    """The bytes that a head of many rows adds at most, libraries being loaded (Linux)."""
    solve_ridge(SufficientStats.from_rows(make_rows(1_000)), RIDGE)
    rows = make_rows(MEMORY_ROWS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is used now
    before = memory("VmRSS")
    solve_ridge(SufficientStats.from_rows(rows), RIDGE)
    return memory("VmHWM") - before


def measure_memory() -> None:
    command = [sys.executable, __file__, "memory"]
    added = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report(f"memory beyond {MEMORY_ROWS:,} rows, MB", int(added) / 1e6, MEMORY_BAR, bar=1,
           better="lower")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        print(added_memory())
        sys.exit()
    with single_thread():
        rows = make_rows(ROWS)
        measure_statistics(rows)
        measure_merging(rows)
    measure_memory()
    finish()
