"""Checking what a certificate says of (epsilon, delta), and of the secret linear term behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.certificate import Certificate
from probekit.certificates.privacy import CAVEATS, NOISE_RECIPE, OBJECTIVE, OBJECTIVE_CAVEATS
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, Finding, stated
from probekit.custody.accounting import DISCRETE
from probekit.linear.lapack import optimize, special
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head
from probekit.values import Json

RARE = 1e-9
"""How seldom a true term may be larger, or smaller, than a verifier accepts."""
ROOM = 1 + 1e-9
HALF = 0.5
OLD = "output perturbation"
"""Noise that earlier versions drew after the fact."""

Array = NDArray[np.float64]


def check_privacy(certificate: Certificate, head: Head | None) -> list[Finding]:
    """Whether the noise covers what it is said to cover; of noise on a head, that it has so many parameters."""
    said: Any = certificate.privacy
    if said is None:
        return []
    if not isinstance(said, Mapping):
        return [Finding("privacy", FALSE, str(said), "not a budget")]
    hidden = certificate.objective.get(SIGMA)
    try:
        if hidden is None and said["mechanism"] == OLD:
            return [Finding("privacy", INTACT, OLD, "drawn by a sampler of rounded numbers", "a release by export")]
        wrong = _wrong_release(certificate, said, head) if hidden is None else _wrong_term(certificate, said, hidden)
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        wrong = f"not a budget: {error}"
    claimed = f"epsilon {said.get('epsilon')}, delta {said.get('delta')}"
    if head is None and hidden is None and not wrong:
        return [Finding("privacy", INTACT, claimed, f"for {said['parameters']} parameters", "the head")]
    return [Finding("privacy", FALSE if wrong else PROVEN, claimed, wrong or "follows from the claims above")]


def check_release(certificate: Certificate, head: Head) -> Finding:
    """Whether a head with noise can be a release of the certificate's, by sigma and grid; a ledger names it."""
    said: Any = certificate.privacy or {}
    told = [head.recipe.get(name) for name in NOISE_RECIPE]
    grid = told[1] if isinstance(told[1], float) and told[1] > 0 else math.inf
    steps = head.params / grid
    fits = told == [said.get("sigma"), said.get("grid")] and np.array_equal(steps, np.rint(steps))
    claimed = str(certificate.after.get("head", "none"))[:16]
    if not fits:
        return Finding("head", FALSE, claimed, "a head with other noise")
    return Finding("head", INTACT, claimed, "with noise, on its grid", "the run, whose ledger names its releases")


def _wrong_statement(said: Any, mechanism: str, caveats: Sequence[str], claim: float | None) -> str:
    """What is wrong with a budget of any mechanism."""
    sigma, epsilon, delta, bound = (float(said[name]) for name in ("sigma", "epsilon", "delta", "bound"))
    if not (0 < sigma < math.inf and 0 < epsilon < math.inf and 0 < delta < 1 and bound >= 0):
        return "not a budget: sigma, epsilon and delta are above 0"
    if said["mechanism"] != mechanism:
        return f"the mechanism is {mechanism}"
    missing = [one for one in caveats if one not in said["caveats"]]
    if missing:
        return f"a caveat is missing: {missing[0]}"
    return "" if claim is not None and claim <= bound * ROOM else f"the noise has to cover {claim}, not {bound:.6g}"


def _wrong_term(certificate: Certificate, said: Any, hidden: Json) -> str:
    residual = certificate.residual
    claim = None if residual is None else certificate.retained_numbers[1] * (residual.norm + residual.rounding)
    if wrong := _wrong_statement(said, OBJECTIVE, OBJECTIVE_CAVEATS, claim):
        return wrong
    sigma, epsilon, delta = (float(said[name]) for name in ("sigma", "epsilon", "delta"))
    if epsilon > 1 or not math.isclose(float(str(hidden)), sigma, rel_tol=1e-12):
        return "the linear term has another sigma, or epsilon is above 1"
    if not math.isclose(_objective_delta(float(said["largest_bound"]) / sigma, epsilon), delta, rel_tol=1e-4):
        return f"the largest that such noise covers is not {said['largest_bound']}"
    spent = _objective_delta(float(said["bound"]) / sigma, epsilon)
    return "" if spent <= delta * ROOM else f"that noise costs delta {spent:.3g}"


