"""Bounds for a head of real targets: the targets that the same rows know have one loss, and losses add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probekit.certificates import bounds
from probekit.certificates.bounds import Known, Residual, SmallestCurvature, gamma
from probekit.linear.norms import norm
from probekit.linear.targets import TargetStats
from probekit.values import Array


def known_of_targets(params: Array, objective: Mapping[str, Any], total: TargetStats, counts: Sequence[int]) -> Known:
    """What summed statistics tell of the retained losses; `counts` are the rows of each client."""
    # a client's root has fewer rows than half the columns and targets; its parts are added one after the other
    roots = min(max(counts, default=0), (total.design.columns + total.design.classes) // 2 + 1)
    parts = len(counts) * (len(total.parts) + total.design.classes)
    norms, rounding = np.zeros((2, total.design.classes))
    groups, least = [], None
    for labels, some in total.label_groups():
        loss = bounds.quadratic(some, objective, parts=parts, roots=roots)
        found, sure = bounds.residual(loss, params[:, labels]), bounds.convexity(loss)
        norms[labels], rounding[labels] = found.by_class, found.rounding_by_class
        least = sure if least is None or sure.value < least.value else least
        groups.append((labels, loss))
    room = 1 + gamma(len(norms) + 8)
    residual = Residual(norm(norms) * room, norm(rounding) * room, tuple(norms.tolist()), tuple(rounding.tolist()))
    certain: SmallestCurvature | None = least if least is not None and least.value > 0 else None
    return Known(residual, certain, groups=tuple(groups))


def excess_of_targets(known: Known, params: Array) -> float:
    """How far the sum of the retained losses can lie above its minimum."""
    assert known.curvature is not None
    total = 0.0
    for labels, loss in known.groups:
        own = params[:, labels]
        total += bounds.excess_loss(bounds.residual(loss, own), known.curvature.value, loss=loss, params=own)
    return total * (1 + gamma(len(known.groups) + 8))
