"""What noise on released heads costs, in zero-concentrated differential privacy (zCDP), and in (epsilon, delta).

Heads are rounded to a grid, then get discrete Gaussian noise of `sigma` on every parameter. Two heads at most `bound`
apart are at most bound + grid sqrt(parameters) apart when they are rounded, so that releasing one instead of the other
costs rho = (bound + grid sqrt(parameters))^2 / (2 sigma^2) (Canonne, Kamath and Steinke 2020, theorem 14). Costs of
independent draws add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from probekit.errors import InputError, VerificationError
from probekit.values import Json

DISCRETE = "discrete Gaussian"
STEPS = 30
"""Sigma is 2^29 to 2^30 steps of the grid."""
UP = 1 + 1e-12
"""More than a few roundings can take off."""
SIGMAS = (2.0**-900, 2.0**900)


def delta_of(rho: float, epsilon: float) -> float:
    """The delta that rho-zCDP gives at this epsilon (Canonne, Kamath and Steinke 2020, corollary 13).

    The smallest exp((a - 1)(a rho - epsilon)) / (a - 1) (1 - 1/a)^a over a > 1. Its logarithm is convex with
    derivative (2 a - 1) rho - epsilon + log(1 - 1/a); at any a it is an upper bound.
    """
    if rho == 0:
        return 0.0

    def rising(order: float) -> bool:  # of a - 1, to lose no digits near 1
        return (2 * order + 1) * rho - epsilon - math.log1p(1 / order) >= 0

    order = _least(rising)
    exponent = order * ((order + 1) * rho - epsilon) - order * math.log1p(1 / order) - math.log1p(order)
    return min(math.exp(min(exponent, 0.0)) * UP, 1.0)


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse what is no budget."""
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise InputError(f"A budget needs epsilon above 0 and delta in (0, 1); found {epsilon} and {delta}.")


def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho whose delta at this epsilon is small enough."""
    check_budget(epsilon, delta)
    return _least(lambda rho: delta_of(rho, epsilon) > delta) / UP


def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP gives at this delta."""
    return 0.0 if delta_of(rho, 0.0) <= delta else _least(lambda epsilon: delta_of(rho, epsilon) <= delta)


def _least(holds: Callable[[float], bool]) -> float:
    """Where, among the positive numbers, something begins to hold; found from above."""
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, high * 4
    if not low:
        while holds(high / 4) and high > 1e-300:
            high /= 4
        low = high / 4
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class ReleaseNoise:
    """Noise fixed in advance for the heads of a run, and the (epsilon, delta) that all their releases may cost."""

    sigma: float
    grid: float
    epsilon: float
    delta: float

    @classmethod
    def of(cls, sigma: float, *, epsilon: float = 1.0, delta: float = 1e-5) -> Self:
        """Noise of this sigma, rounded up to a whole number of steps of its grid, which is a power of two."""
        if not SIGMAS[0] <= sigma <= SIGMAS[1]:
            raise InputError(f"Noise needs a sigma above 0 (and below {SIGMAS[1]:.2g}); found {sigma}.")
        check_budget(epsilon, delta)
        share, exponent = math.frexp(sigma)
        whole = math.ldexp(math.ceil(math.ldexp(share, STEPS)), exponent - STEPS)
        return cls(whole, math.ldexp(1.0, math.frexp(whole)[1] - STEPS), epsilon, delta)

    @property
    def scale(self) -> int:
        """Sigma in steps of the grid."""
        return int(self.sigma / self.grid)

    @cached_property
    def budget(self) -> float:
        """The rho that all releases together may cost."""
        return rho_of(self.epsilon, self.delta)

    def cost(self, bound: float, parameters: int) -> float:
        """The rho of releasing a head that is at most `bound` from the one it stands for."""
        apart = (bound + self.grid * math.sqrt(parameters)) / self.sigma
        return apart * apart / 2 * UP

    def largest_bound(self, parameters: int, *, spent: float = 0.0) -> float:
        """The largest bound that can still be released when this rho was spent before."""
        left = math.sqrt(2 * max(self.budget - spent, 0.0)) * self.sigma / UP
        return max(left - self.grid * math.sqrt(parameters), 0.0)

    @property
    def plain(self) -> dict[str, Json]:
        """For a ledger."""
        return {"mechanism": DISCRETE, **{name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """As it was written; anything else than `of` makes is refused."""
        with suppress(KeyError, TypeError, ValueError, InputError):
            found = cls.of(**{name: plain[name] for name in ("sigma", "epsilon", "delta")})
            if found.plain == dict(plain):
                return found
        raise VerificationError(f"A {DISCRETE} mechanism was wanted; found {plain}. Do not trust this run.")
