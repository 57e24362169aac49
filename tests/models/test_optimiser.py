"""The steps of every optimiser against a loop over single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.models.fitting import FitPlan, local_steps
from probekit.models.optimiser import Optimiser

Array = NDArray[np.float64]


def slow(name: str, curvature: list[list[float]], linear: list[float], start: list[float], steps: int) -> list[float]:
    """Minimise 1/2 w'Hw - b'w with rate 0.1 in plain Python."""
    w, m, v = list(start), [0.0] * len(start), [0.0] * len(start)
    for t in range(1, steps + 1):
        g = [sum(h * x for h, x in zip(row, w, strict=True)) - b for row, b in zip(curvature, linear, strict=True)]
        for i, slope in enumerate(g):
            if name == "sgd":
                w[i] -= 0.1 * slope
            elif name == "momentum":
                m[i] = 0.8 * m[i] + slope
                w[i] -= 0.1 * m[i]
            else:
                m[i] = 0.7 * m[i] + 0.3 * slope
                v[i] = 0.95 * v[i] + 0.05 * slope * slope
                w[i] -= 0.1 * (m[i] / (1 - 0.7**t)) / (math.sqrt(v[i] / (1 - 0.95**t)) + 1e-3)
    return w


def minimised(H: Array, b: Array, start: Array, *, rule: Optimiser, rate: float = 0.1, steps: int) -> Array:
    """Where full steps on 1/2 w'Hw - b'w end."""
    plan = FitPlan(steps=steps, optimiser=rule, rate=rate)
    return local_steps(plan, {"params": start}, plan.batches(1, "a"), lambda params, _: H @ params - b)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_stacked_steps_equal_a_loop_over_numbers(name: str) -> None:
    generator = np.random.default_rng(0)
    factor = generator.normal(size=(3, 4, 4))
    curvature, linear = factor @ factor.transpose(0, 2, 1) / 4 + np.eye(4), generator.normal(size=(3, 4, 2))
    start = generator.normal(size=(4, 2))
    rule = Optimiser(name, momentum=0.8, betas=(0.7, 0.95), epsilon=1e-3)
    for H, b in zip(curvature, linear, strict=True):
        found = minimised(H, b, start, rule=rule, steps=6)
        for k in range(2):
            wanted = slow(name, H.tolist(), b[:, k].tolist(), start[:, k].tolist(), 6)
            np.testing.assert_allclose(found[:, k], wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_the_largest_rate_divides_convergence_from_divergence(name: str) -> None:
    rule = Optimiser(name, momentum=0.8)
    largest = rule.largest_rate(3.0)
    assert largest is not None
    for factor, wanted in ((0.99, True), (1.01, False)):
        H, b = np.array([[3.0]]), np.zeros((1, 1))
        end = minimised(H, b, np.ones((1, 1)), rule=rule, rate=factor * largest, steps=4000)
        assert bool(abs(end[0, 0]) < 1) is wanted


def test_the_start_is_left_alone() -> None:
    start = np.ones((2, 1))
    minimised(np.eye(2), np.zeros((2, 1)), start, rule=Optimiser("adam"), steps=3)
    assert np.array_equal(start, np.ones((2, 1)))


def test_unknown_and_impossible_optimisers_are_refused() -> None:
    with pytest.raises(InputError, match="adam"):
        Optimiser("adma")
    with pytest.raises(InputError, match=r"1\.0"):
        Optimiser("momentum", momentum=1.0)
