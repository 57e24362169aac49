"""(epsilon, delta): when a released head cannot be told from a retrained one.

Output perturbation: heads leave a run rounded to a grid and with discrete Gaussian noise, fixed before it was trained;
a removal whose distance to retraining is bounded is then covered as far as `custody.accounting` says, or refused.
Objective perturbation (Guo et al., ICML 2020): a random linear term <B, W>, drawn once and kept secret, hides the
gradient that a removal leaves behind.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from probekit.certificates.bounds import Residual
from probekit.certificates.certificate import Certificate
from probekit.custody.accounting import DISCRETE, ReleaseNoise, check_budget
from probekit.custody.discrete_gaussian import draw
from probekit.errors import InputError
from probekit.linear.objective import SIGMA, refuse_sigma
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.values import Json

NOT_TRAINING = (
    "This is not differential privacy of training: it hides how far a removal is from retraining, and no more."
)
EARLIER = "Heads that were released before a removal still know the forgotten."
CAVEATS = (
    NOT_TRAINING,
    EARLIER,
    "It covers what the ledger says was released, in all. Copies of the run, or runs trained again on the same rows, "
    "that release heads of their own, and heads without noise in other hands, undo it.",
    "Residuals, changes of the loss, digests and reports of heads without noise are not covered: keep them, as "
    "embeddings, logs and statistics of the forgotten, from those who get the head.",
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
OBJECTIVE = "objective perturbation"
SERVED = (
    *("head", "intercept", "fit_view", "normalise_classes", "scaling", "centre", "backbone", "dataset", "spec"),
    *("pretraining", "weights"),
)
"""What the recipe of a released head says; the rest (rows, residual, how the ridge was chosen) no noise covers."""
NOISE_RECIPE = ("noise_sigma", "noise_grid")
LARGEST_STEPS = 2.0**62


@dataclass(frozen=True)
class Budget:
    """A guarantee that was checked: noise, its (epsilon, delta), the bound it covers and the largest it could.

    Of noise on the head also its grid, for how many parameters, and the rho that this release costs.
    """

    mechanism: str
    sigma: float
    epsilon: float
    delta: float
    bound: float
    largest_bound: float
    caveats: tuple[str, ...] = CAVEATS
    grid: float | None = None
    parameters: int | None = None
    rho: float | None = None

    @property
    def plain(self) -> dict[str, Json]:
        """For a certificate."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def release_budget(bound: float, noise: ReleaseNoise, *, parameters: int, spent: float = 0.0) -> Budget:
    """The guarantee of releasing a head with noise fixed in advance; too far from retraining for it, it is refused."""
    rho = noise.cost(bound, parameters)
    if not spent + rho <= noise.budget:
        raise InputError(
            f"Noise of sigma {noise.sigma:g}, fixed before training, covers a distance to retraining of at most "
            f"{noise.largest_bound(parameters, spent=spent):.6g} at epsilon {noise.epsilon:g}, delta {noise.delta:g} "
            f"({spent / noise.budget:.0%} of that budget is spent); this removal is certified to {bound:.6g} only. "
            "Remove exactly or by more gradient rounds (fedremoval-pcg); or give `unreleased=True`: the state is then "
            "never released. Do not raise sigma after the fact: that would depend on the data."
        )
    guaranteed = (noise.epsilon, noise.delta, bound, noise.largest_bound(parameters), CAVEATS)
    return Budget(DISCRETE, noise.sigma, *guaranteed, noise.grid, parameters, rho)


def release(head: Head, noise: ReleaseNoise) -> Head:
    """The head rounded to the grid, with a fresh draw of noise on every parameter it has."""
    problem = problem_of(head)
    params, recipe = problem.params(head), {name: head.recipe[name] for name in SERVED if name in head.recipe}
    if not np.array_equal(problem.head(params, ridge=head.ridge, recipe=recipe).params, head.params):
        raise InputError(
            "This head has a bias that is no parameter of its problem (centred rows, no intercept), so no noise covers "
            "it. Train with `intercept=penalised`, or without centring."
        )
    steps = params / noise.grid  # exact: the grid is a power of two
    if not np.abs(steps).max(initial=0.0) < LARGEST_STEPS:
        raise InputError(
            f"Noise of sigma {noise.sigma:g} is too small for parameters of up to {np.abs(params).max():.3g}: they "
            "have no whole number of its steps. Train with a larger one."
        )
    noisy = np.rint(steps).astype(np.int64) + draw(noise.scale, params.size).reshape(params.shape)
    told = zip(NOISE_RECIPE, (noise.sigma, noise.grid), strict=True)
    said: dict[str, Json] = {**recipe, **dict(told), "exact_unlearning": False}
    found: Head = problem.head(noisy.astype(np.float64) * noise.grid, ridge=head.ridge, recipe=said)
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
    check_budget(epsilon, delta)
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
