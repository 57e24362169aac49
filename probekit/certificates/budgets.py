"""Checking what a certificate says of (epsilon, delta), and of the secret linear term behind it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.certificate import Certificate
from probekit.certificates.privacy import CAVEATS, OBJECTIVE, OBJECTIVE_CAVEATS, OUTPUT
from probekit.certificates.verdicts import FALSE, PROVEN, Finding, stated
from probekit.linear.lapack import special
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head

RARE = 1e-9
"""How seldom a true term may be larger, or smaller, than a verifier accepts."""
ROOM = 1 + 1e-9

Array = NDArray[np.float64]


def check_privacy(certificate: Certificate) -> list[Finding]:
    """Whether the noise covers what it is said to cover: nothing but the certificate is needed."""
    said: Any = certificate.privacy
    if said is None:
        return []
    try:
        wrong = _wrong(certificate, said)
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        wrong = f"not a budget: {error}"
    claimed = f"epsilon {said.get('epsilon')}, delta {said.get('delta')}"
    return [Finding("privacy", FALSE if wrong else PROVEN, claimed, wrong or "follows from the claims above")]


def _wrong(certificate: Certificate, said: Any) -> str:
    hidden, rows = certificate.objective.get(SIGMA), certificate.retained_numbers[1]
    sigma, epsilon, delta, bound = (float(said[name]) for name in ("sigma", "epsilon", "delta", "bound"))
    if not (sigma > 0 and epsilon > 0 and 0 < delta < 1 and bound >= 0):
        return "not a budget: sigma, epsilon and delta are above 0"
    if said["mechanism"] != (OUTPUT if hidden is None else OBJECTIVE):
        return f"the mechanism is {OUTPUT if hidden is None else OBJECTIVE}"
    missing = [one for one in (CAVEATS if hidden is None else OBJECTIVE_CAVEATS) if one not in said["caveats"]]
    if missing:
        return f"a caveat is missing: {missing[0]}"
    if hidden is None:
        cost, claim = _gaussian_delta, certificate.bounds.weights
    else:
        cost, residual = _objective_delta, certificate.residual
        claim = None if residual is None else rows * (residual.norm + residual.rounding)
        if epsilon > 1 or not math.isclose(float(str(hidden)), sigma, rel_tol=1e-12):
            return "the linear term has another sigma, or epsilon is above 1"
    if claim is None or not claim <= bound * ROOM:
        return f"the noise has to cover {claim}, not {bound:.6g}"
    if not math.isclose(cost(float(said["largest_bound"]) / sigma, epsilon), delta, rel_tol=1e-4):
        return f"the largest that such noise covers is not {said['largest_bound']}"
    spent = cost(bound / sigma, epsilon)
    return "" if spent <= delta * ROOM else f"that noise costs delta {spent:.3g}"


def _objective_delta(distance: float, epsilon: float) -> float:
    """What objective perturbation costs for a residual of so many sigmas: 1.5 exp(-c^2 / 2), c = epsilon / distance."""
    return 0.0 if not distance else 1.5 * math.exp(-((epsilon / distance) ** 2) / 2)


def _gaussian_delta(distance: float, epsilon: float) -> float:
    """What the Gaussian mechanism costs when two heads lie so many sigmas apart (Balle and Wang 2018)."""
    if not distance:
        return 0.0
    first, second = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
    return float(special.ndtr(first) - np.exp(epsilon + special.log_ndtr(second)))


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
