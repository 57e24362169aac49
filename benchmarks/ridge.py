"""Exact leave-one-out over 45 ridges against RidgeClassifierCV, on the same rows, in turns.

Prints one JSON object; exits with 1 where the ratio of the medians is below the bar of 10 or the
choices differ. OMP_NUM_THREADS=1 gives both one BLAS thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
from sklearn.linear_model import RidgeClassifierCV

from probekit.embeddings import EmbeddingSet
from probekit.linear.leave_one_out import search_ridge
from probekit.linear.ridge import RidgePath, solve_ridge
from probekit.linear.stats import SufficientStats

BAR = 10.0


def make_rows(count: int, width: int, classes: int) -> EmbeddingSet:
    """Rows around a center for each class, with a mean that is not zero, as embeddings have."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, classes, count)
    centers = 0.3 * generator.standard_normal((classes, width), dtype=np.float32)
    rows = generator.standard_normal((count, width), dtype=np.float32)
    return EmbeddingSet.from_numpy(rows + centers[labels] + np.float32(0.5), labels)


def fit_ours(embeddings: EmbeddingSet) -> float:
    stats = SufficientStats.from_rows(embeddings)
    path = RidgePath.of(stats)
    ridge = search_ridge(path, embeddings).value
    solve_ridge(stats, ridge)
    return ridge


def fit_theirs(embeddings: EmbeddingSet, alphas: np.ndarray) -> float:
    return float(RidgeClassifierCV(alphas).fit(embeddings.to_numpy(), embeddings.labels).alpha_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    embeddings = make_rows(arguments.rows, arguments.width, arguments.classes)
    grid = RidgePath.of(SufficientStats.from_rows(embeddings)).grid()
    others = arguments.rows - 1  # left-out heads have one row less, and n * ridge is alpha
    ours, theirs = [], []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        ridge = fit_ours(embeddings)
        middle = time.perf_counter()
        alpha = fit_theirs(embeddings, others * grid)
        ours.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    ratio = statistics.median(theirs) / statistics.median(ours)
    same = bool(np.isclose(ridge * others, alpha, rtol=1e-9))
    result = {
        "name": "leave-one-out over 45 ridges",
        "rows": [arguments.rows, arguments.width, arguments.classes],
        "ours_seconds": [round(value, 3) for value in ours],
        "theirs_seconds": [round(value, 3) for value in theirs],
        "ratio_of_medians": round(ratio, 2),
        "bar": BAR,
        "same_choice": same,
    }
    print(json.dumps(result))
    sys.exit(0 if same and ratio >= BAR else 1)


if __name__ == "__main__":
    main()
