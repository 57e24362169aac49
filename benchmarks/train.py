"""Training side by side: scikit-learn's ridge and leave-one-out, AFL's merging, the machine's own GEMM rate, memory.

Every pair runs on the same rows, in turns, in this process; errors are relative (Frobenius) to a float64 reference.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
from _measure import finish, race, report
from numpy.typing import NDArray
from scipy import linalg
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV

from probekit.federated.summation import StatisticsTree
from probekit.linear.design import Design, LinearFit
from probekit.linear.leaveout import choose_ridge
from probekit.linear.path import decompose
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics

DIMENSION, CLASSES, ALPHA = 512, 100, 10.0
GEMM = 2048
MEMORY_ROWS = 200_000

Array = NDArray[Any]


def made(rows: int, *, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows around one centre per class, with a mean that is not zero, as embeddings have."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, rows)
    embeddings = generator.standard_normal((rows, DIMENSION), dtype=np.float32)
    centres = generator.standard_normal((CLASSES, DIMENSION), dtype=np.float32) * np.float32(0.3)
    for start in range(0, rows, 8192):
        embeddings[start : start + 8192] += centres[labels[start : start + 8192]] + np.float32(0.5)
    return embeddings, labels


def head(rows: Array, labels: Array, arithmetic: str) -> LinearFit:
    """Our head with scikit-learn's objective: a free intercept, the ridge as it is."""
    design = Design(DIMENSION, CLASSES, intercept="free", arithmetic=arithmetic)
    return fit(statistics(rows, labels, design), ALPHA, scaling="sum")


def reference(rows: Array, labels: Array) -> Array:
    """The same by textbook, all in float64 at once: centre, multiply, solve."""
    columns = rows.astype(np.float64)
    columns -= columns.mean(axis=0)
    targets = np.eye(CLASSES)[labels]
    targets -= targets.mean(axis=0)
    gram = columns.T @ columns + ALPHA * np.eye(DIMENSION)
    return np.asarray(linalg.solve(gram, columns.T @ targets, assume_a="pos"))


def ridge_heads() -> None:
    """50,000 x 512 x 100 against RidgeClassifier, with float64 statistics and with fast ones."""
    rows, labels = made(50_000)
    truth = reference(rows, labels)

    def error(found: Array) -> float:
        return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))

    def theirs() -> Any:
        return RidgeClassifier(alpha=ALPHA, solver="cholesky").fit(rows, labels)

    their_error = error(theirs().coef_.T / 2)  # their targets are -1 and 1: twice ours
    for arithmetic, bar in (("float64", 1.0), ("fast", 2.0)):
        own = error(head(rows, labels, arithmetic).params[:-1])
        mine, other = race(partial(head, rows, labels, arithmetic), theirs, repeats=21, choose=min)
        told = {"seconds": [round(mine, 4), round(other, 4)], "errors": [f"{own:.2g}", f"{their_error:.2g}"]}
        report(f"ridge head, {arithmetic} statistics: speed", 1 / mine, 1 / other, bar=bar, **told)
        if arithmetic == "float64":
            report("ridge head, float64 statistics: error", own, their_error, bar=1.0, better="lower")


def leave_one_out() -> None:
    """Exact leave-one-out over 45 ridges, 20,000 x 512 x 100, against RidgeClassifierCV."""
    rows, labels = made(20_000, seed=1)
    alphas = np.geomspace(1e-3, 1e6, 45)
    design = Design(DIMENSION, CLASSES, intercept="free")
    chosen: dict[str, float] = {}

    def ours() -> None:
        path = decompose(statistics(rows, labels, design), scaling="sum", targets=(-1.0, 1.0))
        chosen["ours"] = choose_ridge(path, rows, labels, ridges=alphas)[0]

    def theirs() -> None:
        chosen["theirs"] = float(RidgeClassifierCV(alphas=alphas).fit(rows, labels).alpha_)

    mine, other = race(ours, theirs, repeats=2, choose=min)
    same = bool(np.isclose(chosen["ours"], chosen["theirs"]))
    told = {"seconds": [round(mine, 3), round(other, 3)], "chosen": chosen}
    report("leave-one-out over 45 ridges: speed", 1 / mine, 1 / other, bar=10.0, **told)
    report("leave-one-out over 45 ridges: same choice", float(same), 1.0, bar=1.0)


