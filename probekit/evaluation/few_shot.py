"""Few-shot curves: how good a closed-form head is with one, two, four ... rows of every class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.evaluation.metrics import USUAL, Interval, Share, share
from probekit.linear.design import Design
from probekit.linear.leaveout import choose_ridge
from probekit.linear.path import decompose
from probekit.linear.statistics import row_blocks, statistics
from probekit.models.linear_problem import HeadProblem
from probekit.models.serving import predict
from probekit.values import EmbeddingSet, Indices

SHOTS_STREAM = 12


@dataclass(frozen=True)
class FewShot:
    """The accuracies of some draws of so many rows per class, their mean and standard deviation (n - 1).

    `test` is another matter: how sure the mean is given so few test rows. `ridges` are those of the draws.
    """

    shots: int
    accuracies: tuple[float, ...]
    mean: float
    deviation: float | None
    test: Share | None = None
    ridges: tuple[float, ...] = ()


def few_shot(
    train: EmbeddingSet,
    test: EmbeddingSet,
    *,
    design: Design,
    ridge: float | str,
    shots: Sequence[int] = (1, 2, 4, 8, 16),
    draws: int = 5,
    seed: int = 0,
    interval: Interval = USUAL,
) -> tuple[FewShot, ...]:
    """The curve: each draw shuffles every class's rows once and takes the first (ridge in mean scaling).

    Where training rows have groups, those of one class in one draw are of different groups: two rows of a patient are
    not two examples. The interval of the test rows is by their groups.

    ridge: a number, or "auto": each draw chooses its own by leaving its rows out. With one row per class no left-out
    row's class is known to the others; there the ridge is the mean squared norm of the rows.
    """
    if not len(test) or test.labels.min() < 0:
        raise InputError(
            f"Test rows need labels; {(test.labels < 0).sum()} of {len(test)} have none. Keep the others (select)."
        )
    if draws < 1 or min(shots, default=0) < 1:
        raise InputError(f"A curve needs shots and draws, 1 or more; found {min(shots, default=0)} and {draws}.")
    shuffled = _shuffled(train, design.classes, max(shots), draws=draws, seed=seed)
    problem = HeadProblem(design, spec_digest=train.spec.digest)  # so that a test set encoded otherwise is refused
    curve = []
    for number in shots:
        held = [problem.hold(train, np.sort(draw[:, :number].ravel())) for draw in shuffled]
        ridges = [ridge if isinstance(ridge, float | int) else _chosen(rows, design, number) for rows in held]
        heads = [problem.minimum(rows.statistics, one)[0] for rows, one in zip(held, ridges, strict=True)]
        right = [predict(head, test) == test.labels for head in heads]
        accuracies = tuple(float(one.mean()) for one in right)
        deviation = float(np.std(accuracies, ddof=1)) if draws > 1 else None
        hits = np.mean(right, axis=0)
        told = share(hits, name=f"{number} shots", groups=test.groups, interval=interval)
        curve.append(FewShot(number, accuracies, float(np.mean(accuracies)), deviation, told, tuple(ridges)))
    return tuple(curve)


def _chosen(held: Any, design: Design, shots: int) -> float:
    """The ridge of one draw. The few rows span few directions, and there everything is as it was: d becomes n."""
    rows = np.concatenate([block.copy() for _, block in row_blocks(held.picked, design)]).astype(np.float64)
    if shots == 1:
        return float(np.einsum("nd,nd->", rows, rows) / len(rows))
    if len(rows) < design.dimension:
        rows = rows @ np.linalg.qr(rows.T)[0]
    plain = replace(design, dimension=rows.shape[1], view="raw", arithmetic="float64", grid=0.0)
    return choose_ridge(decompose(statistics(rows, held.labels, plain)), rows, held.labels)[0]


def _shuffled(train: EmbeddingSet, classes: int, most: int, *, draws: int, seed: int) -> list[Indices]:
    """For each draw the first rows of every class, shuffled, of a group each: (classes, most)."""
    each = [np.flatnonzero(train.labels == k) for k in range(classes)]
    groups = np.arange(len(train)) if train.groups is None else train.groups
    counts = np.array([len(np.unique(groups[rows])) for rows in each])
    if counts.min() < most:
        what = "rows" if train.groups is None else "groups"
        raise InputError(
            f"{most} shots need as many {what} of every class; class {counts.argmin()} has {counts.min()}. "
            "Ask for fewer."
        )
    generators = (np.random.Generator(np.random.PCG64([seed, SHOTS_STREAM, draw])) for draw in range(draws))
    return [np.stack([_apart(one.permutation(rows), groups)[:most] for rows in each]) for one in generators]


def _apart(rows: Indices, groups: Indices) -> Indices:
    """The first row of every group, in their order."""
    return rows[np.sort(np.unique(groups[rows], return_index=True)[1])]
