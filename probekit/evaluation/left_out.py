"""What rows left out in turn say of a head: its temperature, the most wrong rows. No head judges rows it knew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.errors import InputError
from probekit.evaluation.metrics import Matrix, best_temperature, log_probabilities
from probekit.values import EmbeddingSet, Indices

TEMPERATURES = 2.0 ** (np.arange(-160, 161) / 8)
"""The temperatures to choose from: a fixed grid, so that sums over clients lead to the same one whoever is asked."""


@dataclass(frozen=True)
class WrongRow:
    """A row whose left-out scores prefer another class: by how much, and which."""

    row: int
    name: str
    id: str
    label: str
    given: str
    margin: float


def grid_temperature(scores: Matrix, labels: Indices) -> float:
    """The temperature of the grid with the least summed log loss on these rows.

    The loss is convex in 1 / temperature, so it is one of the two neighbours of the best of all temperatures.
    """
    place = int(np.searchsorted(TEMPERATURES, best_temperature(scores, labels)))
    near = TEMPERATURES[max(0, place - 1) : place + 1]
    losses = [-np.take_along_axis(log_probabilities(scores, float(t)), labels[:, None], 1).sum() for t in near]
    return float(near[int(np.argmin(losses))])


def most_wrong(scores: Matrix, rows: EmbeddingSet, *, count: int = 12) -> tuple[WrongRow, ...]:
    """The rows that their own class trails by most in left-out scores, worst first."""
    if len(scores) != len(rows):
        raise InputError(f"Each of the {len(rows)} rows needs its scores; found {len(scores)}.")
    every = np.arange(len(scores))
    others = scores.copy()
    others[every, rows.labels] = -np.inf
    margin, given = others.max(axis=1) - scores[every, rows.labels], others.argmax(axis=1)
    worst = np.argsort(-margin, kind="stable")[:count]
    names = rows.class_names or tuple(map(str, range(scores.shape[1])))
    return tuple(
        WrongRow(
            row=int(i),
            name=str(i) if rows.names is None else rows.names[int(i)],
            id=rows.ids[int(i)],
            label=names[rows.labels[i]],
            given=names[given[i]],
            margin=float(margin[i]),
        )
        for i in worst
        if margin[i] > 0
    )
