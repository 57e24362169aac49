"""Membership inference: whether a head's loss tells the rows it was trained on from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.evaluation.intervals import ROWS, Estimate, Sampling, share
from probekit.evaluation.metrics import auroc
from probekit.heads import Head
from probekit.objective import Loss, Squares

FALSE_ALARMS = (0.01, 0.1)
CHANCE = 0.5
SQUARES = Squares()


@dataclass(frozen=True)
class Membership:
    """How well members and others are told apart.

    auc: 0.5 is not at all. Below it they are told apart too, the other way round.
    recall: at each rate of false alarms, the share of the members that is found.
    """

    auc: Estimate
    recall: Mapping[float, Estimate]

    @property
    def leaks(self) -> bool:
        """Whether the interval of the area leaves out chance, on either side."""
        low = self.auc.value if self.auc.low is None else self.auc.low
        high = self.auc.value if self.auc.high is None else self.auc.high
        return not low <= CHANCE <= high

    def to_dict(self) -> dict[str, Any]:
        recall = {f"{rate:g}": estimate.to_dict() for rate, estimate in self.recall.items()}
        return {"auc": self.auc.to_dict(), "recall": recall, "leaks": self.leaks}


def attack(members: Array, nonmembers: Array, *, sampling: Sampling = ROWS) -> Membership:
    """The power of an attack from its scores: high ones are taken for members."""
    if not len(members) or not len(nonmembers):
        raise InputError(
            f"An attack needs members and others; found {len(members)} and {len(nonmembers)} rows."
        )
    scores = np.concatenate([members, nonmembers])
    auc = auroc(scores, np.arange(len(scores)) < len(members), sampling)
    descending = np.sort(nonmembers)[::-1]
    recall = {
        rate: share(members > descending[int(rate * len(nonmembers))], sampling)
        for rate in FALSE_ALARMS
    }
    return Membership(auc, recall)


def loss_scores(head: Head, rows: EmbeddingSet, *, loss: Loss = SQUARES) -> Array:
    """Minus the loss of each row: members have less of it.

    loss: what the head was trained to minimize.
    """
    targets = rows.targets
    if targets is None:
        # zeros where the head does not know the class; -1, the last name, is no class
        names = np.array([*rows.class_names, None], object)[rows.labels]
        targets = np.asarray(names[:, None] == np.array(head.names, object), np.float64)
    return -loss.values(head.decision(rows), targets)


def membership(
    head: Head,
    members: EmbeddingSet,
    nonmembers: EmbeddingSet,
    *,
    loss: Loss = SQUARES,
    sampling: Sampling = ROWS,
) -> Membership:
    """The loss attack on rows that may have been trained on, against rows that were not."""
    return attack(
        loss_scores(head, members, loss=loss),
        loss_scores(head, nonmembers, loss=loss),
        sampling=sampling,
    )
