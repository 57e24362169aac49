"""The rows that a head gets most wrong when each is left out: no head judges rows it knew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.errors import InputError
from probekit.values import Array, EmbeddingSet


@dataclass(frozen=True)
class WrongRow:
    """A row whose left-out scores prefer another class: by how much, and which."""

    row: int
    name: str
    id: str
    label: str
    given: str
    margin: float


def most_wrong(scores: Array, rows: EmbeddingSet, *, count: int = 12) -> tuple[WrongRow, ...]:
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