def _wrong_release(certificate: Certificate, said: Any, head: Head | None) -> str:
    if wrong := _wrong_statement(said, DISCRETE, CAVEATS, certificate.bounds.weights):
        return wrong
    named = ("sigma", "grid", "epsilon", "delta", "rho", "parameters")
    sigma, grid, epsilon, delta, rho, parameters = (Fraction(said[name]) for name in named)
    if head is not None and parameters != head.params.size:
        return f"the head has {head.params.size} parameters"
    if not grid > 0 or (sigma / grid).denominator != 1 or math.frexp(float(grid))[0] != HALF:
        return "sigma is no whole number of steps of a grid that is a power of two"
    rounding = Fraction(math.sqrt(parameters) * ROOM) * grid
    apart = {name: (Fraction(said[name]) + rounding) / sigma for name in ("bound", "largest_bound")}
    if not apart["bound"] ** 2 / 2 <= rho * Fraction(ROOM) ** 2:
        return f"releasing it costs rho {float(apart['bound'] ** 2 / 2):.6g}"
    spent, most = (_concentrated_delta(float(one), float(epsilon)) for one in (rho, apart["largest_bound"] ** 2 / 2))
    if not math.isclose(most, delta, rel_tol=1e-4):
        return f"the largest that such noise covers is not {said['largest_bound']}"
    return "" if spent <= float(delta) * ROOM else f"that noise costs delta {spent:.3g}"


def _concentrated_delta(rho: float, epsilon: float) -> float:
    """What rho-zCDP costs (Canonne, Kamath and Steinke 2020): the least of a bound that holds at every order a > 1."""

    def exponent(log_order: float) -> float:  # of a - 1
        a = 1 + math.exp(log_order)
        return (a - 1) * (a * rho - epsilon) + a * math.log1p(-1 / a) - log_order

    least = optimize.minimize_scalar(exponent, bounds=(-30.0, 30.0), method="bounded", options={"xatol": 1e-10})
    return float(np.exp(min(float(least.fun), 0.0)))


def _objective_delta(distance: float, epsilon: float) -> float:
    """What objective perturbation costs for a residual of so many sigmas: 1.5 exp(-c^2 / 2), c = epsilon / distance."""
    return 0.0 if not distance else 1.5 * math.exp(-((epsilon / distance) ** 2) / 2)


def check_term(
    certificate: Certificate, head: Head | None, *, shape: tuple[int, int], term: Array | None, before: Array | None
) -> list[Finding]:
    """Is the linear term of the size that is told, the same as before, and told of by the head?"""
    said = certificate.objective.get(SIGMA)
    own = None if head is None else head.recipe.get(SIGMA)
    found = [stated("linear-term", own == said, str(said), str(own))] if head is not None and (said or own) else []
    if term is None or not isinstance(said, float | int):
        return found
    if term.shape != shape or not np.isfinite(term).all():
        return [*found, Finding("linear-term", FALSE, f"numbers of shape {shape}", f"of shape {term.shape}")]
    low, high = (
        float(said) * float(np.sqrt(2 * tail(term.size / 2, RARE)))
        for tail in (special.gammaincinv, special.gammainccinv)
    )
    size = float(np.linalg.norm(term))
    found.append(stated("linear-term", low <= size <= high, f"of size {low:.4g} to {high:.4g}", f"{size:.4g}"))
    if before is not None:
        kept = np.array_equal(term, before)
        found.append(stated("linear-term", kept, "the same as before", "the same" if kept else "another"))
    return found
