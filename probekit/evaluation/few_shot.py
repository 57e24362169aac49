"""Few-shot curves: how good a closed-form head is with one, two, four ... rows of every class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import Design
from probekit.models.linear_problem import HeadProblem
from probekit.models.serving import predict
from probekit.values import EmbeddingSet

SHOTS_STREAM = 12


@dataclass(frozen=True)
class FewShot:
    """The accuracies of some draws of so many rows per class, their mean and standard deviation (n - 1)."""

    shots: int
    accuracies: tuple[float, ...]
    mean: float
    deviation: float | None


def few_shot(
    train: EmbeddingSet,
    test: EmbeddingSet,
    *,
    design: Design,
    ridge: float,
    shots: Sequence[int] = (1, 2, 4, 8, 16),
    draws: int = 5,
    seed: int = 0,
) -> tuple[FewShot, ...]:
    """The curve: each draw shuffles every class's rows once and takes the first (ridge in mean scaling)."""
    if not len(test) or test.labels.min() < 0:
        raise InputError(
            f"Test rows need labels; {(test.labels < 0).sum()} of {len(test)} have none. Keep the others (select)."
        )
    if draws < 1 or min(shots, default=0) < 1:
        raise InputError(f"A curve needs shots and draws, 1 or more; found {min(shots, default=0)} and {draws}.")
    shuffled = _shuffled(train.labels, design.classes, max(shots), draws=draws, seed=seed)
    problem = HeadProblem(design, spec_digest=train.spec.digest)  # so that a test set encoded otherwise is refused
    curve = []
    for number in shots:
        held = (problem.hold(train, np.sort(draw[:, :number].ravel())) for draw in shuffled)
        heads = (problem.minimum(rows.statistics, ridge)[0] for rows in held)
        accuracies = tuple(float((predict(head, test) == test.labels).mean()) for head in heads)
        deviation = float(np.std(accuracies, ddof=1)) if draws > 1 else None
        curve.append(FewShot(number, accuracies, float(np.mean(accuracies)), deviation))
    return tuple(curve)


def _shuffled(labels: NDArray[np.int64], classes: int, most: int, *, draws: int, seed: int) -> list[NDArray[np.int64]]:
    """For each draw the first rows of every class, shuffled: (classes, most)."""
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    if counts.min() < most:
        raise InputError(
            f"{most} shots need as many rows of every class; class {counts.argmin()} has {counts.min()}. Ask for fewer."
        )
    each = [np.flatnonzero(labels == k) for k in range(classes)]
    generators = (np.random.Generator(np.random.PCG64([seed, SHOTS_STREAM, draw])) for draw in range(draws))
    return [np.stack([generator.permutation(rows)[:most] for rows in each]) for generator in generators]
