"""KNOT's training (Su and Li, 2023): clients in clusters of equal size, and FedAvg inside each.

Clusters never meet while they train, so that forgetting a client concerns its own cluster alone. Whether a client takes
part in a round follows from the seed, the round and its own name, a round's average weighs those who took part, and
each cluster has a learning rate of its own: what a cluster did before somebody's first round is what it would have done
without them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.local_rounds import averaged_rows, round_uploads, steady_rate, trained_at
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.server import PARTICIPATION_STREAM, average, client_weights
from probekit.federated.trained import Kept, Trained
from probekit.federated.training import Training
from probekit.linear.ridge import penalty_of
from probekit.protocols import Progress, Watch
from probekit.values import Array, Indices

KEPT_KNOT = "knot"
CLUSTER_STREAM = 24
ASSIGNMENTS = ("similar", "random", "reference")
RESULTS = ("average", "best")
MOST_PASSES = 20
MOST_PAIRED = 2000
"""Points that are paired with slots, which takes the square of their number; a transport problem takes no more."""


@dataclass(frozen=True, eq=False)
class KnotCluster:
    """Clients who train together, where they are, and where they were before rounds in which one of them began."""

    members: tuple[str, ...]
    params: Array
    starts: Mapping[int, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class KnotTraining(FedAvg):
    """FedAvg inside `clusters` of clients of equal size (to one); the head is the mean of the clusters' models.

    `assign`: "similar" (clients of similar work and updates train together), "random", or "reference" (as the public
    code: it maximises the distances that it means to minimise). `result`: "average", or "best" as the public code: one
    cluster's model, the most accurate. Kept for unlearning: each cluster's model, and where it was before every round
    in which one of its clients first took part. The other options are FedAvg's.
    """

    name: ClassVar[str] = "knot"
    keeps: ClassVar[tuple[str, ...]] = ("gradients", "statistics", KEPT_KNOT)
    source: ClassVar[str] = "Su and Li, INFOCOM 2023"

    clusters: int = 2
    assign: str = "similar"
    result: str = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("assign", ASSIGNMENTS), ("result", RESULTS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} of knot is one of {', '.join(known)}; found {getattr(self, name)!r}.")
        if self.clusters < 1 or self.keep_history:
            raise InputError(
                f"knot takes 1 cluster or more and keeps no history of rounds; found clusters={self.clusters}, "
                f"keep_history={self.keep_history}. For a history train by fedavg."
            )

    def train(self, training: Training) -> Trained:
        """Clusters, their rounds, and the mean of where they come to."""
        if self.clusters > len(training.counts):
            raise InputError(
                f"Every cluster needs a client; found {self.clusters} clusters and {len(training.counts)} clients."
            )
        with training.purpose("clusters"):
            groups = self.grouped(training)
        found = []
        with training.purpose("rounds"):
            for members in groups:
                asked = (training.clients, training.problem, members)
                found.append(
                    self.rounds_of(*asked, ridge=training.ridge, scaling=training.scaling, watch=training.watch)
                )
            params = self.combined(found, training.clients, training.problem)
        return trained_at(self, training, params, {KEPT_KNOT: kept_clusters(found)}, rate=self.learning_rate)

    def grouped(self, training: Training) -> list[tuple[str, ...]]:
        """The clients of each cluster."""
        names = training.clients.clients
        if self.assign == "random":
            drawn = np.random.Generator(np.random.PCG64([self.seed, CLUSTER_STREAM])).permutation(len(names))
            place = np.argsort(drawn) % self.clusters
        else:
            place = balanced(self._points(training), self.clusters, farthest=self.assign == "reference")
        return [tuple(names[c] for c in np.flatnonzero(place == number)) for number in range(self.clusters)]

    def _points(self, training: Training) -> Array:
        """Of each client its work, as a share of the largest, and how its first update differs from the mean one's."""
        clients, problem, ridge = training.clients, training.problem, training.mean_ridge
        names, start = clients.clients, self.initial(problem)
        rate = steady_rate(self, clients, problem, ridge)
        uploads = round_uploads(self, clients, start, names, number=0, rate=rate, ridge=ridge)
        moved = (uploads - start).reshape(len(names), -1)
        counts = np.array([training.counts[name] for name in names])
        mean = client_weights(counts, self.weights) @ moved
        length = np.linalg.norm(moved, axis=1) * np.linalg.norm(mean)
        cosine = np.divide(moved @ mean, length, out=np.zeros(len(names)), where=length > 0)
        work = counts if self.local_steps is None or self.batch_size is None else np.ones(len(names))
        return np.stack([work / work.max(), (1 - cosine) / 2], axis=1)

    def takes_part(self, client: str, number: int) -> bool:
        """Whether a client is in a round, whoever else is there."""
        if self.participation >= 1:
            return True
        own = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
        generator = np.random.Generator(np.random.PCG64([self.seed, PARTICIPATION_STREAM, number, own]))
        return bool(generator.random() < self.participation)

    def first_round(self, client: str) -> int:
        """The first round that a client is in; the number of rounds: none."""
        return next((number for number in range(self.rounds) if self.takes_part(client, number)), self.rounds)

    def rounds_of(
        self,
        clients: Federation,
        problem: Any,
        members: Sequence[str],
        *,
        ridge: float,
        scaling: str,
        watch: Watch,
        begin: tuple[int, Array] | None = None,
    ) -> KnotCluster:
        """A cluster's rounds, from its start or from where it was before a round."""
        rows = sum(clients.counts[name] for name in members)
        mean_ridge = penalty_of(ridge, scaling, rows) / rows
        rate = steady_rate(self, clients, problem, mean_ridge, members)
        first, params = begin or (0, self.initial(problem))
        looked = {self.first_round(name) for name in members}
        starts, progress, means = dict[int, Array](), watch("rounds"), averaged_rows(problem)
        for number in range(first, self.rounds):
            if number in looked and number:
                starts[number] = params
            who, before = [name for name in members if self.takes_part(name, number)], params
            if not who:
                continue
            uploads = round_uploads(self, clients, params, who, number=number, rate=rate, ridge=mean_ridge)
            shares = client_weights(np.array([clients.counts[name] for name in who]), self.weights)
            how: Any = {"clients": len(who), "rate": self.server_learning_rate, "means": means}
            params = average(params, uploads, shares, **how)
            progress(Progress(number + 1, self.rounds))
            if np.linalg.norm(params - before) <= self.tolerance * np.linalg.norm(params):
                break
        return KnotCluster(tuple(members), params, starts)

    def combined(self, found: Sequence[KnotCluster], clients: Federation, problem: Any) -> Array:
        """The mean of the clusters' models by their clients' shares, or the model that most rows are right by."""
        if self.result == "best":
            return max(found, key=lambda one: _right(clients, one.params)).params
        names = [name for one in found for name in one.members]
        counts = np.array([clients.counts[name] for name in names])
        shares = dict(zip(names, client_weights(counts, self.weights).tolist(), strict=True))
        return np.asarray(sum(sum(shares[name] for name in one.members) * one.params for one in found))


