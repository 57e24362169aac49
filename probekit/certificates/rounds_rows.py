"""The rows that are certified from the rounds, once the kept products were held against what clients answer."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.agreement import RoundsAgreement, examined
from probekit.certificates.bounds import Known, gamma
from probekit.certificates.rounds import RoundsBound, TwoSided, product_errors, sure_ones
from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.loss import CommonLoss
from probekit.federated.trained import Trained
from probekit.linear.norms import norm
from probekit.unlearning.products import Products
from probekit.values import EmbeddingSet

VERSION = 1
PROBES = 8
"""Random mixtures of all products that clients are asked again for."""
WARNING = "No row is certified from the rounds. {}"

Array = NDArray[np.float64]


def agreement_by_rounds(
    after: Trained, rows: EmbeddingSet, *, known: Known, clients: Federation | None
) -> tuple[RoundsAgreement | None, tuple[str, ...]]:
    """How many rows are certified with the products that the run kept; else None, perhaps with a warning why."""
    products = Products.of(after)
    if products is None or known.gradient is None or known.curvature is None or clients is None:
        return None, ()
    try:
        bound = bound_of(after, products, known=known, clients=clients)
    except InputError as error:
        return None, (WARNING.format(error),)
    certified = plain = 0
    for block in examined(after.head, rows, known=known, problem=after.problem, rounds=bound):
        plain += int((block.leads > block.plain).all(axis=1).sum())
        certified += int((block.leads > block.better).all(axis=1).sum())
    forms = bound.forms
    used = (rows.digest, len(rows), certified, plain, forms.basis.shape[1], forms.error, products.digest)
    return RoundsAgreement(VERSION, *used), ()


def bound_of(after: Trained, products: Products, *, known: Known, clients: Federation) -> RoundsBound:
    """What the products say of margins at the head; refused where they are not what the clients answer."""
    assert known.gradient is not None
    scales = clients.ask("scales").total().values
    errors, most = product_errors(products, after.problem, [*clients.counts.values()], scales)
    forms = TwoSided.of(products, errors, most)
    loss = CommonLoss(clients, after.problem, products.ridge, precision="float64")
    ask_again(products, errors, loss, after.params, known)
    return RoundsBound(forms, known.gradient, np.array(known.residual.rounding_by_class))


def ask_again(products: Products, errors: Array, loss: CommonLoss, params: Array, known: Known) -> None:
    """Ask for the curvature along random mixtures of all directions that count: one false product spoils each mixture.

    The mixtures follow from the products, so that an interrupted certificate asks the same again.
    """
    sure = sure_ones(products, errors)
    directions, images = products.directions[:, sure], products.images[:, sure]
    random = np.random.default_rng(int(products.digest, 16))
    width, scale = params.shape[1], norm(params) or 1.0
    hidden = known.residual.rounding
    for _ in range(math.ceil(PROBES / width)):
        mixed = random.standard_normal((directions.shape[1], width)) / math.sqrt(directions.shape[1])
        asked = directions @ mixed
        step = scale / (norm(asked) or 1.0)
        assert known.gradient is not None
        found = (loss.gradient(params + step * asked) - known.gradient) / step
        apart = norm(found - images @ mixed)
        size = norm(images) * norm(mixed)
        allowed = norm(errors[sure]) * norm(mixed) + 8 * hidden / step + gamma(64 * directions.shape[1]) * size
        if not apart <= allowed:
            raise InputError(
                f"The kept products are not what clients answer: a mixture of them is off by {apart:.3g}, where "
                f"{allowed:.3g} is the most that rounding can do. Unlearn again."
            )
