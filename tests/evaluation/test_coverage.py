"""Nominal 95 % intervals hold the true value as often as is promised."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from benchmarks.coverage import MARGIN, NOMINAL, coverage, promised_settings, wilson_nearby

SIMULATIONS = 1000
ERROR = (NOMINAL * (1 - NOMINAL) / SIMULATIONS) ** 0.5


@pytest.mark.parametrize("value", [0.05, 0.1, 0.4, 0.7, 0.9, 0.95])
def test_wilson_covers_by_adding_up_the_binomial_distribution(value: float) -> None:
    assert abs(np.mean(wilson_nearby(200, value)) - NOMINAL) <= MARGIN


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, 36, 3))
def test_what_is_promised_is_covered(number: int) -> None:
    """Every third of the settings of benchmarks/coverage.py, to three Monte Carlo errors."""
    setting = next(islice(promised_settings(), number, None))
    ((_, value),) = coverage(setting, SIMULATIONS).items()
    assert abs(value - NOMINAL) <= MARGIN + 3 * ERROR, setting