def afl_pair(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """AFL's absolute aggregation of two clients' heads and regularised Grams."""
    (w1, c1), (w2, c2) = one, other
    r1, r2, both = linalg.inv(c1), linalg.inv(c2), linalg.inv(c1 + c2)
    identity = np.eye(len(c1))
    first = (identity - r1 @ c2 + r1 @ c2 @ both @ c2) @ w1
    second = (identity - r2 @ c1 + r2 @ c1 @ both @ c1) @ w2
    return first + second, c1 + c2


def afl(uploads: list[tuple[Array, Array]], gamma: float) -> Array:
    """All clients by AFL: pair after pair, then the surplus of ridges is cleaned away, down to one of them."""
    total = uploads[0]
    for upload in uploads[1:]:
        total = afl_pair(total, upload)
    weights, gram = total
    surplus = (len(uploads) - 1) * gamma
    return np.asarray(weights + surplus * linalg.solve(gram - surplus * np.eye(len(gram)), weights, assume_a="pos"))


def merging() -> None:
    """50 clients' uploads to one head: sums and one solve, against AFL's pairwise law."""
    rows, labels = made(50_000, seed=2)
    design = Design(DIMENSION, CLASSES, intercept="none")
    parts = {str(c): statistics(rows[c::50], labels[c::50], design) for c in range(50)}
    identity = ALPHA * np.eye(DIMENSION)
    uploads = [(linalg.solve(p.gram + identity, p.moment, assume_a="pos"), p.gram + identity) for p in parts.values()]

    def ours() -> Array:
        return fit(StatisticsTree.of(parts).total, ALPHA, scaling="sum").params[:-1]

    columns = rows.astype(np.float64)
    truth = linalg.solve(columns.T @ columns + identity, columns.T @ np.eye(CLASSES)[labels], assume_a="pos")
    errors = [f"{np.linalg.norm(found - truth) / np.linalg.norm(truth):.2g}" for found in (ours(), afl(uploads, ALPHA))]
    mine, other = race(ours, lambda: afl(uploads, ALPHA), repeats=2, choose=min)
    told = {"seconds": [round(mine, 4), round(other, 3)], "errors": errors}
    report("merging 50 clients: speed", 1 / mine, 1 / other, bar=100.0, **told)


def throughput() -> None:
    """Statistics against the machine's own GEMM rate, counting only the operations that a triangle needs.

    Where its SYRK of the same rows in the same numbers is itself slow against GEMM, 0.9 of that is asked for.
    """
    rows, labels = made(50_000, seed=3)
    needed = len(rows) * DIMENSION * (DIMENSION + 1) + len(rows) * DIMENSION
    for arithmetic, dtype in (("float64", "float64"), ("fast", "float32")):
        design = Design(DIMENSION, CLASSES, arithmetic=arithmetic)
        a, b = (np.random.default_rng(s).standard_normal((GEMM, GEMM)).astype(dtype) for s in (0, 1))
        columns = rows.astype(dtype)
        ours = partial(statistics, rows, labels, design)
        mine, gemm = race(ours, partial(np.matmul, a, b), repeats=11, choose=min)
        # NumPy sees one matrix and its transpose, and calls SYRK
        again, triangle = race(ours, partial(np.matmul, columns.T, columns), repeats=11, choose=min)
        own, machine = needed / min(mine, again), 2 * GEMM**3 / gemm
        own_syrk = len(rows) * DIMENSION * (DIMENSION + 1) / triangle
        rates = {"GEMM": machine, "SYRK": own_syrk}
        told: dict[str, Any] = {
            "GFLOP/s": {
                "statistics": round(own / 1e9, 1),
                **{name: round(one / 1e9, 1) for name, one in rates.items()},
            },
            "shares": {name: round(own / one, 3) for name, one in rates.items()},
        }
        wanted = min(0.6 * machine, 0.9 * own_syrk)
        report(f"statistics, {arithmetic}: rate over 0.6 of GEMM's or 0.9 of SYRK's", own, wanted, bar=1.0, **told)


def peak() -> int:
    """The most memory that this process has used so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def grow() -> None:
    """Print how much a head of 200,000 rows adds to the peak, after a small one has loaded all libraries."""
    few, their_labels = made(1_000)
    head(few, their_labels, "float64")
    rows, labels = made(MEMORY_ROWS)
    before = peak()
    head(rows, labels, "float64")
    print(peak() - before)


def memory() -> None:
    """Memory beyond the input at 200,000 rows, in a process of its own."""
    told = subprocess.run([sys.executable, __file__, "grow"], check=True, capture_output=True, text=True).stdout
    report("memory beyond the input at 200,000 rows, MB", int(told) / 1e6, 100.0, bar=1.0, better="lower")


if __name__ == "__main__":
    if sys.argv[1:] == ["grow"]:
        grow()
    else:
        for part in (ridge_heads, leave_one_out, merging, throughput, memory):
            part()
        finish()
