"""45 C's of logistic regression against scikit-learn's L-BFGS, in CPU time on one BLAS thread.

Ours: `fit_path`, every C certified to a relative gap of 1e-6. Theirs: the loss, the optimizer and
the float64 rows of LogisticRegression, started at the solution of the C before and stopped by an
oracle at the first iterate within 1e-6 of the minimum. That is the best any `tol` could do, and
costs them nothing. They run at some of the 45 C's; the others are interpolated between those. A C
that takes longer than --cap counts with the time until then, so that the ratio is a lower bound.

Prints one JSON line for each problem; exits with 1 where a ratio is below its bar. `imagenet` has
no other side: it runs eight C's on 1.28 million rows that are read from disk.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _measure import finish, memory, report
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize
from sklearn._loss import HalfBinomialLoss, HalfMultinomialLoss
from sklearn.datasets import load_digits
from sklearn.linear_model._linear_loss import LinearModelLoss
from threadpoolctl import threadpool_limits

from probekit.linear.logistic import CS, LogisticFit, fit_path

GAP = 1e-6
REFERENCE_GAP = 1e-9
SOME = range(4, 45, 5)
IMAGENET = (1_281_167, 512, 1_000)
IMAGENET_DISTANCE = 0.4
IMAGENET_CS = tuple(10.0**power for power in np.linspace(-2, 1, 8))
IMAGENET_GAP = 1e-4
BLOCK = 8_192

Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    make: Callable[[], tuple[Matrix, Labels]]
    bar: float


def embeddings(
    count: int, width: int, classes: int, distance: float
) -> Callable[[], tuple[Matrix, Labels]]:
    return lambda: make_rows(np.random.default_rng(0), count, width, classes, distance)


def make_rows(
    generator: np.random.Generator, count: int, width: int, classes: int, distance: float
) -> tuple[Matrix, Labels]:
    """Rows of norm 1 like those of an encoder.

    They have a mean of norm 0.6, a spectrum that falls as j^-0.6, three clusters a class, whose
    distance decides how many rows are predicted right, and noise of several sizes.
    """
    fixed = np.random.default_rng(1)
    spectrum = np.arange(1, width + 1, dtype=np.float32) ** np.float32(-0.6)
    centers = fixed.standard_normal((3 * classes, width), dtype=np.float32) * spectrum
    mean = fixed.standard_normal(width, dtype=np.float32)
    labels = generator.integers(0, classes, count)
    clusters = 3 * labels + generator.integers(0, 3, count)
    rows = generator.standard_normal((count, width), dtype=np.float32) * spectrum
    rows *= np.exp(0.3 * generator.standard_normal((count, 1), dtype=np.float32))
    rows += np.float32(distance) * centers[clusters]
    rows *= np.float32(0.8) / np.linalg.norm(rows, axis=1).mean()
    rows += np.float32(0.6) * mean / np.linalg.norm(mean)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, labels


def digits() -> tuple[Matrix, Labels]:
    rows, labels = load_digits(return_X_y=True)
    return (rows[:1400] / 16).astype(np.float32), labels[:1400].astype(np.int64)


PROBLEMS = {
    "20000x512x20": Problem(embeddings(20_000, 512, 20, 0.23), bar=20),
    "5000x1280x10": Problem(embeddings(5_000, 1_280, 10, 0.15), bar=15),
    "digits": Problem(digits, bar=8),
    "2000x768x2": Problem(embeddings(2_000, 768, 2, 0.12), bar=4),
    "50000x512x100": Problem(embeddings(50_000, 512, 100, 0.3), bar=8),
}


class TheirModel:
    """What LogisticRegression(solver="lbfgs") minimizes, its mean over rows, and how."""

    def __init__(self, X: Matrix, y: Labels) -> None:
        self.X = X.astype(np.float64)
        self.y = y.astype(np.float64)
        self.classes = int(y.max()) + 1
        is_binary = self.classes == 2
        base = HalfBinomialLoss() if is_binary else HalfMultinomialLoss(n_classes=self.classes)
        self.loss = LinearModelLoss(base_loss=base, fit_intercept=True)

    def coefficients(self, fit: LogisticFit) -> NDArray[np.float64]:
        if self.classes == 2:
            return fit.params[:, 1] - fit.params[:, 0]
        return fit.params.T.ravel(order="F")

    def seconds_to(self, goal: float, C: float, start: NDArray[np.float64], cap: float) -> float:
        """CPU seconds until the objective is at most `goal`; infinite if the cap comes first."""
        penalty = 1.0 / (C * len(self.y))
        options = {"maxiter": 1_000_000, "maxls": 50, "gtol": 0.0, "ftol": 0.0, "maxfun": 10**9}
        started = time.process_time()
        value = np.inf

        def is_done(intermediate_result: OptimizeResult) -> None:
            nonlocal value
            value = intermediate_result.fun
            if value <= goal or time.process_time() - started > cap:
                raise StopIteration

        minimize(
            self.loss.loss_gradient,
            start,
            method="L-BFGS-B",
            jac=True,
            args=(self.X, self.y, None, penalty, 1),
            options=options,
            callback=is_done,
        )
        return time.process_time() - started if value <= goal else np.inf


def compare(name: str, cap: float, repeats: int) -> None:
    problem = PROBLEMS[name]
    X, y = problem.make()
    ours = []
    for _ in range(repeats):
        started = time.process_time()
        fits = list(fit_path(X, y, tolerance=GAP))
        ours.append(time.process_time() - started)
    reference = list(fit_path(X, y, tolerance=REFERENCE_GAP))
    theirs = TheirModel(X, y)
    seconds = []
    capped = []
    for number in SOME:
        C = CS[number]
        goal = reference[number].objective / (C * len(y)) * (1 + GAP)
        start = theirs.coefficients(reference[number - 1])
        spent = theirs.seconds_to(goal, C, start, cap)
        if spent == np.inf:
            capped.append(f"{C:.3g}")
            spent = cap
        seconds.append(spent)
    whole = float(np.interp(range(len(CS)), list(SOME), seconds).sum())
    report(
        f"45 C's of logistic regression, {name}",
        whole,
        min(ours),
        bar=problem.bar,
        unit="CPU seconds, theirs over ours",
        our_seconds=[round(value, 3) for value in ours],
        their_seconds={f"{CS[i]:.3g}": round(t, 3) for i, t in zip(SOME, seconds, strict=True)},
        capped=capped,
        largest_gap=max(fit.gap for fit in fits),
    )


def imagenet(folder: Path | None) -> None:
    """Eight C's on rows that are written to disk in float16 and read from there."""
    count, width, classes = IMAGENET
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "rows.npy"
        rows = np.lib.format.open_memmap(path, "w+", np.float16, (count, width))
        labels = np.empty(count, np.int64)
        generator = np.random.default_rng(0)
        for start in range(0, count, BLOCK):
            part = slice(start, min(start + BLOCK, count))
            rows[part], labels[part] = make_rows(
                generator, part.stop - start, width, classes, IMAGENET_DISTANCE
            )
        rows.flush()
        del rows
        rows = np.load(path, mmap_mode="r")
        before = memory("VmHWM")
        begun = time.perf_counter()
        for fit in fit_path(rows, labels, IMAGENET_CS, tolerance=IMAGENET_GAP):
            print(
                {
                    "C": round(fit.C, 4),
                    "gap": fit.gap,
                    "newton_steps": fit.steps,
                    "wall_seconds": round(time.perf_counter() - begun),
                    "cpu_seconds": round(resource.getrusage(resource.RUSAGE_SELF).ru_utime),
                    "peak_gigabytes": round(memory("VmHWM") / 1e9, 2),
                    "peak_before": round(before / 1e9, 2),
                },
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=["digits", "2000x768x2"])
    parser.add_argument("--cap", type=float, default=120.0, help="CPU seconds for one C of theirs")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the rows of imagenet; they need 1.3 GB")
    arguments = parser.parse_args()
    for name in arguments.problems:
        if name == "imagenet":
            imagenet(arguments.folder)
            continue
        with threadpool_limits(1):
            compare(name, arguments.cap, arguments.repeats)
    finish()


if __name__ == "__main__":
    main()
