"""Checking what a certificate says of (epsilon, delta), and of the secret linear term behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates import privacy
from probekit.certificates.certificate import Certificate
from probekit.certificates.checks import Check, at_most, close
from probekit.errors import ProbekitError
from probekit.linear.lapack import special
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head

RARE = 1e-9
"""How seldom a true term may be larger, or smaller, than a verifier accepts."""

Array = NDArray[np.float64]


def check_privacy(certificate: Certificate) -> list[Check]:
    """The budget's own arithmetic: nothing but the certificate is needed."""
    said: Any = certificate.privacy
    if said is None:
        return []
    hidden = certificate.objective.get(SIGMA)
    mechanism = privacy.OUTPUT if hidden is None else privacy.OBJECTIVE
    caveats = privacy.CAVEATS if hidden is None else privacy.OBJECTIVE_CAVEATS
    named = said.get("mechanism")
    checks = [Check("mechanism of the budget", named == mechanism, str(named), mechanism)]
    residual = certificate.residual
    try:
        guaranteed = {name: said[name] for name in ("epsilon", "delta")}
        if hidden is None:
            largest, bound = privacy.largest_bound(said["sigma"], **guaranteed), certificate.bounds.weights
        else:
            checks.append(close("sigma of the linear term", said["sigma"], float(str(hidden))))
            largest = privacy.largest_residual(said["sigma"], **guaranteed)
            bound = None if residual is None else privacy.sum_bound(certificate, residual)
        missing = [one for one in caveats if one not in said["caveats"]]
        return [
            *checks,
            close("largest that the noise covers", said["largest_bound"], largest),
            close("what the noise has to cover", said["bound"], bound),
            at_most("what the noise covers", said["bound"], largest),
            Check("caveats of the budget", not missing, "all there", missing[0] if missing else "all there"),
        ]
    except (ProbekitError, KeyError, TypeError, ValueError) as error:
        return [*checks, Check("budget", False, "a budget", str(error))]


def check_term(
    certificate: Certificate, head: Head | None, *, shape: tuple[int, int], term: Array | None, before: Array | None
) -> list[Check]:
    """Is the linear term of the size that is told, the same as before, and told of by the head?"""
    said = certificate.objective.get(SIGMA)
    checks = []
    if head is not None:
        own = head.recipe.get(SIGMA)
        checks += [Check("linear term of the head", own == said, str(said), str(own))] if said or own else []
    if term is None or not isinstance(said, float | int):
        return checks
    if term.shape != shape or not np.isfinite(term).all():
        return [*checks, Check("linear term", False, f"numbers of shape {shape}", f"of shape {term.shape}")]
    low, high = (
        float(said) * float(np.sqrt(2 * tail(term.size / 2, RARE)))
        for tail in (special.gammaincinv, special.gammainccinv)
    )
    size = float(np.linalg.norm(term))
    told = f"from {low:.4g} to {high:.4g}"
    checks.append(Check("size of the linear term", low <= size <= high, told, f"{size:.4g}"))
    if before is not None:
        same = np.array_equal(term, before)
        checks.append(Check("linear term as before", same, "the same", "the same" if same else "another"))
    return checks
