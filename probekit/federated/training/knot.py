"""KNOT (Su and Li, 2023): clients train in clusters that never meet; forgetting concerns one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from probekit.arrays import Array, Indices
from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.local import LocalPlan
from probekit.federated.state import Ridge, State, check_keep, collect_and_choose, kept_by
from probekit.federated.training.fedavg import FedAvg
from probekit.progress import Progress, silent
from probekit.records import record

PASSES = 20


@record("cluster")
@dataclass(frozen=True, eq=False)
class Cluster:
    """Clients who train together, their weight in the head, and their parameters."""

    members: tuple[str, ...]
    weight: float
    params: Array


@record("kept/clusters")
@dataclass(frozen=True, eq=False)
class Clusters:
    """All clusters of a training; the head is their mean by weight."""

    parts: tuple[Cluster, ...]

    def without(self, clients: Collection[str]) -> Clusters | None:
        """The clusters that none of these clients was in."""
        parts = tuple(part for part in self.parts if not set(clients) & set(part.members))
        return Clusters(parts) if parts else None

    def mean(self) -> Array:
        total = sum(part.weight for part in self.parts)
        return np.asarray(sum(part.weight / total * part.params for part in self.parts))


@record("trainer/knot")
@dataclass(frozen=True)
class KnotTraining:
    """FedAvg inside `clusters` of equal size (to one) of clients with similar first updates."""

    clusters: int = 2
    fedavg: FedAvg = field(default_factory=lambda: FedAvg(20, LocalPlan(epochs=1)))
    keep: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_keep(self.keep, ("statistics",), "knot")

    def train(self, federation: Federation, *, ridge: Ridge, progress: Progress = silent) -> State:
        names = list(federation.clients)
        if not 1 <= self.clusters <= len(names):
            raise InputError(
                f"Every cluster needs a client; found {self.clusters} clusters and {len(names)} "
                f"clients. Pass --method knot:clusters={max(1, len(names) // 2)}."
            )
        statistics, choice = collect_and_choose(
            ridge, federation, collect="statistics" in self.keep, progress=progress
        )
        fedavg = self.fedavg.with_rate(federation, ridge=choice.value)
        trainer = replace(self, fedavg=fedavg)
        points = trainer.points(federation, ridge=choice.value)
        assignment = balanced_clusters(points, self.clusters)
        clusters = []
        for number in range(self.clusters):
            members = [names[index] for index in np.flatnonzero(assignment == number)]
            cluster = trainer.cluster(federation, members, ridge=choice.value, progress=progress)
            clusters.append(cluster)
        parts = Clusters(tuple(clusters))
        params = parts.mean()
        kept = (*kept_by(self.keep, federation, params, statistics), parts)
        counts = dict(federation.clients)
        return State(params, federation.model, choice, counts, trainer, fedavg.rounds, kept)

    def cluster(
        self,
        federation: Federation,
        members: Sequence[str],
        *,
        ridge: float,
        progress: Progress = silent,
    ) -> Cluster:
        """These clients, trained from the model's start."""
        group = federation.only(members)
        state = self.fedavg.train(group, ridge=ridge, progress=progress)
        weight = len(group.clients) if self.fedavg.uniform else group.rows
        return Cluster(tuple(members), float(weight), state.params)

    def points(self, federation: Federation, *, ridge: float) -> Array:
        """Each client's rows, as a share of the most, and how its first update leaves the mean."""
        start = self.fedavg.start_params(federation.model)
        everybody = replace(self.fedavg, at_least=1.0)
        uploads = dict(everybody.uploads(federation, start, 0, ridge=ridge))
        updates = np.stack([(upload.params - start).ravel() for upload in uploads.values()])
        mean = (self.fedavg.step(start, uploads.items()) - start).ravel()
        lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(mean)
        cosines = updates @ mean / np.maximum(lengths, np.finfo(float).tiny)
        rows = np.array([federation.clients[name] for name in uploads], float)
        return np.stack([rows / rows.max(), (1 - cosines) / 2], axis=1)


def balanced_clusters(points: Array, clusters: int) -> Indices:
    """k-means with clusters of equal size (to one): each pass is an assignment problem."""
    from scipy.optimize import linear_sum_assignment

    order = np.argsort(points.sum(axis=1), kind="stable")
    assignment = np.empty(len(points), np.int64)
    assignment[order] = np.arange(len(points)) * clusters // len(points)
    slots = np.arange(len(points)) % clusters
    for _ in range(PASSES):
        centers = np.stack([points[assignment == k].mean(axis=0) for k in range(clusters)])
        costs = np.linalg.norm(points[:, None] - centers[slots][None], axis=2)
        previous = assignment
        assignment = slots[linear_sum_assignment(costs)[1]]
        if np.array_equal(assignment, previous):
            break
    return assignment
