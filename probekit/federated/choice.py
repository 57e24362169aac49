"""Choosing the ridge of a head from the clients' own rows or statistics, before it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from probekit.errors import NotFoundError
from probekit.federated.client import Picked, client_statistics
from probekit.federated.server import merge
from probekit.federated.task import ClosedForm
from probekit.linear.design import ClientStats, Design
from probekit.linear.folds import cross_validate, fold_statistics
from probekit.linear.leaveout import choose_ridge
from probekit.linear.path import RidgePath, Validation, decompose
from probekit.registry import nearest
from probekit.values import EmbeddingSet, Partition

WAYS = ("auto", "auto:loo", "auto:kfold", "auto:clients")
FOLDS = 5
PLAIN = ClosedForm()


@dataclass(frozen=True, eq=False)
class Choice:
    """A ridge, the errors it was chosen by, and the clients' statistics that were computed on the way.

    Whoever's rows were there when a ridge was chosen has had a say in it, also after leaving.
    """

    ridge: float
    validation: Validation
    effective_dimension: float
    condition: float
    parts: Mapping[str, ClientStats]

    @property
    def at_edge(self) -> bool:
        """Whether the best ridge is the smallest or largest that was tried."""
        return self.ridge in (self.validation.ridges[0], self.validation.ridges[-1])


def choose(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    design: Design,
    how: str = "auto",
    scaling: str = "mean",
    method: ClosedForm = PLAIN,
    seed: int = 0,
) -> Choice:
    """The ridge of least squared error on rows left out, among 45.

    "auto" and "auto:loo": each row in turn, exactly. "auto:kfold": one of 5 random parts of all rows in turn.
    "auto:clients": one client in turn, from statistics alone, so it also works where rows stay with clients.
    """
    if how not in WAYS:
        raise NotFoundError(f"There is no way {how!r} of choosing a ridge. {nearest(how, list(WAYS))}")
    parts = {name: client_statistics(embeddings, rows, design) for name, rows in partition.clients.items()}
    path = decompose(merge(parts.values()), scaling=scaling, view=method.view, class_weight=method.class_weight)
    if how == "auto:clients":
        validation = _left_out(list(parts.values()), path, scaling=scaling, method=method)
    else:
        held = np.sort(np.concatenate(list(partition.clients.values())))
        rows, labels = Picked(embeddings.embeddings, held), embeddings.labels[held]
        if how == "auto:kfold":
            folds = fold_statistics(rows, labels, design, folds=min(FOLDS, len(held)), seed=seed)
            validation = _left_out(folds, path, scaling=scaling, method=method)
        else:
            validation = choose_ridge(path, rows, labels)[1]
    ridge = validation.best()
    return Choice(ridge, validation, path.effective_dimension(ridge), path.condition(ridge), parts)


def _left_out(parts: list[ClientStats], path: RidgePath, *, scaling: str, method: ClosedForm) -> Validation:
    return cross_validate(
        parts, ridges=path.grid(), scaling=scaling, view=method.view, class_weight=method.class_weight
    )
