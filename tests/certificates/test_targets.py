"""Bounds of heads of real targets hold, and the verifier's own ranges hold the truth."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from probekit.certificates.target_bounds import excess_of_targets, known_of_targets
from probekit.certificates.target_look import TargetLook, TargetSums
from probekit.linear.ridge import fit
from probekit.linear.target_client import client_target_statistics
from probekit.linear.targets import TargetDesign, TargetStats, target_statistics


@pytest.mark.parametrize("seed", range(12))
def test_claims_and_ranges_hold_the_exact_truth(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, d, k = int(generator.integers(12, 60)), int(generator.integers(2, 6)), int(generator.integers(1, 4))
    X = generator.normal(size=(rows, d)) * 10.0 ** generator.integers(-3, 4) + generator.normal()
    Y = generator.normal(size=(rows, k)) * 10.0 ** generator.integers(-2, 3)
    Y[generator.random(Y.shape) < 0.3 * (seed % 2)] = np.nan
    Y[0] = 1.0
    intercept, scaling = ("penalised", "free", "none")[seed % 3], ("mean", "sum")[seed % 2]
    design = TargetDesign(d, k, intercept=intercept)
    objective: Any = {"ridge": 0.05, "scaling": scaling, "view": "none", "class_weight": None}
    cut = rows // 2 + 3
    sent = {
        "a": client_target_statistics(X[:3], Y[:3], design),
        "b": client_target_statistics(X[3:cut], Y[3:cut], design),
    }
    sent["c"] = target_statistics(X[cut:], Y[cut:], design)
    total: TargetStats = sent["a"] + sent["b"] + sent["c"]
    exact = fit(total, 0.05, scaling=scaling).params[: design.columns]
    moved = exact + generator.normal(size=exact.shape) * 10.0 ** -int(generator.integers(3, 15)) * np.abs(exact).max()
    known = known_of_targets(moved, objective, total, [one.count for one in sent.values()])
    assert known.curvature is not None
    assert known.weights is not None
    distance, excess, smallest = truth(X, Y, moved, intercept, scaling)
    # what the rounding of sums hides from a solution in float64 stays far below the bound
    assert distance <= known.weights * (1 + 1e-9) + 1e-11 * np.abs(exact).max()
    assert excess <= excess_of_targets(known, moved) * (1 + 1e-6) + 1e-20
    assert known.curvature.value <= smallest * (1 + 1e-9)
    for sums in (TargetSums.of_statistics(sent), TargetSums.of_rows(design, [(X, Y)])):
        look = TargetLook(sums, objective, moved, known.curvature.value)
        for found, number in ((look.distance(), distance), (look.excess(), excess), (look.curvature(), smallest)):
            assert found.high is not None
            room = Fraction(1e-8 * number + 1e-11 * float(np.abs(exact).max()) ** 2 * float(number > 0))
            assert found.low - room <= Fraction(number) <= found.high + room
        assert look.change(exact).low >= -Fraction(1e-12) * Fraction(1 + excess)
        assert len(look.residuals()) == k + 1


def truth(X: Any, Y: Any, params: Any, intercept: str, scaling: str) -> tuple[float, float, float]:
    """Distance, excess loss and smallest curvature in long double: the losses of the targets add up."""
    rows = X if intercept == "none" else np.hstack([X, np.ones((len(X), 1))])
    distance, excess, smallest = 0.0, 0.0, np.inf
    for label in range(Y.shape[1]):
        seen = ~np.isnan(Y[:, label])
        x, y = rows[seen].astype(np.longdouble), Y[seen, label].astype(np.longdouble)
        ridge = 0.05 if scaling == "mean" else 0.05 / len(x)
        pulled = np.full(x.shape[1], ridge)
        if intercept == "free":
            pulled[-1] = 0.0
        curvature, linear = x.T @ x / len(x) + np.diag(pulled), x.T @ y / len(x)
        best = np.linalg.solve(curvature.astype(float), linear.astype(float)).astype(np.longdouble)
        for _ in range(4):  # refined to long double
            left = (linear - curvature @ best).astype(float)
            best = best + np.linalg.solve(curvature.astype(float), left)
        off = params[:, label] - best
        distance += float(off @ off)
        excess += float(off @ curvature @ off) / 2
        smallest = min(smallest, float(np.linalg.eigvalsh(curvature.astype(float))[0]))
    return float(np.sqrt(distance)), excess, smallest
