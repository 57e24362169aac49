"""(epsilon, delta): when a released head cannot be told from a retrained one.

Output perturbation: heads are released with noise N(0, sigma^2) on every parameter, at training and at removal
alike. sigma is fixed in advance; a removal whose distance to retraining is bounded by `bound` is then covered
as far as the Gaussian mechanism says, or refused. Objective perturbation (Guo et al., ICML 2020): a random
linear term <B, W>, drawn once and kept secret, hides the gradient that a removal leaves behind.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from probekit.certificates.bounds import Residual
from probekit.certificates.certificate import Certificate
from probekit.errors import InputError
from probekit.linear.lapack import optimize, special
from probekit.linear.objective import SIGMA, refuse_sigma
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.values import Json

NOISE_STREAM = 40
CAVEATS = (
    "The guarantee concerns the released head only, and only if the head before was released with the same noise.",
    "The noise must be drawn afresh for every release, unknown to anybody; a seed that is told undoes it.",
    "Embeddings, logs, statistics of the forgotten and heads without noise must be deleted.",
    "Requests that depend on what was released before are not covered.",
    "Ridge, classes, centring and scaling chosen with the forgotten rows' help are a leak.",
)
OBJECTIVE_CAVEATS = (
    "The guarantee compares this head alone with one trained on the retained rows with a linear term drawn alike.",
    "The linear term must stay secret, and be the same before and after. Whoever has the retained statistics can "
    "compute it from the head, and is not covered.",
    "Earlier removals add nothing: the residual is taken anew over the rows retained now. But two heads with the same "
    "term are not covered together, whatever their budgets: the term cancels in their equations.",
    "Embeddings, logs, statistics of the forgotten and heads without the term must be deleted.",
    *CAVEATS[-2:],
)
OUTPUT, OBJECTIVE = "output perturbation", "objective perturbation"


def gaussian_delta(bound: float, *, sigma: float, epsilon: float) -> float:
    """The smallest delta of the Gaussian mechanism (Balle and Wang, ICML 2018, theorem 8).

    Phi(bound / 2 sigma - epsilon sigma / bound) - e^epsilon Phi(-bound / 2 sigma - epsilon sigma / bound).
    """
    refuse_sigma(sigma)
    if bound < 0 or epsilon < 0:
        raise InputError(f"A bound and an epsilon are 0 or more; found {bound} and {epsilon}.")
    if bound == 0:
        return 0.0
    half, cost = bound / (2 * sigma), epsilon * sigma / bound
    first, second = float(special.log_ndtr(half - cost)), epsilon + float(special.log_ndtr(-half - cost))
    return max(-math.exp(first) * math.expm1(min(second - first, 0.0)), 0.0)


def analytic_sigma(bound: float, *, epsilon: float, delta: float) -> float:
    """The smallest sigma that gives (epsilon, delta) at this bound, from above."""
    _budget(epsilon, delta)

    def excess(log_sigma: float) -> float:
        return gaussian_delta(1.0, sigma=math.exp(log_sigma), epsilon=epsilon) - delta

    high = 0.0
    while excess(high) > 0:
        high += 1.0
    found = optimize.brentq(excess, -30.0, high, xtol=1e-15)
    while excess(found) > 0:  # the root is met from either side
        found += 1e-15 * max(1.0, abs(found))
    return bound * math.exp(found)


def largest_bound(sigma: float, *, epsilon: float, delta: float) -> float:
    """The largest bound that noise of this sigma covers."""
    refuse_sigma(sigma)
    return sigma / analytic_sigma(1.0, epsilon=epsilon, delta=delta)


@dataclass(frozen=True)
class Budget:
    """A guarantee that was checked: noise, its (epsilon, delta), the bound it covers and the largest it could."""

    mechanism: str
    sigma: float
    epsilon: float
    delta: float
    bound: float
    largest_bound: float
    caveats: tuple[str, ...] = CAVEATS

    @property
    def plain(self) -> dict[str, Json]:
        """For a certificate."""
        return asdict(self)


def check_budget(bound: float, sigma: float, *, epsilon: float, delta: float) -> Budget:
    """The guarantee of noise fixed in advance; a bound too large for it is refused."""
    largest = largest_bound(sigma, epsilon=epsilon, delta=delta)
    if not bound <= largest:
        raise InputError(
            f"Noise of sigma {sigma:g} covers a distance to retraining of at most {largest:.6g} at epsilon "
            f"{epsilon:g}, delta {delta:g}; this removal is certified to {bound:.6g} only. Remove exactly or by "
            "more gradient rounds (fedremoval-pcg); do not raise sigma after the fact: that would depend on the data."
        )
    return Budget(OUTPUT, sigma, epsilon, delta, bound, largest)


def release(head: Head, sigma: float, *, seed: int | None = None) -> Head:
    """The head with fresh noise on every parameter it has; None: noise that nobody can draw again."""
    refuse_sigma(sigma)
    problem = problem_of(head)
    source = np.random.PCG64(None if seed is None else [seed, NOISE_STREAM])
    noise = np.random.Generator(source).normal(0.0, sigma, problem.shape)
    recipe: dict[str, Json] = {**head.recipe, "noise_sigma": sigma, "exact_unlearning": False}
    found: Head = problem.head(problem.params(head) + noise, ridge=head.ridge, recipe=recipe)
    return found


def removal_budget(residual: float, sigma: float, *, epsilon: float, delta: float) -> Budget:
    """(epsilon, delta) of objective perturbation: sigma = c residual / epsilon with delta = 1.5 e^(-c^2 / 2)."""
    largest = largest_residual(sigma, epsilon=epsilon, delta=delta)
    if not residual <= largest:
        raise InputError(
            f"A linear term of sigma {sigma:g} hides a residual of at most {largest:.6g} at epsilon {epsilon:g}, "
            f"delta {delta:g}; this removal leaves {residual:.6g}. Solve again on the retained statistics with the "
            "same term, or train anew with a new one."
        )
    return Budget(OBJECTIVE, sigma, epsilon, delta, residual, largest, OBJECTIVE_CAVEATS)


def largest_residual(sigma: float, *, epsilon: float, delta: float) -> float:
    """The largest residual (sum scaling) that a linear term of this sigma hides; proven for epsilon up to 1."""
    _budget(epsilon, delta)
    refuse_sigma(sigma)
    if epsilon > 1:
        raise InputError(f"Objective perturbation is proven for epsilon up to 1; found {epsilon}. Ask for 1 or less.")
    return sigma * epsilon / math.sqrt(2 * math.log(1.5 / delta))


def guarantee(certificate: Certificate, *, epsilon: float = 1.0, delta: float = 1e-5) -> Budget:
    """The budget of a certified removal from a run with a linear term; a residual too large for it is refused."""
    sigma = certificate.objective.get(SIGMA)
    if not isinstance(sigma, float | int):
        raise InputError("This run's objective has no linear term that could hide a removal. Train with one.")
    if certificate.residual is None:
        raise InputError(f"(epsilon, delta) needs a certified residual, and there is none. {certificate.bounds.why}")
    return removal_budget(sum_bound(certificate, certificate.residual), sigma, epsilon=epsilon, delta=delta)


def sum_bound(certificate: Certificate, residual: Residual) -> float:
    """What a residual of the mean loss, rounding included, is in sum scaling."""
    return certificate.retained_numbers[1] * residual.bound


def _budget(epsilon: float, delta: float) -> None:
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise InputError(f"A budget needs epsilon above 0 and delta in (0, 1); found {epsilon} and {delta}.")