def _right(clients: Federation, params: Array) -> int:
    """How many rows a model is right on."""
    answers = clients.ask("evaluate", {"params": params}).each()
    return sum(int(np.trace(one.arrays["confusion"])) for one in answers)


def balanced(points: Array, clusters: int, *, farthest: bool = False) -> Indices:
    """The cluster of each point, all of equal size (to one) and each near its mean; `farthest` puts them far, once."""
    slots, chosen = np.arange(len(points)) % clusters, [0]
    while len(chosen) < clusters:  # the points that are farthest from those chosen before
        apart = np.linalg.norm(points[:, None] - points[chosen][None], axis=2).min(axis=1)
        apart[chosen] = -1
        chosen.append(int(apart.argmax()))
    centres, place = points[chosen], np.full(len(points), -1)
    for _ in range(1 if farthest else MOST_PASSES):
        cost = np.linalg.norm(points[:, None] - centres[None], axis=2)
        before, place = place, _assigned(-cost if farthest else cost, slots)
        if np.array_equal(before, place):
            break
        centres = np.stack([points[place == number].mean(axis=0) for number in range(clusters)])
    return place


def _assigned(cost: Array, slots: Indices) -> Indices:
    """The clusters of least cost in all, each with its slots: pairwise or, of many points, as a transport problem."""
    from scipy import sparse
    from scipy.optimize import linear_sum_assignment, linprog

    many, clusters = cost.shape
    if many <= MOST_PAIRED:
        return np.asarray(slots[linear_sum_assignment(cost[:, slots])[1]])
    once, sizes = np.ones((1, clusters)), np.bincount(slots, minlength=clusters)
    sums = sparse.vstack([sparse.kron(sparse.eye(many), once), sparse.kron(np.ones((1, many)), sparse.eye(clusters))])
    given = np.concatenate([np.ones(many), sizes])
    found = linprog(cost.ravel(), A_eq=sums.tocsc(), b_eq=given, bounds=(0, 1), method="highs-ds")
    return np.asarray(found.x.reshape(cost.shape).argmax(axis=1))


def kept_clusters(found: Sequence[KnotCluster]) -> Kept:
    """The clusters as they are kept."""
    arrays = {"models": np.stack([one.params for one in found])}
    arrays |= {f"starts {at}": np.stack([*one.starts.values()]) for at, one in enumerate(found) if one.starts}
    plain: Any = [{"members": [*one.members], "rounds": [*one.starts]} for one in found]
    return Kept(arrays, plain=plain, about=frozenset(name for one in found for name in one.members))


def clusters_in(kept: Kept) -> list[KnotCluster]:
    """The clusters that were kept."""
    plain: Any = kept.plain
    return [
        KnotCluster(
            tuple(one["members"]),
            np.asarray(kept.arrays["models"][at]),
            dict(zip(one["rounds"], kept.arrays[f"starts {at}"] if one["rounds"] else (), strict=True)),
        )
        for at, one in enumerate(plain)
    ]
