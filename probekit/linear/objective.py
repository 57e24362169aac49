"""The secret linear term of objective perturbation (Guo et al., ICML 2020): what it needs, and how it is drawn.

minimise 1/2 |X W - Y|^2 + penalty/2 |W|^2 + <B, W>, B of independent N(0, sigma^2), drawn once and kept secret.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import ClientStats
from probekit.linear.lapack import special

SIGMA = "objective_sigma"
"""What a head's recipe, and a certificate, call the size of the term."""


def draw_objective(stats: ClientStats, sigma: float) -> NDArray[np.float64]:
    """The secret linear term, of the operating system's randomness: nobody can draw it again."""
    refuse_sigma(sigma)
    shape = (stats.design.columns, stats.design.classes)
    words = np.frombuffer(secrets.token_bytes(8 * shape[0] * shape[1]), "<u8") >> np.uint64(12)
    return np.asarray(sigma * special.ndtri((words + 0.5) / 2.0**52)).reshape(shape)


def refuse_sigma(sigma: float) -> None:
    """Refuse noise of no size."""
    if not 0 < sigma < math.inf:
        raise InputError(f"Noise needs a sigma above 0; found {sigma}.")


def refuse_unhidden(
    *,
    ridge: float | None = None,
    intercept: str = "penalised",
    arithmetic: str = "float64",
    fit_view: str = "none",
    weighted: bool = False,
    normalised: bool = False,
    keep: str | None = None,
) -> None:
    """Refuse training options with which a linear term would hide nothing, or would be left out of something."""
    wanted = (
        (ridge is None or ridge > 0, "a ridge above 0", f"ridge {ridge}"),
        (intercept != "free", "a ridge on every parameter (a penalised intercept or none)", "a free intercept"),
        (arithmetic != "fast", "sums in float64 or exact arithmetic", "arithmetic fast"),
        (fit_view == "none", "the embeddings as they are", f"columns changed ({fit_view})"),
        (not weighted, "classes of equal weight", "class weights"),
        (not normalised, "the minimum itself", "normalised classes"),
        (keep != "gradients", "statistics to be kept (or nothing)", "kept gradients, which lack the linear term"),
    )
    for there, need, found in wanted:
        if not there:
            raise InputError(f"Objective noise needs {need}; found {found}. Change that, or leave the noise out.")
